"""Modules that run only where a learned router asks for them: the router, the compression, and the module.

Source: "Sparse Modular Activation for Efficient Sequence Modeling" (SeqBoat), sections 3 and 4.4, and its public code.

    u_0, u_1   logits of "skip" and "run" at a position
    τ          learned temperature, stored as log τ, at start α_0 sqrt(d_model)
    c          confidence, the probability of "run"; the module runs where c > ½, which does not depend on τ

The decision is a constant for differentiation: a router learns through c alone, and only where its module ran.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from lrtasks.models.ops.layers import linear
from lrtasks.models.ops.scoped_attention import Scope, attention_span
from lrtasks.models.portraits import Portrait

RouterKind = Literal["softmax", "sigmoid", "gumbel", "moe"]
GUMBEL_START, GUMBEL_DECAY, GUMBEL_END = 2.0, 0.999995, 0.5
EXPERT_WIDTH, EXPERT_GAIN = 16, 0.32


class Router(nn.Module):
    """Base of the routers; a subclass computes the margin."""

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """``(..., d_model)`` to the decision, bool, and the confidence in [0, 1] of "run", float32 at least."""
        margin = self.margin(h)
        return margin > 0, torch.sigmoid(margin)

    def margin(self, h: Tensor) -> Tensor:
        """Log-odds of "run" against "skip", ``(..., d_model)`` to ``(...)``; an exact tie is a skip."""
        raise NotImplementedError

    def temperature(self) -> float | None:
        """What divides the logits, or None for a router without a temperature."""
        return None


class TemperedRouter(Router):
    """c = softmax((u_0, u_1) / τ)_1 from two logits, or c = sigmoid(u / τ) from one; the logits are ``h W + b``.

    Args:
        d_model: width of the input.
        scale: α_0, the temperature at start in units of sqrt(d_model).
        logits: 2 (softmax) or 1 (sigmoid).
    """

    def __init__(self, d_model: int, scale: float, logits: int) -> None:
        super().__init__()
        self.logits = linear(d_model, logits, truncated=True)
        self.log_tau = nn.Parameter(torch.tensor([math.log(scale * math.sqrt(d_model))]))

    def margin(self, h: Tensor) -> Tensor:
        u = _float32(self.logits(h))
        logit = u[..., 0] if u.shape[-1] == 1 else u[..., 1] - u[..., 0]
        return logit / self.log_tau.to(logit.dtype).exp()

    def temperature(self) -> float:
        return float(self.log_tau.exp())


class GumbelRouter(Router):
    """Softmax of two logits with an independent Gumbel draw on each, over τ' = max(2 · 0.999995^T, ½).

    T counts training steps; it is a buffer, so that a checkpoint keeps it. There is no noise in evaluation, where the
    confidence is the softmax at the present τ' (the public code takes 1).

    Args:
        d_model: width of the input.
    """

    updates: Tensor

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.logits = linear(d_model, 2, truncated=True)
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        active, confidence = super().forward(h)
        if self.training:
            self.updates += 1
        return active, confidence

    def margin(self, h: Tensor) -> Tensor:
        u = _float32(self.logits(h))
        if self.training:
            u = u - torch.empty_like(u).exponential_().log()  # minus the log of an exponential draw is a Gumbel draw
        return (u[..., 1] - u[..., 0]) / self._tau()

    def temperature(self) -> float:
        return float(self._tau())

    def _tau(self) -> Tensor:
        return (GUMBEL_START * GUMBEL_DECAY ** self.updates.double()).clamp_min(GUMBEL_END).float()


class MoERouter(Router):
    """Logits <W h, e_i> / |e_i| with learned embeddings e_0, e_1 of width 16, as X-MoE does (arXiv:2204.09179).

    Args:
        d_model: width of the input.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.reduce = nn.Linear(d_model, EXPERT_WIDTH, bias=False)
        self.experts = nn.Parameter(nn.init.orthogonal_(torch.empty(2, EXPERT_WIDTH), gain=EXPERT_GAIN))

    def margin(self, h: Tensor) -> Tensor:
        directions = nn.functional.normalize(_float32(self.experts), dim=-1)
        return _float32(self.reduce(h)) @ (directions[1] - directions[0])


def make_router(kind: RouterKind, d_model: int, scale: float) -> Router:
    """The router called ``kind``; ``scale`` is α_0 of ``softmax`` and ``sigmoid``."""
    if kind == "gumbel":
        return GumbelRouter(d_model)
    if kind == "moe":
        return MoERouter(d_model)
    return TemperedRouter(d_model, scale, 2 if kind == "softmax" else 1)


def _float32(x: Tensor) -> Tensor:
    """Float32 at least, under mixed precision too."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


@dataclass(frozen=True)
class Selection:
    """Compression of a batch to its active positions: row b keeps its ``counts[b]`` of them, in order, at the front.

    Attributes:
        shape: ``(batch, length)`` of what is compressed.
        width: slots per row, the largest count and at least 1.
        counts: active positions of each row, ``(batch,)``.
        source: flat index of every active position in ``(batch, length)``, ascending.
        target: flat index of its slot in ``(batch, width)``.
    """

    shape: tuple[int, int]
    width: int
    counts: Tensor
    source: Tensor
    target: Tensor

    @classmethod
    def of(cls, active: Tensor) -> Selection:
        """From ``active``, ``(batch, length)`` bool."""
        batch, length = active.shape
        counts = active.sum(1)
        rows, columns = active.nonzero(as_tuple=True)
        width = max(1, int(counts.max()))
        rank = active.cumsum(1)[rows, columns] - 1
        return cls((batch, length), width, counts, rows * length + columns, rows * width + rank)

    @property
    def valid(self) -> Tensor:
        """``(batch, width)`` bool: which slots are taken."""
        return torch.arange(self.width, device=self.counts.device) < self.counts.unsqueeze(1)

    @property
    def positions(self) -> Tensor:
        """``(batch, width)``: original position of each slot, 0 in free ones."""
        position = self.source.new_zeros(self.shape[0] * self.width)
        return position.index_copy(0, self.target, self.source % self.shape[1]).view(-1, self.width)

    def compress(self, x: Tensor) -> Tensor:
        """``(batch, length, d)`` to ``(batch, width, d)``, zeros in free slots: one scatter of the active rows."""
        rows = x.flatten(0, 1).index_select(0, self.source)
        slots = rows.new_zeros(self.shape[0] * self.width, x.shape[-1]).index_copy(0, self.target, rows)
        return slots.view(-1, self.width, x.shape[-1])

    def extract(self, y: Tensor) -> Tensor:
        """``(batch, width, d)`` back to ``(batch, length, d)``, zeros at inactive positions: one gather of the same."""
        rows = y.flatten(0, 1).index_select(0, self.target)
        places = rows.new_zeros(self.shape[0] * self.shape[1], y.shape[-1]).index_copy(0, self.source, rows)
        return places.view(*self.shape, y.shape[-1])


@dataclass(frozen=True)
class Activity:
    """Where a module ran in the last forward pass.

    Attributes:
        valid: ``(batch, length)`` bool, False at padding.
        active: ``(batch, length)`` bool.
        confidence: ``(batch, length)``, 0 where inactive.
    """

    valid: Tensor
    active: Tensor
    confidence: Tensor


class SparseModule(nn.Module):
    """``c ⊙ module(H)`` at the active positions, zeros at the others.

    Args:
        inner: module on ``(batch, n, d_model)``, which also takes valid slots and original positions.
        router: the router; None to run the module everywhere, with c = 1.
        scope: which keys its queries see, or None for a module without attention.
        dropout: rate on the module's output.
    """

    activity: Activity | None = None

    def __init__(self, inner: nn.Module, router: Router | None, scope: Scope | None, dropout: float) -> None:
        super().__init__()
        self.inner, self.router, self.scope = inner, router, scope
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: Tensor, mask: Tensor | None = None) -> Tensor:
        """``mask`` is ``(batch, length)`` bool, False at padding, where nothing is active, or ``None``."""
        valid = torch.ones(h.shape[:2], dtype=torch.bool, device=h.device) if mask is None else mask
        if self.router is None:
            self.activity = Activity(valid, valid, valid.to(h.dtype))
            everywhere: Tensor = self.dropout(self.inner(h, mask))
            return everywhere
        active, confidence = self.router(h)
        active = active & valid
        self.activity = Activity(valid, active, confidence.detach() * active)
        selection = Selection.of(active)
        # a causal query in a taken slot sees taken slots only, since they all stand at the front
        slots = None if self.scope is None or self.scope.causal else selection.valid
        y = self.dropout(self.inner(selection.compress(h), slots, selection.positions))
        spread: Tensor = selection.extract(y) * confidence.to(y.dtype).unsqueeze(-1)
        return spread

    def initial_state(self, batch: int) -> Any:
        """The inner module's."""
        return self.inner.initial_state(batch)  # type: ignore[operator]

    def step(self, h: Tensor, state: Any, position: int) -> tuple[Tensor, Any]:
        """One position ``(batch, d_model)``."""
        if self.router is None:
            y, state = self.inner.step(h, state, position)  # type: ignore[operator]
            return y, state
        active, confidence = self.router(h)
        y, state = self.inner.step(h, state, position, active)  # type: ignore[operator]
        return y * (active * confidence).to(y.dtype).unsqueeze(-1), state

    @torch.no_grad()
    def diagnostics(self) -> dict[str, float]:
        """Numbers of the last forward pass.

        ``activation_rate`` and ``activation_rate_std``: share of valid positions that are active, mean and standard
        deviation over samples; ``compressed_length``: slots of the compressed batch over its length; ``temperature``;
        ``attention_span``: mean distance from a query to the other keys that it sees, in original positions, over the
        queries that see any (0 if there are none).
        """
        if self.activity is None:
            return {}
        active, valid = self.activity.active, self.activity.valid
        rate = active.sum(1) / valid.sum(1).clamp_min(1)
        found = {
            "activation_rate": float(rate.mean()),
            "activation_rate_std": float(rate.std(correction=0)),
            "compressed_length": float(active.sum(1).max() / active.shape[1]),
        }
        temperature = None if self.router is None else self.router.temperature()
        if temperature is not None:
            found["temperature"] = temperature
        if self.scope is not None:
            selection = Selection.of(active)
            span = attention_span(selection.positions, selection.counts, self.scope)
            found["attention_span"] = float(span.sum() / (span > 0).sum().clamp_min(1))
        return found

    def portraits(self) -> list[Portrait]:
        """Confidence at each position of the samples of the last forward pass, 0 where inactive."""
        if self.activity is None or self.router is None:
            return []
        confidence = self.activity.confidence.float().cpu().numpy().astype(np.float64)
        return [Portrait("confidence", "positions", {"confidence": confidence}, "position", "sample")]
