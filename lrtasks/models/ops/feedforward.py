"""The position-wise feed-forward map (Vaswani et al., arXiv:1706.03762, section 3.3, with GELU)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class FeedForward(nn.Module):
    """``linear -> GELU -> linear`` at each position, ``expansion`` times as wide in between.

    Args:
        d_model: width of input and output, ``(..., d_model)``.
        expansion: width of the hidden layer, in units of ``d_model``.
    """

    def __init__(self, d_model: int, expansion: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(d_model, expansion * d_model)
        self.out = nn.Linear(expansion * d_model, d_model)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map each position by itself, whatever the mask."""
        y: Tensor = self.out(F.gelu(self.hidden(x)))
        return y

    def initial_state(self, batch: int) -> None:
        """A map of single positions has no state."""

    def step(self, x: Tensor, state: None) -> tuple[Tensor, None]:
        """One position ``(batch, d_model)``."""
        return self(x), state
