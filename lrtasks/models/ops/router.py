"""Latent configurators: they decide at each position whether a module runs there, and how much its output counts.

Source: "Sparse Modular Activation for Efficient Sequence Modeling", sections 3.1 and 4.4 (variants), and its public
code.

    u_0, u_1   logits of "skip" and "run" at a position
    τ          learned temperature, stored as log τ, at start α_0 sqrt(d_model)
    c          confidence, probability of "run"; the module runs where it is above ½, which τ does not change

The decision is a constant for differentiation: a router learns through c alone, and only where its module ran.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from lrtasks.models.ops.initialisation import linear

RouterKind = Literal["softmax", "sigmoid", "gumbel", "moe"]
GUMBEL_START, GUMBEL_DECAY, GUMBEL_END = 2.0, 0.999995, 0.5
EXPERT_WIDTH, EXPERT_GAIN = 16, 0.32


class Router(nn.Module):
    """Base of the configurators; a subclass says what the margin is."""

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """``(..., d_model)`` to the decision, bool, and the confidence in [0, 1] of "run", float32 at least."""
        margin = self.margin(h)
        return margin > 0, torch.sigmoid(margin)

    def margin(self, h: Tensor) -> Tensor:
        """Log-odds of "run" against "skip", ``(..., d_model)`` to ``(...)``; an exact tie is a skip."""
        raise NotImplementedError

    def temperature(self) -> float | None:
        """What the logits are divided by, or None for a router without a temperature."""
        return None


class _Tempered(Router):
    """Logits ``h W + b`` over a learned temperature.

    Args:
        d_model: width of what is read.
        scale: α_0, the temperature at start in units of sqrt(d_model).
        logits: how many there are.
    """

    def __init__(self, d_model: int, scale: float, logits: int) -> None:
        super().__init__()
        self.logits = linear(d_model, logits, truncated=True)
        self.log_tau = nn.Parameter(torch.tensor([math.log(scale * math.sqrt(d_model))]))

    def temperature(self) -> float:
        return float(self.log_tau.exp())

    def _over_tau(self, logit: Tensor) -> Tensor:
        return logit / self.log_tau.to(logit.dtype).exp()


class SoftmaxRouter(_Tempered):
    """Tempered softmax of two logits: c = softmax((u_0, u_1) / τ)_1."""

    def __init__(self, d_model: int, scale: float) -> None:
        super().__init__(d_model, scale, 2)

    def margin(self, h: Tensor) -> Tensor:
        u = _float32(self.logits(h))
        return self._over_tau(u[..., 1] - u[..., 0])


class SigmoidRouter(_Tempered):
    """One logit: c = sigmoid(u / τ)."""

    def __init__(self, d_model: int, scale: float) -> None:
        super().__init__(d_model, scale, 1)

    def margin(self, h: Tensor) -> Tensor:
        return self._over_tau(_float32(self.logits(h)).squeeze(-1))


class GumbelRouter(Router):
    """Softmax of two logits with an independent Gumbel draw on each, over τ' = max(2 · 0.999995^T, ½).

    T counts training steps; it is a buffer, so that a checkpoint keeps it. There is no noise in evaluation.

    Args:
        d_model: width of what is read.
        hard: in evaluation the confidence is 1, as in the public code, and not the softmax at the current τ'.
    """

    updates: Tensor

    def __init__(self, d_model: int, hard: bool) -> None:
        super().__init__()
        self.logits = linear(d_model, 2, truncated=True)
        self.hard = hard
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        active, confidence = super().forward(h)
        if self.training:
            self.updates += 1
        return active, torch.ones_like(confidence) if self.hard and not self.training else confidence

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
        d_model: width of what is read.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.reduce = nn.Linear(d_model, EXPERT_WIDTH, bias=False)
        self.experts = nn.Parameter(nn.init.orthogonal_(torch.empty(2, EXPERT_WIDTH), gain=EXPERT_GAIN))

    def margin(self, h: Tensor) -> Tensor:
        directions = nn.functional.normalize(_float32(self.experts), dim=-1)
        return _float32(self.reduce(h)) @ (directions[1] - directions[0])


def make_router(kind: RouterKind, d_model: int, scale: float, hard: bool) -> Router:
    """The configurator called ``kind``; ``scale`` is α_0 of the tempered ones, ``hard`` belongs to ``gumbel``."""
    if kind == "gumbel":
        return GumbelRouter(d_model, hard)
    if kind == "moe":
        return MoERouter(d_model)
    return SoftmaxRouter(d_model, scale) if kind == "softmax" else SigmoidRouter(d_model, scale)


def _float32(x: Tensor) -> Tensor:
    """Float32 at least, under mixed precision too."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
