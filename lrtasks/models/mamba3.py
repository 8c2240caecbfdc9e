"""Mamba-3 (Lahoti et al., arXiv:2603.15569): SSD with rotated keys, a trapezoidal step and, optionally, several inputs.

    z, x, B, C, ...   parts of a linear map of the input; there is no convolution
    N, P, H, R        states per channel, channels per head, heads, rank (inputs and outputs per head, 1 for SISO)
    dt, lam           step softplus(. + dt_bias) and share of the present sigmoid(.) of each head
    alpha             exp(A dt), A = -max(f(.), 1e-4) with f(x) = 1 + x for x >= 0 and 1 / (1 - x) below, or softplus
    theta             angles, theta + pi tanh(.) dt: the rotation that makes the transitions complex
    k, q              B and C after rms, plus a bias of each head, rotated by theta in pairs (2j, 2j+1)
    S <- alpha S + (1 - lam) dt alpha k' v'^T + lam dt k v^T     (k', v' of the position before), v = x
    y                 S^T q + D v; then y silu(z), or rms over each head first with ``outproj_norm``

With R > 1 the values and gates are v_r = x mimo_x_r and z_r = z mimo_z_r, S takes the sum over r, and the gated outputs
are summed with the weights mimo_o_r. Start and names as in state-spaces/mamba, whose kernels for R > 1 pair the
features (j, j + N/2); here, as in its step by step reference, the pairs are always neighbours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.config import Presets, parameter
from lrtasks.models import registry
from lrtasks.models.ops.chunked import full_precision, hide
from lrtasks.models.ops.head_norms import GatedRMSNorm
from lrtasks.models.ops.layers import zero_padding
from lrtasks.models.ops.scalar_decay import scalar_decay
from lrtasks.models.recurrent import PAPER, PAPER_MQAR, SMALL, TRACKING, RecurrentConfig, state_zeros, step_bias

SLOWEST = 1e-4
"""Least decay rate -A."""


class Mamba3State(NamedTuple):
    """Angles ``(batch, H, angles)``, S ``(batch, H, N, P)``, the last k ``(batch, R, H, N)`` and x ``(batch, H, P)``.

    The angles stay below 2 pi.
    """

    theta: Tensor
    S: Tensor
    k: Tensor
    v: Tensor


def rotated(x: Tensor, theta: Tensor) -> Tensor:
    """Turn the first pairs of neighbouring features of ``(..., N)`` by ``(..., angles)``, the others not at all."""
    angles = theta.shape[-1]
    pairs, rest = torch.unflatten(x[..., : 2 * angles], -1, (angles, 2)), x[..., 2 * angles :]
    cos, sin = theta.cos().to(x.dtype), theta.sin().to(x.dtype)
    a, b = pairs.unbind(-1)
    return torch.cat((torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2), rest), -1)


@full_precision
def angle_sums(angle: Tensor, dt: Tensor) -> Tensor:
    """theta at all positions, in float64: ``(B, L, H or 1, angles)`` and ``(B, L, H)`` to ``(B, L, H, angles)``."""
    # times pi after the sum: the error of pi in float32 would grow with the sum
    return _half_turns(angle, dt).double().cumsum(1) * math.pi


def _half_turns(angle: Tensor, dt: Tensor) -> Tensor:
    """By how much theta grows, in units of pi."""
    return angle.tanh() * dt.unsqueeze(-1)


@full_precision
def trapezoid(q: Tensor, k: Tensor, v: Tensor, g: Tensor, dt: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence in S of the module docstring at all positions, without D.

    A position seen from a later one weighs ``lam dt`` of its own and ``(1 - lam) dt`` of the next position, and decays
    as in :func:`lrtasks.models.ops.scalar_decay.scalar_decay`; seen from itself it weighs ``lam dt`` alone.

    Args:
        q: rotated queries, ``(B, L, R, H, N)``.
        k: rotated keys, shaped as q.
        v: values, ``(B, L, R, H, P)``.
        g: log decay, log alpha, ``(B, L, H)``.
        dt: steps, ``(B, L, H)``; 0 at padding.
        lam: share of the present, ``(B, L, H)``.

    Returns:
        S^T q, ``(B, L, R, H, P)``, and S after the last position, ``(B, H, N, P)``.
    """
    rank = q.shape[2]
    own = lam * dt
    seen_later = own + F.pad(((1 - lam) * dt)[:, 1:], (0, 0, 0, 1))
    # the inputs of one position as steps in a row, of which the first decays
    steps = F.pad(g.unsqueeze(2), (0, 0, 0, rank - 1)).flatten(1, 2)
    weighted = k * seen_later[:, :, None, :, None]
    y, S = scalar_decay(q.flatten(1, 2), weighted.flatten(1, 2), v.flatten(1, 2), steps)
    y = torch.unflatten(y, 1, (-1, rank))
    # of the own position a step has seen itself and those before it in the row, with the weight for later ones
    seen = torch.ones(rank, rank, dtype=q.dtype, device=q.device).tril()
    share = own[..., None, None] - seen * seen_later[..., None, None]
    scores = torch.einsum("blrhn,blshn->blhrs", q, k) * share
    return y + torch.einsum("blhrs,blshp->blrhp", scores, v), S


class Mamba3Layer(nn.Module):
    """The layer of the module docstring on ``(batch, length, d_model)``.

    Args:
        d_model: width.
        d_inner: channels of x and z.
        d_state: N.
        head_dim: P, a divisor of ``d_inner``.
        groups: of heads that share B and C.
        rank: R.
        rope_fraction: share of the N features that turn.
        outproj_norm: normalise each head's output before the gate.
        a_activation: f of the decay rate.
    """

    def __init__(
        self,
        d_model: int,
        d_inner: int,
        d_state: int,
        head_dim: int,
        *,
        groups: int = 1,
        rank: int = 1,
        rope_fraction: float = 0.5,
        outproj_norm: bool = False,
        a_activation: Literal["heavy-tail", "softplus"] = "heavy-tail",
    ) -> None:
        super().__init__()
        heads = d_inner // head_dim
        self.heads, self.head_dim, self.d_state, self.groups, self.rank = heads, head_dim, d_state, groups, rank
        self.angles, self.a_activation = int(d_state * rope_fraction) // 2, a_activation
        states = groups * d_state * rank
        self.sizes = [d_inner, d_inner, states, states, heads, heads, heads, self.angles]
        self.in_proj = nn.Linear(d_model, sum(self.sizes), bias=False)
        self.dt_bias = nn.Parameter(step_bias(heads))
        self.B_bias, self.C_bias = (nn.Parameter(torch.ones(heads, rank, d_state)) for _ in range(2))
        self.B_norm, self.C_norm = GatedRMSNorm(d_state), GatedRMSNorm(d_state)
        self.D = nn.Parameter(torch.ones(heads))
        if rank > 1:
            for name, start in (("mimo_x", 1 / rank), ("mimo_z", 1.0), ("mimo_o", 1 / rank)):
                self.register_parameter(name, nn.Parameter(torch.full((heads, rank, head_dim), start)))
        self.norm = GatedRMSNorm(d_inner, groups=heads) if outproj_norm else None
        self.out_proj = nn.Linear(d_inner, d_model, bias=False)

    def parameter_options(self) -> dict[str, dict[str, float]]:
        names = ("B_bias", "C_bias", *(("mimo_x", "mimo_z", "mimo_o") if self.rank > 1 else ()))
        return {name: {"weight_decay": 0.0} for name in names}

    @property
    def out(self) -> nn.Linear:
        """The map back to the residual stream."""
        return self.out_proj

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix; ``mask`` is ``(batch, length)`` bool, False at padding, or ``None``."""
        z, v, k, q, g, dt, lam, angle = self._inputs(zero_padding(x, mask))
        g, dt = hide(g, mask), hide(dt, mask)
        theta = angle_sums(angle.unsqueeze(2), dt).unsqueeze(2)
        v = self._ranked(v, "mimo_x")
        y, _ = trapezoid(rotated(q, theta), rotated(k, theta), v, g, dt, lam)
        return self._finish(y, v, z)

    def initial_state(self, batch: int) -> Mamba3State:
        """Nothing stored."""
        H, N, P, R = self.heads, self.d_state, self.head_dim, self.rank
        shapes = ((H, self.angles), (H, N, P), (R, H, N), (H, P))
        return Mamba3State(*(state_zeros(self.D, batch, *shape) for shape in shapes))

    def step(self, x: Tensor, state: Mamba3State) -> tuple[Tensor, Mamba3State]:
        """One position ``(batch, d_model)``; equals :meth:`forward`."""
        z, plain, k, q, g, dt, lam, angle = self._inputs(x)
        v, before = (self._ranked(value, "mimo_x") for value in (plain, state.v))
        y, theta, S, k = trapezoid_step(q, k, v, g, dt, lam, angle, state.theta, state.S, state.k, before)
        return self._finish(y, v, z), Mamba3State(theta, S, k, plain.to(S.dtype))

    def _inputs(self, x: Tensor) -> tuple[Tensor, ...]:
        """z, x ``(..., H, P)``; k, q ``(..., R, H, N)``, not rotated; g, dt, lam ``(..., H)``; the turns."""
        z, v, B, C, dt, A, lam, angle = torch.split(self.in_proj(x), self.sizes, -1)
        z, v = (torch.unflatten(value, -1, (self.heads, -1)) for value in (z, v))
        shared = self.heads // self.groups
        k, q = (
            norm(torch.unflatten(value, -1, (self.rank, self.groups, -1))).repeat_interleave(shared, -2)
            + bias.transpose(0, 1)
            for norm, value, bias in ((self.B_norm, B, self.B_bias), (self.C_norm, C, self.C_bias))
        )
        dt, g = _discretised(dt, self.dt_bias, A, self.a_activation)
        return z, v, k, q, g, dt, lam.sigmoid(), angle

    def _ranked(self, x: Tensor, name: str) -> Tensor:
        """``(..., H, P)`` to ``(..., R, H, P)``: times the vectors called ``name`` if R > 1."""
        x = x.unsqueeze(-3)
        return x if self.rank == 1 else x * getattr(self, name).transpose(0, 1)

    def _finish(self, y: Tensor, v: Tensor, z: Tensor) -> Tensor:
        """From S^T q and v ``(..., R, H, P)`` and z ``(..., H, P)``."""
        y, z = y + self.D.unsqueeze(-1) * v, self._ranked(z, "mimo_z")
        if self.norm is None:
            y = y * F.silu(z)
        else:
            y = torch.unflatten(self.norm(y.flatten(-2), z.flatten(-2)), -1, (self.heads, -1))
        y = y.squeeze(-3) if self.rank == 1 else (y * self.mimo_o.transpose(0, 1)).sum(-3)  # type: ignore[operator]
        out: Tensor = self.out_proj(y.flatten(-2).to(z.dtype))
        return out


@full_precision
def trapezoid_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    dt: Tensor,
    lam: Tensor,
    angle: Tensor,
    theta: Tensor,
    S: Tensor,
    k_before: Tensor,
    v_before: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One position of :func:`trapezoid`, with q and k not rotated yet; gives S^T q, the angles, S, and k rotated."""
    theta = torch.remainder(theta + math.pi * _half_turns(angle.unsqueeze(1), dt), 2 * math.pi)
    q, k = (rotated(value, theta.unsqueeze(1)) for value in (q, k))
    alpha, dt, lam = (value[..., None, None] for value in (g.exp(), dt, lam))
    S = alpha * (S + (1 - lam) * dt * _outer(k_before, v_before)) + lam * dt * _outer(k, v)
    return torch.einsum("brhn,bhnp->brhp", q, S), theta, S, k


def _outer(k: Tensor, v: Tensor) -> Tensor:
    """Sum over the rank of k v^T, ``(batch, H, N, P)``."""
    return torch.einsum("brhn,brhp->bhnp", k, v)


@full_precision
def _discretised(raw: Tensor, bias: Tensor, A: Tensor, activation: str) -> tuple[Tensor, Tensor]:
    """dt and log alpha."""
    dt = F.softplus(raw + bias)
    rate = F.softplus(A) if activation == "softplus" else _heavy_tail(A)
    return dt, -rate.clamp_min(SLOWEST) * dt


def _heavy_tail(x: Tensor) -> Tensor:
    return torch.where(x >= 0, 1 + x, 1 / (1 - x.clamp_max(0)))


@registry.register("mamba3")
@dataclass(frozen=True)
class Mamba3(RecurrentConfig):
    """Mamba-3: as Mamba-2, with complex states that rotate by input-dependent angles, and no convolution.

    Source: Lahoti et al. (arXiv:2603.15569).
    """

    presets: ClassVar[Presets] = {
        "small": SMALL,
        "recall-16k": {**SMALL, "d_state": 14},
        "recall-64k": {**SMALL, "d_state": 58},
        "state-tracking": {**TRACKING, "head_dim": 32, "rope_fraction": 1.0},
        "paper": {**PAPER, "d_state": 64, "head_dim": 64},
        "paper/mqar": {**PAPER_MQAR, "d_state": 16, "head_dim": 64},
    }

    mlp: bool = parameter(False, "a gated feed-forward map after each mixer")
    expand: int = parameter(2, "inner channels, in d_model", at_least=1, at_most=64)
    d_state: int = parameter(32, "states N per channel", at_least=1, at_most=1 << 16)
    head_dim: int = parameter(16, "channels P of a head", at_least=1, at_most=65536)
    groups: int = parameter(1, "groups of heads that share B and C", at_least=1, at_most=1024)
    rank: int = parameter(1, "inputs and outputs R per head; more than 1 is called MIMO", at_least=1, at_most=64)
    rope_fraction: float = parameter(0.5, "share of the states' features that turn", at_least=0, at_most=1)
    outproj_norm: bool = parameter(False, "normalise each head's output before the gate")
    a_activation: Literal["heavy-tail", "softplus"] = parameter(
        "heavy-tail", "function that makes a decay rate positive"
    )

    def check(self) -> None:
        heads = self.divided(self.expand * self.d_model, self.head_dim, "head_dim")
        self.divided(heads, self.groups, "groups")

    def layer(self, index: int) -> Mamba3Layer:
        return Mamba3Layer(
            self.d_model,
            self.expand * self.d_model,
            self.d_state,
            self.head_dim,
            groups=self.groups,
            rank=self.rank,
            rope_fraction=self.rope_fraction,
            outproj_norm=self.outproj_norm,
            a_activation=self.a_activation,
        )
