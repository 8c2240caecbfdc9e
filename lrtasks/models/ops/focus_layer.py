"""A layer of Focus: filters for every bin of time, attention inside chunks, a gated residual.

    S      input of the layer, (batch, length, d)        X    Norm(S) if pre-norm, else S
    R      positions per bin: the length over ``bins``   M    positions per chunk
    Θ      coefficients of the F filters of each bin and channel, from the bin before it
    X_f    sum of the filters' outputs; the first bin as it is
    Y      causal attention inside each chunk: queries X W_q + b_q, keys and values X_f W + b
    γ, φ   reset gate SiLU(X_f W + b), update gate sigmoid(X_f W + b)
    Z      dropout(SiLU(X_f W_h + b_h + (γ ⊙ Y) U_h))
    S'     φ ⊙ Z + (1 - φ) ⊙ S, normalised if post-norm

Source: the Focus paper, equations 1 to 11, made causal.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.models.ops.bin_filter import BinFilter
from lrtasks.models.ops.chunk_attention import ChunkAttention
from lrtasks.models.ops.hypernetwork import Coefficients
from lrtasks.models.ops.initialisation import WEIGHT_STD, linear, normal_
from lrtasks.models.ops.norms import make_norm


class FocusLayer(nn.Module):
    """One layer, as the module docstring says, on ``(batch, length, d_model)``.

    Args:
        d_model: width d.
        coefficients: gives Θ.
        filter: filters each bin.
        attention: attends inside each chunk.
        norm: normalisation, one of :data:`lrtasks.models.ops.norms.NORMS`.
        prenorm: normalise before instead of after.
        dropout: rate on Z.
    """

    def __init__(
        self,
        d_model: int,
        coefficients: Coefficients,
        filter: BinFilter,
        attention: ChunkAttention,
        *,
        norm: str,
        prenorm: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.coefficients, self.filter, self.attention = coefficients, filter, attention
        d_k, d_v = attention.d_k, attention.d_v
        self.widths = [d_k, d_v, d_v, d_model, d_model]
        self.query = linear(d_model, d_k, truncated=False)
        self.mix = linear(d_model, sum(self.widths), truncated=False)
        self.out = nn.Linear(d_v, d_model, bias=False)
        normal_(self.out.weight, WEIGHT_STD, truncated=False)
        self.norm = make_norm(norm, d_model)
        self.prenorm = prenorm
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None, summary: Tensor | None = None) -> Tensor:
        """``mask`` is ``(batch, length)`` bool, False at padding; ``summary`` that of the encoded input, if shared."""
        normed = self.norm(x) if self.prenorm else x
        signal = normed if mask is None else normed.masked_fill(~mask.unsqueeze(-1), 0)
        k, v, reset, update, hidden = self._mix(self.filter(signal, self.coefficients(normed, mask, summary)))
        return self._finish(x, self.attention(self.query(normed), k, v, mask), reset, update, hidden)

    def initial_state(self, batch: int) -> Any:
        """Θ and past outputs of the filters, keys and values of a chunk, what gives Θ, and the next position."""
        theta, inner = self.coefficients.initial_state(batch)
        cache = self.attention.initial_state(self.query.weight, batch)
        return theta, self.filter.initial_state(batch, theta), cache, inner, 0

    def step(self, x: Tensor, summary: Tensor | None, state: Any) -> tuple[Tensor, Any]:
        """One position ``(batch, d_model)``; equals :meth:`forward` of a causal layer in evaluation mode."""
        theta, past, cache, inner, position = state
        normed = self.norm(x) if self.prenorm else x
        filtered, past = self.filter.step(normed, theta, past, position)
        k, v, reset, update, hidden = self._mix(filtered)
        attended, cache = self.attention.step(self.query(normed), k, v, cache, position)
        following, inner = self.coefficients.step(normed, summary, inner)
        theta = theta if following is None else following
        return self._finish(x, attended, reset, update, hidden), (theta, past, cache, inner, position + 1)

    def _mix(self, filtered: Tensor) -> tuple[Tensor, ...]:
        k, v, reset, update, hidden = self.mix(filtered).split(self.widths, -1)
        return k, v, F.silu(reset), update.sigmoid(), hidden

    def _finish(self, x: Tensor, attended: Tensor, reset: Tensor, update: Tensor, hidden: Tensor) -> Tensor:
        candidate = self.dropout(F.silu(hidden + self.out(reset * attended)))
        y: Tensor = x + update * (candidate - x)
        return y if self.prenorm else self.norm(y)
