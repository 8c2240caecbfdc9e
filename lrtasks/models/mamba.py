"""Mamba (Gu and Dao, arXiv:2312.00752), Mamba-2 (arXiv:2405.21060) and Mamba-3 (Lahoti et al., arXiv:2603.15569).

Mamba (section 3), a selective diagonal state space with N states per channel:

    u, z      halves of a linear map of the input, each ``d_inner`` wide; u then passes through silu(conv(.))
    dt        step of each channel, softplus of a linear map of u of rank R
    B, C      input and output weights of the states, linear maps of u
    h         exp(dt A) h + dt B u,  A = -exp(A_log)
    output    linear((C h + D u) * silu(z))

With ``eigenvalues="negative"`` the transition is 2 exp(dt A) - 1, in (-1, 1) (Grazzi et al., arXiv:2411.12537).

Mamba-2 (sections 5 to 7), SSD, with one decay per head; the heads of a group share B and C:

    z, x, B, C, dt   parts of a linear map of the input; x, B and C then pass through silu(conv(.))
    N, P             states per channel (d_state), channels per head (head_dim)
    dt               step softplus(dt + dt_bias), one per head
    S <- exp(-exp(A_log) dt) S + B (dt x)^T;  y = S^T C + D x
    output           linear(rms(y * silu(z))), or with ``norm_before_gate`` linear(rms(y) * silu(z))

Mamba-3, SSD with rotated keys, a trapezoidal step and, optionally, several inputs:

    z, x, B, C, ...   parts of a linear map of the input; there is no convolution
    N, P, H, R        states per channel, channels per head, heads, rank (inputs and outputs per head, 1 for SISO)
    dt, lam           step softplus(. + dt_bias), and weight of the current input sigmoid(.), of each head
    alpha             exp(A dt), A = -max(f(.), 1e-4) with f(x) = 1 + x for x >= 0 and 1 / (1 - x) below, or softplus
    theta             angles, theta <- theta + pi tanh(.) dt: this rotation makes the transitions complex
    k, q              B and C after rms, plus a bias of each head, rotated by theta in pairs (2j, 2j+1)
    S <- alpha S + (1 - lam) dt alpha k' v'^T + lam dt k v^T     (k', v' from the previous position), v = x
    y                 S^T q + D v; then y silu(z), or rms over each head first with ``outproj_norm``

With R > 1 the values and gates are v_r = x mimo_x_r and z_r = z mimo_z_r, S receives the sum over r, and the gated
outputs are summed with the weights mimo_o_r. Initial weights and names are as in state-spaces/mamba. Its kernels for
R > 1 rotate the features (j, j + N/2) as pairs; here the pairs are always neighbours, as in its step-by-step reference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lrtasks.config import Presets, parameter
from lrtasks.models import registry
from lrtasks.models.base import PAPER, PAPER_MQAR, SMALL, TRACKING
from lrtasks.models.ops import fla
from lrtasks.models.ops.decay import scalar_decay
from lrtasks.models.ops.layers import GatedRMSNorm, ShortConv, at_least_float32, full_precision, hide, step_size
from lrtasks.models.ops.scans import selective_scan
from lrtasks.models.recurrent import KernelConfig, RecurrentConfig, RecurrentLayer, log_draws, state_zeros, step_bias

SLOWEST = 1e-4
"""Smallest decay rate -A of Mamba-3."""


class MambaLayer(RecurrentLayer):
    """The mixer of :class:`Mamba`. State: h ``(batch, d_inner, N)``, and the last inputs of the convolution."""

    out_name = "out_proj"

    def __init__(self, config: Mamba) -> None:
        super().__init__()
        d_model, d_inner, d_state = config.d_model, config.expand * config.d_model, config.d_state
        rank = config.rank or math.ceil(d_model / 16)
        self.sizes, self.negative = [rank, d_state, d_state], config.eigenvalues == "negative"
        self.in_proj = nn.Linear(d_model, 2 * d_inner, bias=False)
        self.conv1d = ShortConv(d_inner, bias=True)
        self.x_proj = nn.Linear(d_inner, sum(self.sizes), bias=False)
        self.dt_proj = nn.Linear(rank, d_inner)
        nn.init.uniform_(self.dt_proj.weight, -(rank**-0.5), rank**-0.5)
        with torch.no_grad():
            self.dt_proj.bias.copy_(step_bias(d_inner))
        self.A_log = nn.Parameter(torch.arange(1.0, d_state + 1).log().repeat(d_inner, 1))
        self.D = nn.Parameter(torch.ones(d_inner))
        self.out_proj = nn.Linear(d_inner, d_model, bias=False)

    def parameter_options(self) -> dict[str, dict[str, float]]:
        return {"A_log": {"weight_decay": 0.0}}

    def initial_state(self, batch: int) -> tuple[Tensor, Tensor]:
        return state_zeros(self.A_log, batch, *self.A_log.shape), self.conv1d.initial_state(batch)

    def run(self, x: Tensor, state: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        h, before = state
        u, z = self.in_proj(hide(x, mask)).chunk(2, -1)
        u, before = self.conv1d.run(u, before)
        dt, B, C = torch.split(self.x_proj(u), self.sizes, -1)
        dt, A = step_size(F.linear(dt, self.dt_proj.weight), self.dt_proj.bias), -at_least_float32(self.A_log).exp()
        if not self.training:
            self.show(log_decay=dt[:1, :, :, None] * A)
        y, h = selective_scan(u, dt, A, B, C, h, mask, self.negative)
        return self.out_proj((y + self.D * u).to(z.dtype) * F.silu(z)), (h, before)


@registry.register("mamba")
@dataclass(frozen=True)
class Mamba(RecurrentConfig):
    """Mamba: a selective state space with d_state numbers per channel, each with its own decay.

    Sources: Gu and Dao (arXiv:2312.00752), section 3; negative eigenvalues, Grazzi et al. (arXiv:2411.12537).
    """

    layer_class = MambaLayer
    presets: ClassVar[Presets] = {
        "small": SMALL,
        "recall-16k": {**SMALL, "d_state": 13},
        "recall-64k": {**SMALL, "d_state": 61},
        "state-tracking": {**TRACKING, "eigenvalues": "negative"},
        "paper": {**PAPER, "eigenvalues": "negative", "budget.weight_decay": 0.0},
        "paper/mqar": {**PAPER_MQAR, "eigenvalues": "positive"},
    }

    mlp: bool = parameter(False, "use a gated feed-forward map after each mixer")
    expand: int = parameter(2, "number of inner channels, in multiples of d_model", at_least=1, at_most=64)
    d_state: int = parameter(16, "number of states N per channel", at_least=1, at_most=1 << 12)
    rank: int | None = parameter(None, "rank of the map for the step size; none: d_model / 16, rounded up", at_least=1)
    eigenvalues: Literal["positive", "negative"] = parameter("positive", "range of transitions: (0, 1) or (-1, 1)")


@dataclass(frozen=True)
class HeadedMamba(RecurrentConfig):
    """Parameters that Mamba-2 and Mamba-3 share."""

    mlp: bool = parameter(False, "use a gated feed-forward map after each mixer")
    expand: int = parameter(2, "number of inner channels, in multiples of d_model", at_least=1, at_most=64)
    d_state: int = parameter(32, "number of states N per channel", at_least=1, at_most=1 << 16)
    head_dim: int = parameter(16, "number of channels P per head", at_least=1, at_most=65536)
    groups: int = parameter(1, "number of head groups; heads of a group share B and C", at_least=1, at_most=1024)

    @property
    def heads(self) -> int:
        """Number of heads H."""
        return self.divided(self.expand * self.d_model, self.head_dim, "head_dim", "expand · d_model")

    def check(self) -> None:
        self.divided(self.heads, self.groups, "groups", "the number of heads")


class Mamba2Layer(RecurrentLayer):
    """The mixer of :class:`Mamba2`. State: S ``(batch, heads, N, P)``, and the last inputs of the convolution."""

    out_name = "out_proj"

    def __init__(self, config: Mamba2) -> None:
        super().__init__()
        self.config = config
        d_model, d_inner, heads = config.d_model, config.expand * config.d_model, config.heads
        states = config.groups * config.d_state
        self.decay = fla.on(config.op_backend, scalar_decay)
        self.sizes = (d_inner, d_inner + 2 * states, heads)
        self.mixed_sizes = [d_inner, states, states]
        self.in_proj = nn.Linear(d_model, sum(self.sizes), bias=False)
        self.conv1d = ShortConv(self.sizes[1], bias=True)
        self.dt_bias = nn.Parameter(step_bias(heads))
        self.A_log = nn.Parameter(log_draws(heads, 1, 16))
        self.D = nn.Parameter(torch.ones(heads))
        self.norm = GatedRMSNorm(d_inner, gate_first=not config.norm_before_gate, groups=config.groups)
        self.out_proj = nn.Linear(d_inner, d_model, bias=False)

    def initial_state(self, batch: int) -> tuple[Tensor, Tensor]:
        S = state_zeros(self.A_log, batch, len(self.A_log), self.config.d_state, self.config.head_dim)
        return S, self.conv1d.initial_state(batch)

    def run(self, x: Tensor, state: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        S, before = state
        z, mixed, dt = self.in_proj(hide(x, mask)).split(self.sizes, -1)
        mixed, before = self.conv1d.run(mixed, before)
        x, B, C = torch.split(mixed, self.mixed_sizes, -1)
        B, C = (torch.unflatten(value, -1, (self.config.groups, -1)) for value in (B, C))
        x = torch.unflatten(x, -1, (-1, self.config.head_dim))
        dt = step_size(dt, self.dt_bias)
        g = -at_least_float32(self.A_log).exp() * dt
        self.show(log_decay=g)
        y, S = self.decay(C, B, dt.unsqueeze(-1) * x, g, state=S, mask=mask)
        return self.out_proj(self.norm((y + self.D.unsqueeze(-1) * x).flatten(-2), z)), (S, before)


@registry.register("mamba2")
@dataclass(frozen=True)
class Mamba2(HeadedMamba, KernelConfig):
    """Mamba-2: a state of d_state numbers per channel, with one decay per head that depends on the input.

    Source: Dao and Gu (arXiv:2405.21060), sections 5 to 7.
    """

    layer_class = Mamba2Layer
    presets: ClassVar[Presets] = {
        "small": SMALL,
        "recall-16k": {**SMALL, "d_state": 12},
        "recall-64k": {**SMALL, "d_state": 58},
        "state-tracking": {**TRACKING, "head_dim": 32},
        "paper": {**PAPER, "d_state": 64, "head_dim": 64},
        "paper/mqar": {**PAPER_MQAR, "d_state": 16, "head_dim": 64},
    }

    norm_before_gate: bool = parameter(False, "normalise, then gate, instead of the other way round")


class Mamba3State(NamedTuple):
    """Angles below 2 pi, S, the last k and the last x; the shapes are in :meth:`Mamba3Layer.initial_state`."""

    theta: Tensor
    S: Tensor
    k: Tensor
    v: Tensor


@full_precision
def rotated(theta: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
    """Rotate the first pairs of neighbouring features of each ``(..., N)`` by theta, ``(..., angles)``."""
    theta = torch.remainder(theta, 2 * math.pi).to(given[0].dtype)  # accurate in float32
    rest = -given[0].shape[-1] % 2  # an odd number of features lacks one
    turned = _Rotated.apply(theta, *(F.pad(x, (0, rest)) if rest else x for x in given))  # type: ignore[no-untyped-call]
    return tuple(x[..., : x.shape[-1] - rest] for x in turned)


class _Rotated(torch.autograd.Function):
    """Compute :func:`rotated` for theta below 2 pi and an even N."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        turn = F.pad(torch.complex(theta.cos(), theta.sin()), (0, given[0].shape[-1] // 2 - theta.shape[-1]), value=1)
        pairs = [_pairs(x) for x in given]
        ctx.save_for_backward(theta, turn, *pairs)
        return tuple(torch.view_as_real(x * turn).flatten(-2) for x in pairs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        theta, turn, *before = ctx.saved_tensors
        back = turn.conj_physical()
        pairs = [_pairs(x) * back for x in gradients]
        of_theta = torch.zeros_like(theta)
        for x, y in zip(pairs, before, strict=True):
            product = x[..., : theta.shape[-1]] * y[..., : theta.shape[-1]].conj()
            of_theta += product.imag.sum_to_size(theta.shape)
        return of_theta, *(torch.view_as_real(x).flatten(-2) for x in pairs)


def _pairs(x: Tensor) -> Tensor:
    return torch.view_as_complex(torch.unflatten(x, -1, (-1, 2)).contiguous())


@full_precision
def angle_sums(angle: Tensor, dt: Tensor) -> Tensor:
    """Return theta at all positions in float64: ``(B, L, H or 1, angles)``, ``(B, L, H)`` to ``(B, L, H, angles)``."""
    # multiply by pi after the sum: the error of pi in float32 would grow with the sum
    return _half_turns(angle, dt).double().cumsum(1) * math.pi


def _half_turns(angle: Tensor, dt: Tensor) -> Tensor:
    """Return the increase of theta at each position, in units of pi."""
    return angle.tanh() * dt.unsqueeze(-1)


@full_precision
def trapezoid(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, dt: Tensor, lam: Tensor, D: Tensor, *before: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute Mamba-3's recurrence in S (module docstring) at all positions.

    For a later query, a position has the weight ``lam dt`` of its own plus ``(1 - lam) dt`` of the next position, and
    decays as in :func:`lrtasks.models.ops.decay.scalar_decay`. For its own query, it has the weight ``lam dt`` alone.
    q and k are rotated, ``(B, L, R, H, N)``; v is ``(B, L, R, H, P)``; g (log alpha), dt (0 at padding) and lam are
    ``(B, L, H)``; D is ``(H,)``. The result is S^T q + D v, shaped as v, and S after the last position,
    ``(B, H, N, P)``. ``before`` is S, k and v of the position before the first; nothing for zeros.
    """
    rank = q.shape[2]
    own = lam * dt
    seen_later = own + F.pad(((1 - lam) * dt)[:, 1:], (0, 0, 0, 1))
    # the R inputs of a position become R successive steps; only the first step decays the state
    steps = F.pad(g.unsqueeze(2), (0, 0, 0, rank - 1)).flatten(1, 2)
    weighted = v * seen_later[:, :, None, :, None]
    start: Tensor | None = None
    if before:
        S, *written = before
        start = S + ((1 - lam) * dt)[:, 0, :, None, None] * torch.einsum("brhn,brhp->bhnp", *written)
    y, S = scalar_decay(q.flatten(1, 2), k.flatten(1, 2), weighted.flatten(1, 2), steps, start)
    y = torch.unflatten(y, 1, (-1, rank))
    # y already contains the inputs at the query's own position (up to its own step), but with the weight for later
    # queries; correct their weights
    seen = torch.ones(rank, rank, dtype=q.dtype, device=q.device).tril()
    share = own[..., None, None] - seen * seen_later[..., None, None]
    if rank == 1:  # faster than the products below
        weight = (q * k).sum(-1, keepdim=True) * share.squeeze(-1).unsqueeze(2) + D.unsqueeze(-1)
        return torch.addcmul(y, weight, v), S
    own_step = D[:, None, None] * torch.eye(rank, dtype=D.dtype, device=D.device)
    scores = torch.einsum("blrhn,blshn->blhrs", q, k) * share + own_step
    return y + torch.einsum("blhrs,blshp->blrhp", scores, v), S


class Mamba3Layer(RecurrentLayer):
    """The mixer of :class:`Mamba3`. State: :class:`Mamba3State`."""

    out_name = "out_proj"

    def __init__(self, config: Mamba3) -> None:
        super().__init__()
        d_model, d_inner, d_state = config.d_model, config.expand * config.d_model, config.d_state
        heads, rank = config.heads, config.rank
        self.config, self.heads, self.rank = config, heads, rank
        self.angles = int(d_state * config.rope_fraction + 1e-9) // 2
        states = config.groups * d_state * rank
        self.sizes = [d_inner, d_inner, states, states, heads, heads, heads, self.angles]
        self.in_proj = nn.Linear(d_model, sum(self.sizes), bias=False)
        self.dt_bias = nn.Parameter(step_bias(heads))
        self.B_bias, self.C_bias = (nn.Parameter(torch.ones(heads, rank, d_state)) for _ in range(2))
        self.B_norm, self.C_norm = GatedRMSNorm(d_state), GatedRMSNorm(d_state)
        self.D = nn.Parameter(torch.ones(heads))
        if rank > 1:
            for name, start in (("mimo_x", 1 / rank), ("mimo_z", 1.0), ("mimo_o", 1 / rank)):
                self.register_parameter(name, nn.Parameter(torch.full((heads, rank, config.head_dim), start)))
        self.norm = GatedRMSNorm(d_inner, groups=heads) if config.outproj_norm else None
        self.out_proj = nn.Linear(d_inner, d_model, bias=False)

    def parameter_options(self) -> dict[str, dict[str, float]]:
        names = ("B_bias", "C_bias", *(("mimo_x", "mimo_z", "mimo_o") if self.rank > 1 else ()))
        return {name: {"weight_decay": 0.0} for name in names}

    def initial_state(self, batch: int) -> Mamba3State:
        H, N, P, R = self.heads, self.config.d_state, self.config.head_dim, self.rank
        shapes = ((H, self.angles), (H, N, P), (R, H, N), (H, P))
        return Mamba3State(*(state_zeros(self.D, batch, *shape) for shape in shapes))

    def run(self, x: Tensor, state: Mamba3State, mask: Tensor | None = None) -> tuple[Tensor, Mamba3State]:
        z, last, k, q, g, dt, lam, angle = self._inputs(hide(x, mask))
        g, dt = hide(g, mask), hide(dt, mask)
        if not self.training:
            self.show(log_decay=g, present_share=lam, half_turns=_half_turns(angle.unsqueeze(2), dt))
        theta = state.theta.unsqueeze(1) + angle_sums(angle.unsqueeze(2), dt)
        q, k = rotated(theta.unsqueeze(2), q, k)
        v, before = (self._ranked(value, "mimo_x") for value in (last, state.v))
        y, S = trapezoid(q, k, v, g, dt, lam, self.D, state.S, state.k, before)
        theta = torch.remainder(theta[:, -1], 2 * math.pi).to(S.dtype)
        return self._finish(y, z), Mamba3State(theta, S, k[:, -1], last[:, -1].to(S.dtype))

    def _inputs(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return z, x ``(..., H, P)``; k, q ``(..., R, H, N)``, not rotated; g, dt, lam ``(..., H)``; raw angles."""
        z, v, B, C, dt, A, lam, angle = torch.split(self.in_proj(x), self.sizes, -1)
        z, v = (torch.unflatten(value, -1, (self.heads, -1)) for value in (z, v))
        groups = self.config.groups
        # by group, and then by head of the group
        k, q = (
            norm(torch.unflatten(value, -1, (self.rank, groups, 1, -1)))
            + torch.unflatten(bias.transpose(0, 1), 1, (groups, -1))
            for norm, value, bias in ((self.B_norm, B, self.B_bias), (self.C_norm, C, self.C_bias))
        )
        k, q = k.flatten(-3, -2), q.flatten(-3, -2)
        dt, A = step_size(dt, self.dt_bias), at_least_float32(A)
        softplus = self.config.a_activation == "softplus"
        rate = F.softplus(A) if softplus else torch.where(A >= 0, 1 + A, 1 / (1 - A.clamp_max(0)))
        return z, v, k, q, -rate.clamp_min(SLOWEST) * dt, dt, lam.sigmoid(), angle

    def _ranked(self, x: Tensor, name: str) -> Tensor:
        """Map ``(..., H, P)`` to ``(..., R, H, P)``, multiplied by the parameter called ``name`` if R > 1."""
        x = x.unsqueeze(-3)
        return x if self.rank == 1 else x * getattr(self, name).transpose(0, 1)

    def _finish(self, y: Tensor, z: Tensor) -> Tensor:
        """Compute the layer's output from y ``(..., R, H, P)`` and z ``(..., H, P)``."""
        z = self._ranked(z, "mimo_z")
        if self.norm is None:
            y = y * F.silu(z)
        else:
            y = torch.unflatten(self.norm(y.flatten(-2), z.flatten(-2)), -1, (self.heads, -1))
        y = y.squeeze(-3) if self.rank == 1 else (y * self.mimo_o.transpose(0, 1)).sum(-3)  # type: ignore[operator]
        return self.out_proj(y.flatten(-2).to(z.dtype))


@registry.register("mamba3")
@dataclass(frozen=True)
class Mamba3(HeadedMamba):
    """Mamba-3: like Mamba-2, but with complex states that rotate by input-dependent angles and no convolution.

    Source: Lahoti et al. (arXiv:2603.15569).
    """

    layer_class = Mamba3Layer
    presets: ClassVar[Presets] = {
        "small": SMALL,
        "recall-16k": {**SMALL, "d_state": 14},
        "recall-64k": {**SMALL, "d_state": 58},
        "state-tracking": {**TRACKING, "head_dim": 32, "rope_fraction": 1.0},
        "paper": {**PAPER, "d_state": 64, "head_dim": 64},
        "paper/mqar": {**PAPER_MQAR, "d_state": 16, "head_dim": 64},
    }

    rank: int = parameter(1, "inputs and outputs R per head; above 1 the model is called MIMO", at_least=1, at_most=64)
    rope_fraction: float = parameter(0.5, "fraction of the state features with rotation", at_least=0, at_most=1)
    outproj_norm: bool = parameter(False, "normalise each head's output before the gate")
    a_activation: Literal["heavy-tail", "softplus"] = parameter("heavy-tail", "function that makes rates positive")
