"""Focus: filters that a hypernetwork sets for every bin of time, then attention inside chunks, then a gated residual.

Source: the Focus paper (adaptive IIR filters before chunked attention), equations 1 to 11, made causal; its authors
have published no code. docs/models/focus.md lists the readings.

    S      input of the layer, (batch, length, d)        X    Norm(S) if pre-norm, else S
    R      positions per bin: the length over ``bins``   M    positions per chunk
    Θ      coefficients of the F filters of each bin and channel, from the bin before it
    X_f    sum of the filters' outputs; the first bin as it is
    Y      causal attention inside each chunk: queries X W_q + b_q, keys and values X_f W + b
    γ, φ   reset gate SiLU(X_f W + b), update gate sigmoid(X_f W + b)
    Z      dropout(SiLU(X_f W_h + b_h + (γ ⊙ Y) U_h))
    S'     φ ⊙ Z + (1 - φ) ⊙ S, normalised if post-norm

A feed-forward sub-layer, MEGA's, follows each layer. Focus-H has no hypernetwork, the paper's ablation: its filters are
learned, the same for all inputs.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.config import Presets, parameter
from lrtasks.errors import UsageError
from lrtasks.models import registry
from lrtasks.models.base import Block, ModelConfig, ResidualBlock
from lrtasks.models.ops.chunked import hide
from lrtasks.models.ops.gated_attention import ChunkAttention, default_chunk
from lrtasks.models.ops.hypernetwork import (
    BinSummary,
    CoefficientNetwork,
    Coefficients,
    GlobalConv,
    Hypernetwork,
    LearnedCoefficients,
)
from lrtasks.models.ops.iir import BinFilter
from lrtasks.models.ops.layers import WEIGHT_STD, linear, make_norm, normal_, silu_feedforward
from lrtasks.models.ops.scoped_attention import warn_of_padding
from lrtasks.spec import Spec


class FocusLayer(nn.Module):
    """One layer, as the module docstring says, on ``(batch, length, d_model)``.

    Args:
        d_model: width d.
        coefficients: gives Θ.
        filter: filters each bin.
        attention: attends inside each chunk.
        norm: normalisation, one of :data:`lrtasks.models.ops.layers.NORMS`.
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
        k, v, reset, update, hidden = self._mix(
            self.filter(hide(normed, mask), self.coefficients(normed, mask, summary))
        )
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


class FocusStack(Block):
    """All layers with their feed-forward sub-layers, and the summary of the encoded input that they share.

    Args:
        layers: the layers.
        feedforward: as many sub-layers.
        summary: the shared summary; None if the layers have their own, or none.
        causal: no output depends on what follows it.
    """

    def __init__(
        self,
        layers: list[FocusLayer],
        feedforward: list[ResidualBlock],
        summary: BinSummary | None,
        *,
        causal: bool,
    ) -> None:
        super().__init__()
        self.layers, self.feedforward = nn.ModuleList(layers), nn.ModuleList(feedforward)
        self.summary, self.causal = summary, causal

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        summary = None if self.summary is None else self.summary(x, mask)
        for layer, feedforward in zip(self.layers, self.feedforward, strict=True):
            x = feedforward(layer(x, mask, summary))
        return x

    def diagnostics(self) -> dict[str, Any]:
        """Whether the model is causal, which the circular form is not."""
        return {"causal": self.causal}

    def initial_state(self, batch: int) -> Any:
        """States of the shared summary and of the layers.

        Raises:
            UsageError: if the model is not causal.
        """
        if not self.causal:
            raise UsageError("filtering='circular' is not causal and has no streaming form")
        shared = None if self.summary is None else self.summary.initial_state(batch)
        return shared, [layer.initial_state(batch) for layer in self.layers]  # type: ignore[operator]

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One position ``(batch, d_model)``."""
        shared, layers = state
        summary = None
        if self.summary is not None:
            summary, shared = self.summary.step(x, shared)
        following = []
        for layer, feedforward, before in zip(self.layers, self.feedforward, layers, strict=True):
            x, after = layer.step(x, summary, before)  # type: ignore[operator]
            x, _ = feedforward.step(x, (None, None))  # type: ignore[operator]
            following.append(after)
        return x, (shared, following)


@dataclass(frozen=True)
class FocusLike(ModelConfig):
    """Layers of filters and chunked attention; subclasses say where the filters' coefficients come from."""

    bins: int = parameter(4, "bins of time with filters of their own; the last one is padded", at_least=1)
    filters: int = parameter(1, "filters per channel and bin, whose outputs are summed (F)", at_least=1, at_most=1024)
    filtering: Literal["reset", "carry", "circular"] = parameter(
        "reset",
        "causal, from zeros in each bin; causal, with outputs carried from bin to bin; or the paper's circular form,"
        " which is not causal",
    )
    conjugate: bool = parameter(
        True, "the conjugate in the circular form, as printed; without it, a circular convolution"
    )
    allow_non_causal: bool = parameter(
        False, "allow filtering='circular' in a causal model, which then sees the future"
    )
    signed: bool = parameter(False, "coefficients of either sign, low-pass filters included, instead of 0 to 1")
    chunk: int | None = parameter(
        None, "positions per chunk of attention; none for a 32nd of the length, at least 32", at_least=1
    )
    bias: Literal["simple", "none"] = parameter("simple", "learned bias by distance inside a chunk, or none")
    d_k: int | None = parameter(None, "width of queries and keys; none for d_model / 2", at_least=1)
    d_v: int | None = parameter(None, "width of values; none for d_model", at_least=1)
    d_ffn: int | None = parameter(None, "width inside the feed-forward sub-layer; none for 2 d_model", at_least=1)

    def check(self) -> None:
        if not self.conjugate and self.filtering != "circular":
            raise UsageError(f"{self.name}: conjugate has no meaning with filtering={self.filtering!r}")

    def coefficients(self, length: int, bin_length: int) -> Coefficients:
        """What gives one layer its coefficients."""
        raise NotImplementedError

    def shared_summary(self, length: int, bin_length: int) -> BinSummary | None:
        """What the layers share; None for nothing."""
        return None

    def blocks(self, input: Spec, causal: bool) -> list[nn.Module]:
        """One block: the stack.

        Raises:
            UsageError: for more bins than positions, or circular filters in a causal model.
        """
        bin_length, chunk = self._bin_length(input.length), self.chunk or default_chunk(input.length)
        warn_of_padding(self.name, input.length, chunk)
        circular = self.filtering == "circular"
        if causal and circular:
            self._admit_non_causal()
        chunk = min(chunk, input.length)
        layers = [self._layer(input.length, bin_length, chunk, causal) for _ in range(self.layers)]
        feedforward = [self._feedforward() for _ in range(self.layers)]
        summary = self.shared_summary(input.length, bin_length)
        return [FocusStack(layers, feedforward, summary, causal=causal and not circular)]

    def _bin_length(self, length: int) -> int:
        if self.bins > length:
            raise UsageError(f"{self.name}: bins must be at most the sequence length ({length}), found {self.bins}")
        bin_length = -(-length // self.bins)
        if length % self.bins:
            used = -(-length // bin_length)
            warnings.warn(
                f"{self.name}: {self.bins} bins do not divide the length {length};"
                f" {used} bins of {bin_length} are used, the last one padded by {used * bin_length - length}",
                stacklevel=2,
            )
        return bin_length

    def _admit_non_causal(self) -> None:
        found = f"{self.name}: filtering='circular' is not causal: outputs depend on what follows in their bin"
        if not self.allow_non_causal:
            raise UsageError(f"{found}; take 'reset' or 'carry', causal=False, or allow_non_causal=true")
        warnings.warn(f"{found}; scores of tasks that predict what follows mean nothing", stacklevel=2)

    def _layer(self, length: int, bin_length: int, chunk: int, causal: bool) -> FocusLayer:
        coefficients = self.coefficients(length, bin_length)
        return FocusLayer(
            self.d_model,
            coefficients,
            BinFilter(bin_length, coefficients.unfiltered, self.filtering, conjugate=self.conjugate),
            ChunkAttention(
                self.d_k or max(1, self.d_model // 2),
                self.d_v or self.d_model,
                chunk,
                causal=causal,
                bias=self.bias == "simple",
            ),
            norm=self.norm,
            prenorm=self.prenorm,
            dropout=self.dropout,
        )

    def _feedforward(self) -> ResidualBlock:
        inner = silu_feedforward(self.d_model, self.d_ffn or 2 * self.d_model, self.dropout, truncated=False)
        return ResidualBlock(inner, self.d_model, self.norm, self.prenorm, self.dropout)


def small_and_paper(width: int) -> Presets:
    """Presets of both models; at ``width`` a model has about as many parameters as dlr's small preset."""
    return {
        "small": {"d_model": width, "layers": 2, "norm": "layer", "budget.lr": 0.001},
        # The budget of the DLR paper's atomic tasks, at that paper's width.
        "paper": {"d_model": 128, "layers": 1, "norm": "layer", "budget.lr": 0.001},
        # Focus paper, Table 6, associative recall with vocabulary 30: one filter, four bins, 2,000 samples, 10 epochs
        # that warm up. Not given there and taken from the Hyena paper: weight decay, 200 epochs, cosine, 500 test
        # sequences.
        "paper/recall": {"d_model": 64, "layers": 2, "bins": 4, "filters": 1, "budget.lr": 0.0001},
    }


@registry.register("focus")
@dataclass(frozen=True)
class Focus(FocusLike):
    """Filters per bin of time from a hypernetwork, then chunked attention and a gated residual.

    Source: Lutati, Zimerman and Wolf (arXiv:2305.14952), equations 1 to 11, made causal.
    """

    presets: ClassVar[Presets] = small_and_paper(48)

    bins: int = parameter(4, "bins of time with filters of their own, at least 2; the last one is padded", at_least=2)
    shared: bool = parameter(
        True, "one global convolution, of the encoded input, for all layers; else each layer has one of its own input"
    )
    pooled: int = parameter(4, "values per channel that the hypernetwork reads of a bin (O)", at_least=1, at_most=65536)
    hidden: int = parameter(16, "hidden width of the hypernetwork's two layers", at_least=1, at_most=65536)
    kernel_length: int | None = parameter(None, "taps of the global convolution; none for the length", at_least=1)
    squash: float = parameter(0.003, "threshold below which its taps count as zero", at_least=0)
    smooth: int | None = parameter(
        None, "running mean over so many of its taps, an odd number; none for none", at_least=1
    )
    kernel_dropout: float = parameter(0.2, "dropout rate on its taps", at_least=0, at_most=0.99)

    def check(self) -> None:
        super().check()
        if self.smooth is not None and self.smooth % 2 == 0:
            raise UsageError(f"{self.name}: smooth must be odd, found {self.smooth}")

    def coefficients(self, length: int, bin_length: int) -> Hypernetwork:
        network = CoefficientNetwork(self.pooled, self.hidden, self.filters, signed=self.signed)
        return Hypernetwork(self.d_model, network, None if self.shared else self._summary(length, bin_length))

    def shared_summary(self, length: int, bin_length: int) -> BinSummary | None:
        return self._summary(length, bin_length) if self.shared else None

    def _summary(self, length: int, bin_length: int) -> BinSummary:
        taps = min(length, self.kernel_length or length)
        conv = GlobalConv(self.d_model, taps, self.squash, self.smooth, self.kernel_dropout)
        return BinSummary(conv, bin_length, self.pooled)


@registry.register("focus-h")
@dataclass(frozen=True)
class FocusH(FocusLike):
    """Focus with learned filters that do not depend on the input.

    Source: Lutati, Zimerman and Wolf (arXiv:2305.14952), an ablation.
    """

    presets: ClassVar[Presets] = small_and_paper(56)

    def coefficients(self, length: int, bin_length: int) -> LearnedCoefficients:
        return LearnedCoefficients(self.d_model, self.filters, signed=self.signed)
