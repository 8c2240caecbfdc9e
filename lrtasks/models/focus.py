"""Focus: filters that a hypernetwork sets for every bin of time, then attention inside chunks, then a gated residual.

Source: the Focus paper (adaptive IIR filters before chunked attention), equations 1 to 11, made causal; its authors
have published no code. docs/models/focus.md lists the readings; the equations of a layer are in ops/focus_layer.py. A
feed-forward sub-layer, MEGA's, follows each layer.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from lrtasks.config import Presets, parameter
from lrtasks.errors import UsageError
from lrtasks.models import registry
from lrtasks.models.base import Block, ModelConfig, ResidualBlock
from lrtasks.models.ops.bin_filter import BinFilter
from lrtasks.models.ops.chunk_attention import ChunkAttention, default_chunk
from lrtasks.models.ops.focus_layer import FocusLayer
from lrtasks.models.ops.gated_attention import SiLUFeedForward
from lrtasks.models.ops.global_conv import GlobalConv
from lrtasks.models.ops.hypernetwork import BinSummary, CoefficientNetwork, Coefficients, Hypernetwork
from lrtasks.models.ops.scoped_attention import warn_of_padding
from lrtasks.spec import Spec


class FocusStack(Block):
    """All layers with their feed-forward sub-layers, and the summary of the encoded input that they share.

    Args:
        layers: the layers.
        feedforward: as many sub-layers.
        summary: the shared summary; None if the layers have their own, or none.
        length: longest sequence.
        causal: no output depends on what follows it.
    """

    def __init__(
        self,
        layers: list[FocusLayer],
        feedforward: list[ResidualBlock],
        summary: BinSummary | None,
        *,
        length: int,
        causal: bool,
    ) -> None:
        super().__init__()
        self.length = length
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

    def training_bytes(self, batch: int, device: torch.device) -> dict[str, int]:
        """Estimate for a training step in float32: what is kept for the gradient, counted in signals of a channel."""
        signal = 4 * batch * self.length
        kept = 0
        for module in self.modules():
            if isinstance(module, FocusLayer):
                # around the filters and gates, beside the joint map, the weights of attention and the responses
                kept += 12 * module.query.in_features + sum(module.widths) + module.attention.chunk
            elif isinstance(module, SiLUFeedForward):
                kept += 2 * (module.hidden.in_features + module.hidden.out_features)
            elif isinstance(module, BinSummary):
                kept += 6 * module.conv.mix.in_features
        return {"kept": signal * kept, "passing": 0}

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
            x, _ = feedforward.step(x, None)  # type: ignore[operator]
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
        return [FocusStack(layers, feedforward, summary, length=input.length, causal=causal and not circular)]

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
        inner = SiLUFeedForward(self.d_model, self.d_ffn or 2 * self.d_model, self.dropout, truncated=False)
        return ResidualBlock(inner, self.d_model, self.norm, self.prenorm, self.dropout)


@registry.register("focus")
@dataclass(frozen=True)
class Focus(FocusLike):
    """Filters per bin of time from a hypernetwork, then chunked attention and a gated residual."""

    presets: ClassVar[Presets] = {
        # About as many parameters as dlr's small preset (65,210 on shift, 12,288 of them taps of the shared
        # convolution, against 71,688); a step takes longer.
        "small": {"d_model": 48, "layers": 2, "norm": "layer", "budget.lr": 0.001},
        # The budget of the DLR paper's atomic tasks, at that paper's width.
        "paper": {"d_model": 128, "layers": 1, "norm": "layer", "budget.lr": 0.001},
        # Focus paper, Table 6, associative recall with vocabulary 30: one filter, four bins, 2,000 samples, 10 epochs
        # that warm up. Not given there and taken from the Hyena paper: weight decay, 200 epochs, cosine, 500 test
        # sequences.
        "paper/recall": {"d_model": 64, "layers": 2, "bins": 4, "filters": 1, "budget.lr": 0.0001},
    }

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
