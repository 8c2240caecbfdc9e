"""Gated recurrence: a linear recurrence whose decay depends on the input, computed by a parallel scan.

    u[t]     input, (batch, length, d_model)
    v[t]     values, W_v u[t] + b_v
    a[t]     gates, one per channel: sigmoid(W_a u[t] + b_a), or tanh of it with gates="signed"
    h[t]     state, a[t] h[t-1] + (1 - |a[t]|) v[t], h[-1] = h_0 (learned)
    y[t]     output, W_o h[t] + b_o

A gate between 0 and 1 can keep or forget; a signed one can also flip, which parity needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from lrtasks.config import Presets, parameter
from lrtasks.errors import UsageError
from lrtasks.models import ModelConfig


class GatedRecurrenceMixer(nn.Module):
    """``(batch, length, d_model) -> (batch, length, d_model)``, each position from those up to it.

    Args:
        d_model: channels.
        signed: gates in (-1, 1) instead of (0, 1).
    """

    def __init__(self, d_model: int, signed: bool) -> None:
        super().__init__()
        self.signed = signed
        self.gate = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.output = nn.Linear(d_model, d_model)
        self.start = nn.Parameter(torch.randn(d_model))
        self.last: dict[str, float] = {}

    def forward(self, u: Tensor, mask: Tensor | None = None) -> Tensor:
        """``mask`` is ``(batch, length)`` bool, False at padding, or ``None``; padding leaves the state alone."""
        a, b = self._coefficients(u)
        if mask is not None:
            a = torch.where(mask[..., None], a, 1.0)
            b = torch.where(mask[..., None], b, 0.0)
        gates = a.detach()
        self.last = {"gate_size": float(gates.abs().mean()), "flips": float((gates < 0).float().mean())}
        decay, sums = scan(a, b)
        y: Tensor = self.output(decay * self.start + sums)
        return y

    def _coefficients(self, u: Tensor) -> tuple[Tensor, Tensor]:
        a = torch.tanh(self.gate(u)) if self.signed else torch.sigmoid(self.gate(u))
        return a, (1 - a.abs()) * self.value(u)

    def diagnostics(self) -> dict[str, Any]:
        """Of the last forward pass: mean size of the gates, and the share of them that flip the state's sign."""
        return self.last

    def parameter_options(self) -> dict[str, dict[str, Any]]:
        """The starting state is not pulled to zero by weight decay."""
        return {"start": {"weight_decay": 0.0}}

    def initial_state(self, batch: int) -> Tensor:
        """State before the first position, ``(batch, d_model)``."""
        return self.start.expand(batch, -1)

    def step(self, u: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One position, ``(batch, d_model)``: what :meth:`forward` gives there."""
        a, b = self._coefficients(u)
        state = a * state + b
        return self.output(state), state


def scan(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Products and sums of the recurrence ``h[t] = a[t] h[t-1] + b[t]``, such that ``h[t] = p[t] h[-1] + s[t]``.

    Each of log2(length) rounds joins every position with what stands twice as far back as in the round before.

    Args:
        a: factors, ``(batch, length, channels)``.
        b: summands, of the same shape.

    Returns:
        ``p`` and ``s``, of the same shape.
    """
    reach = 1
    while reach < a.shape[1]:
        b = torch.cat([b[:, :reach], b[:, reach:] + a[:, reach:] * b[:, :-reach]], 1)
        a = torch.cat([a[:, :reach], a[:, reach:] * a[:, :-reach]], 1)
        reach *= 2
    return a, b


@dataclass(frozen=True)
class GatedRecurrence(ModelConfig):
    """Linear recurrence with gates that depend on the input."""

    presets: ClassVar[Presets] = {
        # A bare name is a hyper-parameter, `budget.NAME` a field of the training budget.
        "small": {"d_model": 64, "layers": 2, "budget.lr": 0.001},
        "paper": {"d_model": 128, "layers": 2, "budget.lr": 0.001},
        # Further settings for one task, also for a task of another package.
        "paper/parity": {"budget.steps": 10000},
    }

    gates: Literal["positive", "signed"] = parameter("signed", "range of the gates: (0, 1) or (-1, 1)")

    def mixer(self, length: int, causal: bool) -> nn.Module:
        if not causal:
            raise UsageError("gated-recurrence runs in one direction; build it with causal=True")
        return GatedRecurrenceMixer(self.d_model, self.gates == "signed")
