"""xLSTM (Beck et al., arXiv:2405.04517, sections 2.2 and 2.3 and appendix A): matrix memory and scalar memory.

mLSTM, the layer of the matrix memory, parallel over positions:

    u, z      halves of a linear map of the input, each ``inner`` wide;  c = silu(conv(u))
    q, k, v   block-diagonal maps (blocks of 4) of c, c and u; the keys are scaled by D^(-1/2)
    i, f      gates of each head, linear maps of [q k v];  lf = logsigmoid(f)
    C         exp(lf) C + exp(i) k v^T;  n likewise, with 1 in place of v
    h         C^T q / max(|n^T q|, 1)
    output    linear((norm(h) + skip * c) * silu(z)), where norm normalises each head

:func:`mlstm` carries C times exp(-m), where m = max(lf + m, i) starts at minus infinity. The denominator then is
``max(|n^T q|, exp(-m)) + 1e-6``. The normaliser n is stored as an additional column of C, for which v is 1.

sLSTM, the layer of the scalar memory, whose slots also read h of the previous position through R, a map of each head:

    i, f      block-diagonal maps (one block per head) of silu(conv(x)), or of x without a convolution; plus R h
    z, o      block-diagonal maps of x; plus R h
    m         max(logsigmoid(f) + m, i);  i' = exp(i - m);  f' = exp(logsigmoid(f) + m_before - m)
    c, n      f' c + i' tanh(z), and f' n + i'
    h         sigmoid(o) c / n, output norm(h)

So :func:`slstm` cannot compute positions in parallel. It computes the contributions of the input, including the biases,
before the loop, and the gradient of R after it. m only keeps the exponentials in range; h does not depend on m, so no
gradient passes through m.

Initial weights are as in the xlstm package. In its sLSTM, the maps called ``fgate`` and ``igate`` feed the slots i and
f, in this order; here each map has the name of its slot.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lrtasks.config import Presets, parameter
from lrtasks.errors import UsageError
from lrtasks.models import registry
from lrtasks.models.base import PAPER, PAPER_MQAR, SMALL, TRACKING
from lrtasks.models.ops.chunked import (
    decay_matrix,
    even_chunk,
    from_chunks,
    over_positions,
    rows,
    skipping_padding,
    to_chunks,
    to_end,
)
from lrtasks.models.ops.layers import NoConv, ShortConv, at_least_float32, full_precision, hide
from lrtasks.models.ops.scans import carry
from lrtasks.models.recurrent import RecurrentConfig, RecurrentLayer, state_zeros

BLOCK = 4
"""Width of the blocks in the maps to q, k and v."""
WIDE = 16
"""Largest width of joined blocks."""
CHUNK = 32
EPS = 1e-6
NOTHING = -1e9
"""Log input gate of positions that write nothing; finite, so that differences are finite."""
START = -1e30
"""m before the first position: minus infinity, but finite for the same reason."""

State = tuple[Tensor, Tensor]
"""State of the matrix memory: exp(-m) C, with the normaliser as last column, ``(B, H, D, V + 1)``; m ``(B, H)``."""


def mlstm_start(q: Tensor, v: Tensor) -> State:
    """Return the state before the first position for q ``(B, ..., H, D)`` and v ``(B, ..., H, V)``."""
    shape = (q.shape[0], q.shape[-2])
    return q.new_zeros(*shape, q.shape[-1], v.shape[-1] + 1), q.new_full(shape, START)


@full_precision
def mlstm(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    f: Tensor,
    state: State | None = None,
    mask: Tensor | None = None,
    *,
    plain: bool = False,
) -> tuple[Tensor, State]:
    """Compute all positions of the matrix memory chunk by chunk.

    Args:
        q: queries, ``(B, L, H, D)``.
        k: keys, shaped as q; this function scales them by D^(-1/2).
        v: values, ``(B, L, H, V)``.
        i: input gate before its exponential, ``(B, L, H)``.
        f: forget gate before its sigmoid, ``(B, L, H)``.
        state: state before the first position; None for an empty memory.
        mask: ``(B, L)``, False at padding, which writes nothing and decays nothing.
        plain: compute by the definition, position by position; a single position is always computed this way.

    Returns:
        h ``(B, L, H, V)`` and the state after the last position, in float32 at least.
    """
    length = q.shape[1]
    C, m = state or mlstm_start(q, v)
    lf, i, k = hide(F.logsigmoid(f), mask), hide(i, mask, NOTHING), hide(k, mask)
    scale = 1 / math.sqrt(k.shape[-1])
    if plain or length == 1:
        return over_positions(_mlstm_step, (q, k * scale, F.pad(v, (0, 1), value=1.0), i, lf), (C, m))
    c = even_chunk(length, CHUNK)
    q, k, v = to_chunks(q, c), to_chunks(k, c), to_chunks(F.pad(v, (0, 1), value=1.0), c)
    # in float64, (B, H, n, c), because sums are subtracted
    lf, i = to_chunks(lf.double(), c), to_chunks(i.double(), c, NOTHING)
    G, total = lf.cumsum(-1), lf.flatten(2).cumsum(-1)
    start = m.double().unsqueeze(-1)
    m_all = total + torch.maximum((i.flatten(2) - total).cummax(-1).values, start)
    m_all = torch.unflatten(m_all, -1, (-1, c))
    m_out = m_all[..., -1:]
    m_in = torch.cat((start.unsqueeze(-1), m_out[..., :-1, :]), -2)
    i = i + math.log(scale)

    scores = decay_matrix(G, q.dtype, -m_all, i, q @ k.mT)
    inherited = (G + m_in - m_all).exp().to(q.dtype)
    written = (to_end(G) + i - m_out).exp().to(q.dtype)
    kept = (G[..., -1:] + m_in - m_out).exp().to(q.dtype)
    inside, C = carry(kept.unsqueeze(-1), (k * written.unsqueeze(-1)).mT @ v, C)
    sums = scores @ v + (q @ inside) * inherited.unsqueeze(-1)
    return from_chunks(_normalised(sums, m_all.to(q.dtype)), length), (C, m_out[:, :, -1, 0].to(q.dtype))


def _mlstm_step(q: Tensor, k: Tensor, v: Tensor, i: Tensor, lf: Tensor, state: State) -> tuple[Tensor, State]:
    """Compute one position; k is already scaled, and the last entry of v is 1."""
    C, m = state
    m_new = torch.maximum(lf + m, i)
    kept, written = (lf + m - m_new).exp(), (i - m_new).exp()
    C = C * kept[..., None, None] + (k * written.unsqueeze(-1)).unsqueeze(-1) * v.unsqueeze(-2)
    return _normalised((q.unsqueeze(-2) @ C).squeeze(-2), m_new), (C, m_new)


def _normalised(sums: Tensor, m: Tensor) -> Tensor:
    """Divide by the last column; ``exp(-m)`` is kept finite, so that its gradient is finite."""
    bound = math.log(torch.finfo(sums.dtype).max) * 0.9
    floor = (-m.clamp_min(-bound)).exp()
    sums, normaliser = torch.split(sums, [sums.shape[-1] - 1, 1], -1)
    # the gradient of a product has fewer operations than that of a quotient
    return sums * (torch.maximum(normaliser.abs(), floor.unsqueeze(-1)) + EPS).reciprocal()


class SLSTMState(NamedTuple):
    """State of the scalar memory: h, c, n and m, each ``(B, H, D)``."""

    h: Tensor
    c: Tensor
    n: Tensor
    m: Tensor


def slstm_start(x: Tensor) -> SLSTMState:
    """Return the state before the first position, for slots ``(B, ..., H, 4, D)``."""
    zero = x.new_zeros(x.shape[0], x.shape[-3], x.shape[-1])
    return SLSTMState(zero, zero, zero, torch.full_like(zero, START))


@full_precision
def slstm_step(x: Tensor, R: Tensor, state: SLSTMState) -> tuple[Tensor, SLSTMState]:
    """Compute one position from x ``(B, H, 4, D)`` and R as in :func:`slstm`; return h ``(B, H, D)`` and the state."""
    h, c, n, m = state
    i, f, z, o = (x + torch.einsum("bhd,hsed->bhse", h, R)).unbind(2)
    lf = F.logsigmoid(f)
    m_new = torch.maximum(lf + m, i)
    write, keep = (i - m_new).exp(), (lf + m - m_new).exp()
    c, n = keep * c + write * z.tanh(), keep * n + write
    h = o.sigmoid() * c / n
    return h, SLSTMState(h, c, n, m_new)


@full_precision
def slstm(
    x_if: Tensor, x_zo: Tensor, bias: Tensor, R: Tensor, mask: Tensor | None = None, *, plain: bool = False
) -> Tensor:
    """Compute all positions of the scalar memory, one after the other.

    Args:
        x_if: contribution of the input to the slots i and f, ``(B, L, H, 2, D)``. It is not copied if it is a view of
            ``(H, B, L, 2, D)``.
        x_zo: contribution of the input to the slots z and o, like ``x_if``.
        bias: ``(H, 4, D)``.
        R: recurrent maps of each head and slot, ``(H, 4, D out, D in)``.
        mask: ``(B, L)``, False at padding, which is skipped; h is 0 there.
        plain: compute by the definition.

    Returns:
        h ``(B, L, H, D)``, in float32 at least.
    """

    def run(x_if: Tensor, x_zo: Tensor) -> Tensor:
        if plain:
            x = torch.cat((x_if, x_zo), -2) + bias
            return over_positions(lambda x_t, state: slstm_step(x_t, R, state), (x,), slstm_start(x))[0]
        inputs = (x.permute(2, 0, 1, 3, 4).flatten(3) for x in (x_if, x_zo))
        h: Tensor = _ScalarMemory.apply(*inputs, bias.flatten(1), R.flatten(1, 2).mT)  # type: ignore[no-untyped-call]
        return h.permute(1, 2, 0, 3)

    if mask is None:
        return run(x_if, x_zo)
    return skipping_padding(lambda x: run(*x.chunk(2, -2)), torch.cat((x_if, x_zo), -2), mask)


class _ScalarMemory(torch.autograd.Function):
    """The loop of :func:`slstm`, on ``x_if`` and ``x_zo`` ``(H, B, L, 2 D)``, bias ``(H, 4 D)``, R ``(H, D, 4 D)``."""

    @staticmethod
    def forward(ctx: Any, x_if: Tensor, x_zo: Tensor, bias: Tensor, R: Tensor) -> Tensor:
        from lrtasks.models.ops import loops  # imports numba

        heads, batch, length, width = x_if.shape
        width //= 2
        slots = x_if.new_empty(heads, batch, length, 4 * width)
        keep = x_if.new_empty(heads, batch, length, width)  # f'
        pairs = x_if.new_zeros(heads, batch, length + 1, 2, width)  # c and n, from before the first position
        h = x_if.new_zeros(heads, batch, length + 1, width)
        m = x_if.new_full((heads, batch, width), START)
        loop = partial(loops.run_loop, loops.slstm_forward) if loops.slstm_usable(m) else _slstm_forward
        loop(x_if.contiguous(), x_zo.contiguous(), bias.contiguous(), R.contiguous(), slots, keep, pairs, h, m)
        ctx.save_for_backward(slots, keep, pairs, h, R)
        return h[:, :, 1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, ...]:
        from lrtasks.models.ops import loops

        slots, keep, pairs, h, R = ctx.saved_tensors
        d_slots = torch.empty_like(slots)
        d_h, d_pair = F.pad(given, (0, 0, 1, 0)), torch.zeros_like(pairs[:, :, 0])
        loop = partial(loops.run_loop, loops.slstm_backward) if loops.slstm_usable(d_pair[:, :, 0]) else _slstm_backward
        loop(slots, keep, pairs, R.mT.contiguous(), d_h.contiguous(), d_pair, d_slots)
        of_if, of_zo = d_slots.chunk(2, -1)
        return of_if, of_zo, d_slots.sum((1, 2)), (h[:, :, :-1].mT @ d_slots).sum(1)


def _slstm_forward(
    x_if: Tensor,
    x_zo: Tensor,
    bias: Tensor,
    R: Tensor,
    slots: Tensor,
    keep: Tensor,
    pairs: Tensor,
    h: Tensor,
    m: Tensor,
) -> None:
    """Do what :func:`~lrtasks.models.ops.loops.slstm_forward` does, by operations of torch."""
    torch.add(torch.cat((x_if, x_zo), -1), bias[:, None, None], out=slots)
    pairs = pairs.movedim(3, 0)
    written = torch.ones_like(pairs[:, :, :, 0])  # tanh(z) and 1
    by_position = (slots, keep, h[:, :, :-1], h[:, :, 1:])
    both = (pairs[:, :, :, :-1], pairs[:, :, :, 1:])
    inputs = (*(x.movedim(2, 0) for x in by_position), *(x.movedim(3, 0) for x in both))
    for slots_t, keep_t, before_h, h_t, before, pair in rows(*inputs):
        i, f, z, o = slots_t.baddbmm_(before_h, R).chunk(4, -1)
        torch.add(F.logsigmoid(f), m, out=keep_t)
        m = torch.maximum(i, keep_t)
        i.sub_(m).exp_()
        keep_t.sub_(m).exp_()
        written[0] = z.tanh_()
        torch.addcmul(keep_t * before, i, written, out=pair)
        c, n = pair.unbind()
        torch.div(o.sigmoid_() * c, n, out=h_t)
    slots.chunk(4, -1)[1].neg_().sigmoid_()


def _slstm_backward(
    slots: Tensor, keep: Tensor, pairs: Tensor, RT: Tensor, d_h: Tensor, d_pair: Tensor, d_slots: Tensor
) -> None:
    """Do what :func:`~lrtasks.models.ops.loops.slstm_backward` does, by operations of torch."""
    slots, keep, pairs, d_h, d_slots = (x.movedim(2, 0) for x in (slots, keep, pairs, d_h, d_slots))
    d_pair = d_pair.movedim(2, 0)
    write, forget, z, o = slots.chunk(4, -1)
    before_c, before_n = pairs[:-1].unbind(3)
    c, n = pairs[1:].unbind(3)
    zero = torch.zeros_like(z)
    # factors from the gradient of h to the gradients of c and n, then from those of c, n and h to those of the slots
    by_h = torch.stack((o / n, -o * c / n.square()), 1)
    by_c = torch.stack((z * write, before_c * keep * forget, write * (1 - z.square()), zero), -2)
    by_n = torch.stack((write, before_n * keep * forget, zero, zero), -2)
    by_own = torch.stack((zero, zero, zero, c / n * o * (1 - o)), -2)
    unflat = torch.unflatten(d_slots, -1, (4, -1))
    inputs = (d_h[1:], d_h[:-1], by_h, by_c, by_n, by_own, keep, unflat, d_slots)
    for given, before, by_h_t, by_c_t, by_n_t, by_own_t, keep_t, unflat_t, d_slots_t in rows(*inputs, backwards=True):
        d_pair.addcmul_(by_h_t, given)
        d_c, d_n = d_pair.unsqueeze(-2).unbind()
        torch.mul(by_c_t, d_c, out=unflat_t)
        unflat_t.addcmul_(by_n_t, d_n).addcmul_(by_own_t, given.unsqueeze(-2))
        before.baddbmm_(d_slots_t, RT)
        d_pair.mul_(keep_t)


class BlockLinear(nn.Module):
    """A linear map without bias whose matrix has ``blocks`` diagonal blocks of ``width``, drawn from N(0, std²)."""

    def __init__(self, blocks: int, width: int, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(blocks, width, width) * std)

    def forward(self, x: Tensor) -> Tensor:
        blocks, width, _ = self.weight.shape
        # products of narrow blocks are slow: put several blocks on the diagonal of a larger one
        count = math.gcd(blocks, max(1, WIDE // width))
        eye = torch.eye(count, dtype=self.weight.dtype, device=self.weight.device)
        wide = (
            torch.einsum("ngoi,gh->ngohi", torch.unflatten(self.weight, 0, (-1, count)), eye).flatten(3).flatten(1, 2)
        )
        return torch.einsum("...ni,noi->...no", torch.unflatten(x, -1, wide.shape[:2]), wide).flatten(-2)


class HeadNorm(nn.Module):
    """Layer norm over each head, times ``1 + weight``, without bias: ``(..., H, D)`` to ``(..., H D)``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        normed = F.layer_norm(at_least_float32(x), x.shape[-1:], eps=1e-5).flatten(-2)
        return (normed * (1 + self.weight)).to(self.weight.dtype)


class MLSTMLayer(RecurrentLayer):
    """The mixer of :class:`MLSTM`. State: the state of the memory, and the last inputs of the convolution."""

    def __init__(self, config: MLSTM) -> None:
        super().__init__()
        d_model, inner, heads = config.d_model, config.inner, config.heads
        self.heads, self.inner = heads, inner
        self.proj_up = nn.Linear(d_model, 2 * inner, bias=False)
        self.conv1d = ShortConv(inner, bias=True)
        std = math.sqrt(2 / (5 * d_model))
        nn.init.normal_(self.proj_up.weight, std=std)
        self.q_proj, self.k_proj, self.v_proj = (BlockLinear(inner // BLOCK, BLOCK, std) for _ in range(3))
        self.igate, self.fgate = nn.Linear(3 * inner, heads), nn.Linear(3 * inner, heads)
        for gate in (self.igate, self.fgate):
            nn.init.zeros_(gate.weight)
        nn.init.normal_(self.igate.bias, std=0.1)
        with torch.no_grad():
            self.fgate.bias.copy_(torch.linspace(3, 6, heads))
        self.outnorm = HeadNorm(inner)
        self.learnable_skip = nn.Parameter(torch.ones(inner))
        self.proj_down = nn.Linear(inner, d_model, bias=False)
        nn.init.normal_(self.proj_down.weight, std=2 / (config.layers * math.sqrt(d_model)))

    def initial_state(self, batch: int) -> Any:
        like = state_zeros(self.proj_down.weight, batch, self.heads, self.inner // self.heads)
        return mlstm_start(like, like), self.conv1d.initial_state(batch)

    def run(self, x: Tensor, state: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        memory, before = state
        u, z = self.proj_up(hide(x, mask)).chunk(2, -1)
        c, before = self.conv1d.run(u, before)
        q, k, v = self.q_proj(c), self.k_proj(c), self.v_proj(u)
        i, f = self._gates(q, k, v)
        q, k, v = (torch.unflatten(value, -1, (self.heads, -1)) for value in (q, k, v))
        if not self.training:
            self.show(log_forget_gate=F.logsigmoid(f), log_input_gate=i)
        h, memory = mlstm(q, k, v, i, f, memory, mask)
        return self.proj_down((self.outnorm(h) + self.learnable_skip * c) * F.silu(z)), (memory, before)

    def _gates(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Return the maps of the joined q, k and v to i and f, as products with each part, which is not copied."""
        weight = torch.cat((self.igate.weight, self.fgate.weight))
        products = [F.linear(part, own) for part, own in zip(parts, weight.chunk(3, -1), strict=True)]
        return sum(products, torch.cat((self.igate.bias, self.fgate.bias))).chunk(2, -1)


class SLSTMLayer(RecurrentLayer):
    """The mixer of :class:`SLSTM`. State: the state of the memory, and the last inputs of the convolution."""

    def __init__(self, config: SLSTM, index: int) -> None:
        super().__init__()
        d_model, heads = config.d_model, config.heads
        width = d_model // heads
        self.conv1d = ShortConv(d_model, bias=True) if config.conv else NoConv()
        std = math.sqrt(2 / (5 * d_model))
        self.input_i, self.input_f, self.input_z, self.input_o = (BlockLinear(heads, width, std) for _ in range(4))
        self.R = nn.Parameter(torch.zeros(heads, 4, width, width))
        self.bias = nn.Parameter(torch.zeros(4, heads, width))
        place = torch.arange(width) / max(width - 1, 1)
        depth = index / max(config.layers - 1, 1)
        with torch.no_grad():
            self.bias[1] = 5 - 12 * place ** (0.3 + 1.3 * depth)
        self.group_norm = HeadNorm(d_model)

    def parameter_options(self) -> dict[str, dict[str, float]]:
        return {"bias": {"weight_decay": 0.0}}

    def initial_state(self, batch: int) -> Any:
        slots, heads, width = self.bias.shape
        return slstm_start(state_zeros(self.bias, batch, heads, slots, width)), self.conv1d.initial_state(batch)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x_if, x_zo, _ = self._slots(hide(x, mask), self.conv1d.initial_state(len(x)))
        return self.group_norm(slstm(x_if, x_zo, self.bias.transpose(0, 1), self.R, mask))

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        memory, before = state
        x_if, x_zo, before = self._slots(x.unsqueeze(1), before)
        slots = torch.cat((x_if, x_zo), -2).squeeze(1) + self.bias.transpose(0, 1)
        h, memory = slstm_step(slots, self.R, memory)
        return self.group_norm(h), (memory, before)

    def _slots(self, x: Tensor, before: Any) -> tuple[Tensor, Tensor, Any]:
        """Return the two inputs of :func:`slstm`, and the state of the convolution after the last position."""
        gated, before = self.conv1d.run(x, before)
        return (
            _two_maps(gated, self.input_i.weight, self.input_f.weight),
            _two_maps(x, self.input_z.weight, self.input_o.weight),
            before,
        )


def _two_maps(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Apply two maps of heads, ``(H, D, D)``, to ``(B, L, H D)``: ``(B, L, H, 2, D)``, a view of ``(H, B, L, 2 D)``."""
    weight = torch.stack((first, second), 1)
    y = torch.unflatten(x, -1, (len(first), -1)).permute(2, 0, 1, 3).flatten(1, 2) @ weight.flatten(1, 2).mT
    return torch.unflatten(torch.unflatten(y, 1, x.shape[:2]).permute(1, 2, 0, 3), -1, (2, -1))


@registry.register("mlstm")
@dataclass(frozen=True)
class MLSTM(RecurrentConfig):
    """xLSTM's matrix memory with exponential input gates, parallel over positions.

    Source: Beck et al. (arXiv:2405.04517), section 2.3.
    """

    layer_class = MLSTMLayer
    presets: ClassVar[Presets] = {
        "small": SMALL,
        "recall-16k": {**SMALL, "heads": 4, "expand": 1.25},
        "recall-64k": {**SMALL, "heads": 4, "expand": 2.75},
        "state-tracking": {**TRACKING, "heads": 8},
        "paper": {**PAPER, "heads": 4},
        "paper/mqar": {**PAPER_MQAR, "heads": 2},
    }

    mlp: bool = parameter(False, "use a gated feed-forward map after each mixer")
    heads: int = parameter(4, "heads of the memory", at_least=1, at_most=1024)
    expand: float = parameter(2.0, "inner width, in multiples of d_model", above=0, at_most=64)
    round_up: int = parameter(
        8, "round the inner width up to a multiple of this (xlstm package: 64)", at_least=4, at_most=4096
    )

    def check(self) -> None:
        # the norm of a head with a single channel would always be 0
        self.divided(self.inner, self.heads, "heads", "the inner width", at_least=2)
        if self.inner % BLOCK:
            raise UsageError(
                f"mlstm: the inner width must be a multiple of {BLOCK}, found {self.inner}; change round_up"
            )

    @property
    def inner(self) -> int:
        """Width of the memory's inputs."""
        # 1e-9 is above the rounding error of a quotient such as 116 / 56, which would add a whole multiple
        return math.ceil(self.expand * self.d_model / self.round_up - 1e-9) * self.round_up


@registry.register("slstm")
@dataclass(frozen=True)
class SLSTM(RecurrentConfig):
    """xLSTM's scalar memory: an LSTM with exponential gates, computed one position after the other.

    Source: Beck et al. (arXiv:2405.04517), section 2.2.
    """

    presets: ClassVar[Presets] = {
        "small": {**SMALL, "mlp_width": 124},
        "state-tracking": {**TRACKING, "heads": 4, "conv": False},
        "paper": {**PAPER, "heads": 4, "conv": False, "mlp_width": 166},
    }
    function: ClassVar[Literal["silu", "gelu"]] = "gelu"

    heads: int = parameter(4, "number of heads; the recurrent maps do not mix heads", at_least=1, at_most=1024)
    conv: bool = parameter(True, "use a short convolution before the input and forget gates")

    def check(self) -> None:
        self.divided(self.d_model, self.heads, "heads", "d_model", at_least=2)

    def layer(self, index: int) -> SLSTMLayer:
        return SLSTMLayer(self, index)
