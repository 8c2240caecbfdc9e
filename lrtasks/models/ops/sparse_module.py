"""A module that runs only where its configurator asks for it.

Source: "Sparse Modular Activation for Efficient Sequence Modeling", section 3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lrtasks.models.ops.router import Router
from lrtasks.models.ops.scoped_attention import Scope
from lrtasks.models.ops.selection import Selection
from lrtasks.models.ops.span import attention_span
from lrtasks.models.portraits import Portrait


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
        router: the configurator; None to run the module everywhere, with c = 1.
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
        """Figures of the last forward pass.

        ``activation_rate`` and ``activation_rate_std``: share of valid positions that are active, mean and standard
        deviation over samples; ``compressed_length``: slots of the compressed batch over its length; ``temperature``;
        ``attention_span``: mean distance from a query to the other keys that it sees, in original positions, over the
        queries that see any (0 if there are none).
        """
        if self.activity is None:
            return {}
        active, valid = self.activity.active, self.activity.valid
        rate = active.sum(1) / valid.sum(1).clamp_min(1)
        figures = {
            "activation_rate": float(rate.mean()),
            "activation_rate_std": float(rate.std(correction=0)),
            "compressed_length": float(active.sum(1).max() / active.shape[1]),
        }
        temperature = None if self.router is None else self.router.temperature()
        if temperature is not None:
            figures["temperature"] = temperature
        if self.scope is not None:
            selection = Selection.of(active)
            span = attention_span(selection.positions, selection.counts, self.scope)
            figures["attention_span"] = float(span.sum() / (span > 0).sum().clamp_min(1))
        return figures

    def portraits(self) -> list[Portrait]:
        """Confidence at each position of the samples of the last forward pass, 0 where inactive."""
        if self.activity is None or self.router is None:
            return []
        confidence = self.activity.confidence.float().cpu().numpy().astype(np.float64)
        return [Portrait("confidence", "positions", {"confidence": confidence}, "position", "sample")]
