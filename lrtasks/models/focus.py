"""Focus: filters set by a hypernetwork for each time bin, then attention inside chunks, then a gated residual.

Source: the Focus paper (adaptive IIR filters before chunked attention), equations 1 to 14, made causal; its authors
have published no code. docs/models/focus.md lists our interpretations of the paper.

    S      input of the layer, (batch, length, d)        X    Norm(S) if pre-norm, else S
    R      positions per bin: the length over ``bins``   M    positions per chunk
    Θ      coefficients of the F filters of each bin and channel, from the bin before it
    X_f    sum of the filters' outputs; in the first bin X, not filtered
    Y      causal attention inside each chunk: queries X W_q + b_q, keys and values X_f W + b
    γ, φ   reset gate SiLU(X_f W + b), update gate sigmoid(X_f W + b)
    Z      dropout(SiLU(X_f W_h + b_h + (γ ⊙ Y) U_h))
    S'     φ ⊙ Z + (1 - φ) ⊙ S, normalised if post-norm

Θ of a bin comes from the bin before it (equations 1 to 3). No pooling window crosses the end of a bin, and the global
convolution is causal: a gated :class:`~lrtasks.models.ops.convolution.LongConvLayer` with the kernel of Fu et al.,
"Simple Hardware-Efficient Long Convolutions for Sequence Modeling", section 3. The filters of a bin therefore do not
depend on later inputs. Symbols:

    O      number of values kept of a bin, per channel: the maximum in each of O windows
    k, K   kernel of a channel of the convolution, and its number of taps
    λ      threshold: taps of at most this absolute value become zero, the others move towards zero by λ

MEGA's feed-forward sub-layer follows each layer. Focus-H, the paper's ablation, has no hypernetwork: its filters are
learned parameters, the same for all inputs and bins.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.config import Presets, parameter
from lrtasks.errors import UsageError
from lrtasks.models import registry
from lrtasks.models.base import ATOMIC, Block, ModelConfig, NormedBlock, ResidualBlock, Stack, computed
from lrtasks.models.ops.convolution import ExponentialState, Kernel, LongConvLayer, WindowState
from lrtasks.models.ops.iir import BinFilter, stable_coefficients
from lrtasks.models.ops.layers import WEIGHT_STD, hide, linear, normal_, silu_feedforward
from lrtasks.models.ops.positions import RelativeBias
from lrtasks.models.ops.scoped_attention import Scope, ScopedAttention, warn_of_padding
from lrtasks.spec import Spec

CHUNKS = 32
"""Approximate default number of attention chunks in a sequence: the paper's C."""
SHORTEST = 32
"""The shortest default chunk, in positions."""

KERNEL_STD = 0.002
KERNEL_LR = 1e-3
START = -2.0
"""Mean of the initial raw coefficients, about sigmoid^-1(0.1), which gives mild filters."""
SPREAD = math.sqrt(0.5)
"""Standard deviation of the initial raw coefficients over draws of the output layer, see :class:`Hypernetwork`."""


class GlobalKernel(Kernel):
    """The causal kernel ``k' = sign(k) max(|k| - λ, 0)`` of the global convolution, with K taps per channel.

    At start k ~ N(0, 0.002²). ``smoothing`` is the width of a running mean over k before the threshold, an odd number
    or None, with zeros beyond both ends of k; ``dropout`` is the rate on the taps.
    """

    directions = 1

    def __init__(self, d_model: int, taps: int, threshold: float, smoothing: int | None, dropout: float) -> None:
        super().__init__()
        self.threshold, self.smoothing = threshold, smoothing
        self.taps = nn.Parameter(torch.randn(d_model, taps) * KERNEL_STD)
        self.dropout = nn.Dropout(dropout)

    def parameter_options(self) -> dict[str, dict[str, Any]]:
        return {"taps": {"lr": KERNEL_LR, "weight_decay": 0.0}}

    def forward(self, length: int) -> Tensor:
        taps = self.taps.unsqueeze(0)
        if self.smoothing is not None:
            taps = F.avg_pool1d(taps, self.smoothing, stride=1, padding=self.smoothing // 2)
        return self.dropout(F.softshrink(taps, self.threshold))[..., :length]


SummaryState = tuple[ExponentialState | WindowState, Tensor, int]
"""Streaming state of :class:`BinSummary`: the state of the convolution; the largest value so far in each window of the
current bin, ``(batch, d_model, O)``; and the position of the next input within its bin."""


class BinSummary(nn.Module):
    """The maximum of a global convolution's output in each of O windows, for every bin except the last.

    Window o of a bin covers the positions from floor(o R / O) up to, but not including, ceil((o + 1) R / O).
    """

    def __init__(self, conv: LongConvLayer, bin_length: int, pooled: int) -> None:
        super().__init__()
        self.conv, self.bin_length, self.pooled = conv, bin_length, pooled

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map ``(batch, length, d_model)`` to ``(batch, d_model, bins - 1, O)``; padding counts as zero."""
        bins = max(-(-x.shape[1] // self.bin_length) - 1, 0)
        if not bins:
            return x.new_zeros(len(x), x.shape[2], 0, self.pooled)
        y = self.conv(hide(x, mask)[:, : bins * self.bin_length]).transpose(1, 2)
        y = y.reshape(*y.shape[:2], bins, self.bin_length)
        return F.adaptive_max_pool1d(y.flatten(0, 1), self.pooled).view(*y.shape[:3], self.pooled)

    def initial_state(self, batch: int) -> SummaryState:
        """Return the state before the first position of the first bin."""
        window = self.conv.initial_state(batch)
        lowest = window.memory.new_full((*window.memory.shape[:2], self.pooled), -torch.inf)
        return window, lowest, 0

    def step(self, x: Tensor, state: SummaryState) -> tuple[Tensor | None, SummaryState]:
        """Read one position ``(batch, d_model)``; at the end of a bin return its summary ``(batch, d_model, O)``."""
        window, before, position = state
        y, window = self.conv.step(x, window)
        edges = torch.arange(self.pooled + 1, device=x.device) * self.bin_length
        inside = (edges[:-1] // self.pooled <= position) & (position < -(-edges[1:] // self.pooled))
        largest = torch.where(inside, torch.maximum(before, y.unsqueeze(-1)), before)
        if position + 1 < self.bin_length:
            return None, (window, largest, position + 1)
        return largest, (window, torch.full_like(largest, -torch.inf), 0)


def mean_at_start(config: FocusLike) -> Tensor:
    """Return the mean of the initial raw coefficients, ``(F, 2)``: θ near 0.1; with ``signed``, θ0 near 0."""
    return torch.tensor([0.0 if config.signed else START, START]).expand(config.filters, 2)


class Hypernetwork(nn.Module):
    """Θ of a bin, computed from the previous bin's summary by two sigmoid layers, shared by all channels and bins.

    At start the first layer is Xavier-uniform; the second has hyperfan-in weights (Chang et al., "Principled Weight
    Initialization for Hypernetworks") of variance 1 / (2 · width · 1/4): two coefficients enter a filter, and the mean
    square of a hidden sigmoid is about 1/4. The bias of the second layer makes the filters mild. ``summary`` is the
    layer's own summary; None if the layers share one.
    """

    unfiltered = 1
    """Number of bins at the start that are not filtered."""

    def __init__(self, config: Focus, summary: BinSummary | None) -> None:
        super().__init__()
        self.d_model, self.filters, self.signed = config.d_model, config.filters, config.signed
        self.hidden = nn.Linear(config.pooled, config.hidden)
        self.out = nn.Linear(config.hidden, 2 * self.filters)
        nn.init.xavier_uniform_(self.hidden.weight)
        nn.init.zeros_(self.hidden.bias)
        nn.init.normal_(self.out.weight, std=math.sqrt(4 / (2 * config.hidden)))
        with torch.no_grad():
            self.out.bias.copy_(mean_at_start(config).flatten())
        self.summary = summary

    def coefficients(self, summary: Tensor) -> Tensor:
        """Map summaries ``(..., O)`` to Θ ``(..., F, 2)``."""
        raw = self.out(self.hidden(summary).sigmoid()).unflatten(-1, (self.filters, 2))
        return stable_coefficients(raw, signed=self.signed)

    def run(
        self, x: Tensor, state: SummaryState | None, mask: Tensor | None, summary: Tensor | None
    ) -> tuple[Tensor | None, SummaryState | None]:
        """Return Θ and the new state; ``summary`` is the summary that the layers share, or None if they share none.

        In the parallel form, Θ belongs to the bins after the unfiltered ones: ``(batch or 1, d_model, bins or 1, F,
        2)``. In the streaming form, the last position of a bin returns Θ of the next bin; other positions return None.
        """
        if self.summary is not None:
            summary, state = computed(self.summary, x, state=state, mask=mask)
        return None if summary is None else self.coefficients(summary), state

    def initial_state(self, batch: int) -> tuple[Tensor, SummaryState | None]:
        """Return Θ in the first bin, ``(batch or 1, d_model, F, 2)`` (zeros if it is not filtered), and a state."""
        theta = self.out.weight.new_zeros(batch, self.d_model, self.filters, 2)
        return theta, None if self.summary is None else self.summary.initial_state(batch)


class LearnedCoefficients(nn.Module):
    """One learned Θ per channel and filter for all bins, including the first; methods as in :class:`Hypernetwork`.

    At start its raw values have the same mean and standard deviation as the ones of Focus's hypernetwork.
    """

    unfiltered = 0

    def __init__(self, config: FocusH) -> None:
        super().__init__()
        self.signed = config.signed
        self.raw = nn.Parameter(mean_at_start(config) + SPREAD * torch.randn(config.d_model, config.filters, 2))

    def parameter_options(self) -> dict[str, dict[str, Any]]:
        return {"raw": {"weight_decay": 0.0}}

    def run(self, x: Tensor, state: None, mask: Tensor | None, summary: Tensor | None) -> tuple[Tensor | None, None]:
        return None if x.dim() == 2 else stable_coefficients(self.raw, signed=self.signed)[None, :, None], None

    def initial_state(self, batch: int) -> tuple[Tensor, None]:
        return stable_coefficients(self.raw, signed=self.signed)[None], None


def default_chunk(length: int) -> int:
    """Return the shortest chunk of at least max(32, length / 32) positions whose last chunk is at least half full.

    >>> [default_chunk(length) for length in (32, 256, 258, 1026, 65538)]
    [32, 32, 33, 36, 2049]
    """
    chunk = max(SHORTEST, -(-length // CHUNKS))
    while length % chunk and 2 * (length % chunk) < chunk < length:
        chunk += 1
    return chunk


class FocusLayer(NormedBlock):
    """One layer of the module docstring, for sequences of at most ``length``; the last chunk is padded."""

    def __init__(self, config: FocusLike, length: int, bin_length: int, chunk: int, causal: bool) -> None:
        super().__init__()
        d_model, d_k, d_v = config.d_model, config.d_k or max(1, config.d_model // 2), config.d_v or config.d_model
        self.coefficients = config.coefficients(length, bin_length)
        unfiltered = self.coefficients.unfiltered
        self.filter = BinFilter(bin_length, unfiltered, config.filtering, conjugate=config.conjugate)
        bias = RelativeBias(chunk, truncated=False) if config.bias == "simple" else None
        scope = Scope(causal, chunk=chunk)
        self.attention = ScopedAttention((d_k, d_v), chunk, scope, "softmax", bias, by_rank=True)
        self.widths = [d_k, d_v, d_v, d_model, d_model]
        self.query = linear(d_model, d_k, truncated=False)
        self.mix = linear(d_model, sum(self.widths), truncated=False)
        self.out = nn.Linear(d_v, d_model, bias=False)
        normal_(self.out.weight, WEIGHT_STD, truncated=False)
        self.set_norm(*config.around)

    def initial_state(self, batch: int) -> Any:
        """Return Θ, past filter outputs, a chunk's keys and values, the state that gives Θ, and the next position."""
        theta, inner = self.coefficients.initial_state(batch)
        cache = self.attention.initial_state(batch, self.query.weight)
        return theta, self.filter.initial_state(batch, theta), cache, inner, 0

    def run(self, x: Tensor, state: Any, mask: Tensor | None, summary: Tensor | None = None) -> tuple[Tensor, Any]:
        """Compute the layer; ``summary`` is the summary of the encoded input, if shared."""
        before: Any = state or (None, None, None, None, 0)
        theta, past, cache, inner, position = before
        normed = self.normed(x)
        found, inner = self.coefficients.run(normed, inner, mask, summary)
        if state is None:
            filtered = self.filter(hide(normed, mask), found)
        else:
            filtered, past = self.filter.step(normed, theta, past, position)
            theta = theta if found is None else found
        k, v, reset, update, hidden = self.mix(filtered).split(self.widths, -1)
        attended, cache = computed(self.attention, self.query(normed), k, v, state=cache, mask=mask)
        candidate = self.dropout(F.silu(hidden + self.out(F.silu(reset) * attended)))
        return self.blend(x, update.sigmoid(), candidate), (theta, past, cache, inner, position + 1)


class FocusStack(Stack, Block):
    """All layers with their feed-forward sub-layers, and the summary of the encoded input, if the layers share one."""

    def __init__(self, config: FocusLike, length: int, causal: bool) -> None:
        super().__init__()
        bin_length, chunk = config.bin_length(length), config.chunk or min(default_chunk(length), length)
        layers = [FocusLayer(config, length, bin_length, chunk, causal) for _ in range(config.layers)]
        sizes = config.d_model, config.d_ffn or 2 * config.d_model, config.dropout
        maps = (silu_feedforward(*sizes, truncated=False) for _ in layers)
        self.layers = nn.ModuleList(layers)
        self.feedforward = nn.ModuleList(ResidualBlock(each, *config.around) for each in maps)
        self.summary = config.shared_summary(length, bin_length)
        self.causal = causal and config.filtering != "circular"

    def diagnostics(self) -> dict[str, Any]:
        """Return whether the model is causal; the circular form is not."""
        return {"causal": self.causal}

    def initial_state(self, batch: int) -> Any:
        """Return the states of the shared summary and of the layers; raise :class:`UsageError` if not causal."""
        if not self.causal:
            raise UsageError("filtering='circular' is not causal and has no streaming form")
        shared = None if self.summary is None else self.summary.initial_state(batch)
        return shared, [layer.initial_state(batch) for layer in self.layers]  # type: ignore[operator]

    def run(self, x: Tensor, state: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
        shared, states = state or (None, [None] * len(self.layers))
        summary, following = None, []
        if self.summary is not None:
            summary, shared = self.through(self.summary, x, by=partial(computed, state=shared, mask=mask))
        for layer, feedforward, before in zip(self.layers, self.feedforward, states, strict=True):
            x, after = self.through(layer, x, before, mask, summary, by=FocusLayer.run)
            x = self.through(feedforward, x)
            following.append(after)
        return x, (shared, following)


@dataclass(frozen=True)
class FocusLike(ModelConfig):
    """Layers of filters and chunked attention; subclasses define how the filters get their coefficients."""

    bins: int = parameter(4, "number of time bins, all with the same filters; a short last bin is padded", at_least=1)
    filters: int = parameter(1, "filters F per channel and bin; their outputs are summed", at_least=1, at_most=1024)
    filtering: Literal["reset", "carry", "circular"] = parameter(
        "reset", "filter state at the start of a bin: zeros, outputs of the previous bin, or circular (not causal)"
    )
    conjugate: bool = parameter(True, "conjugate in the circular form, as in the paper; false: circular convolution")
    allow_non_causal: bool = parameter(False, "allow filtering='circular' in a causal model; it then sees the future")
    signed: bool = parameter(False, "filter coefficients of both signs (also low-pass filters), instead of 0 to 1")
    chunk: int | None = parameter(None, "positions per chunk; none: about 1/32 of the length, at least 32", at_least=1)
    bias: Literal["simple", "none"] = parameter("simple", "learned bias by distance inside a chunk, or none")
    d_k: int | None = parameter(None, "width of queries and keys; none: d_model / 2", at_least=1)
    d_v: int | None = parameter(None, "width of values; none: d_model", at_least=1)
    d_ffn: int | None = parameter(None, "width inside the feed-forward sub-layer; none: 2 d_model", at_least=1)

    def check(self) -> None:
        if not self.conjugate and self.filtering != "circular":
            raise UsageError(f"{self.name}: conjugate has no meaning with filtering={self.filtering!r}")

    def coefficients(self, length: int, bin_length: int) -> Hypernetwork | LearnedCoefficients:
        """Build the module that provides one layer's coefficients."""
        raise NotImplementedError

    def shared_summary(self, length: int, bin_length: int) -> BinSummary | None:
        """Build the summary that the layers share; None if they share none."""
        return None

    def blocks(self, input: Spec, causal: bool) -> list[nn.Module]:
        """Build the stack, as a single block; raise :class:`UsageError` for circular filters in a causal model."""
        warn_of_padding(self.name, input.length, self.chunk or default_chunk(input.length))
        if causal and self.filtering == "circular":
            found = f"{self.name}: filtering='circular' is not causal: outputs depend on what follows in their bin"
            if not self.allow_non_causal:
                raise UsageError(f"{found}; take 'reset' or 'carry', causal=False, or allow_non_causal=true")
            warnings.warn(f"{found}; scores of tasks that predict what follows mean nothing", stacklevel=2)
        return [FocusStack(self, input.length, causal)]

    def bin_length(self, length: int) -> int:
        """Return R for sequences of ``length``; warn of a padded bin, raise :class:`UsageError` for too many bins."""
        if self.bins > length:
            raise UsageError(f"{self.name}: bins must be at most the sequence length ({length}), found {self.bins}")
        bin_length = -(-length // self.bins)
        if length % self.bins:
            found, used = f"{self.name}: {self.bins} bins do not divide the length {length}", -(-length // bin_length)
            padded = f"{used} bins of {bin_length} are used, the last one padded by {used * bin_length - length}"
            warnings.warn(f"{found}; {padded}", stacklevel=2)
        return bin_length


def small_and_paper(width: int) -> Presets:
    """Return the presets of both models; ``width`` gives about as many parameters as dlr's small preset has."""
    return {
        "small": {"d_model": width, "layers": 2, "norm": "layer", "budget.lr": 0.001},
        "paper": ATOMIC,
        # Focus paper, Table 6, associative recall with vocabulary 30: one filter, four bins, 2,000 samples, 10 epochs
        # of warm-up. Weight decay, 200 epochs, the cosine schedule and 500 test sequences are not given there; they
        # are taken from the Hyena paper.
        "paper/recall": {"d_model": 64, "layers": 2, "bins": 4, "filters": 1, "budget.lr": 0.0001},
    }


@registry.register("focus")
@dataclass(frozen=True)
class Focus(FocusLike):
    """Filters set by a hypernetwork for each time bin, then chunked attention and a gated residual.

    Source: Lutati, Zimerman and Wolf (arXiv:2305.14952), equations 1 to 14, made causal.
    """

    presets: ClassVar[Presets] = small_and_paper(48)

    bins: int = parameter(4, "number of time bins, each with its own filters; a short last bin is padded", at_least=2)
    shared: bool = parameter(
        True, "true: all layers share one global convolution, of the encoded input; false: one per layer, of its input"
    )
    pooled: int = parameter(4, "values O per channel that the hypernetwork reads of a bin", at_least=1, at_most=65536)
    hidden: int = parameter(16, "hidden width of the hypernetwork's two layers", at_least=1, at_most=65536)
    kernel_length: int | None = parameter(None, "taps of the global convolution; none: the sequence length", at_least=1)
    squash: float = parameter(
        0.003, "threshold of the global kernel: smaller taps become zero, others shrink by it", at_least=0
    )
    smooth: int | None = parameter(
        None,
        "number of taps in a running mean over the global kernel, odd; none: no running mean",
        at_least=1,
        at_most=1 << 24,
    )
    kernel_dropout: float = parameter(0.2, "dropout rate on the taps of the global kernel", at_least=0, at_most=0.99)

    def check(self) -> None:
        super().check()
        if self.smooth is not None and self.smooth % 2 == 0:
            raise UsageError(f"{self.name}: smooth must be odd, found {self.smooth}")

    def coefficients(self, length: int, bin_length: int) -> Hypernetwork:
        return Hypernetwork(self, None if self.shared else self._summary(length, bin_length))

    def shared_summary(self, length: int, bin_length: int) -> BinSummary | None:
        return self._summary(length, bin_length) if self.shared else None

    def _summary(self, length: int, bin_length: int) -> BinSummary:
        taps = min(length, self.kernel_length or length)
        kernel = GlobalKernel(self.d_model, taps, self.squash, self.smooth, self.kernel_dropout)
        return BinSummary(LongConvLayer(kernel, self.d_model, taps, taps, glu=True), bin_length, self.pooled)


@registry.register("focus-h")
@dataclass(frozen=True)
class FocusH(FocusLike):
    """Focus with learned filters that do not depend on the input.

    Source: Lutati, Zimerman and Wolf (arXiv:2305.14952), an ablation.
    """

    presets: ClassVar[Presets] = small_and_paper(56)

    def coefficients(self, length: int, bin_length: int) -> LearnedCoefficients:
        return LearnedCoefficients(self)
