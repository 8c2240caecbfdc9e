"""SeqBoat: a state-space map at every position, and gated attention only where a learned configurator selects it.

Source: "Sparse Modular Activation for Efficient Sequence Modeling", section 3, and its public code. Where the
two differ, this module follows the code (docs/models/seqboat.md lists the differences).

    S        input of the layer, (batch, length, d)      X   Norm(S) if pre-norm, else S
    H        dropout(SiLU(SSM(X)))                       T   H W + b
    a, c     decision and confidence of the configurator at each position, from H
    Y        gated attention unit on the active positions of H, zeros elsewhere

    u_0, u_1   logits of "skip" and "run" at a position
    τ          learned temperature, stored as log τ, at start α_0 sqrt(d_model)
    c          the probability of "run"; a module runs where c > ½, which does not depend on τ

No gradient flows through the decision a. A configurator learns through c alone, and only where its module ran.

    S' = SiLU(c ⊙ Y + T + S)               bidirectional, dropout on Y
    S' = SiLU(dropout(c ⊙ Y + T) + S)      causal
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.config import Presets, parameter
from lrtasks.errors import UsageError
from lrtasks.models import mega, registry
from lrtasks.models.base import ATOMIC, RECALL, NormedBlock, computed
from lrtasks.models.ops.layers import Portrait, at_least_float32, linear
from lrtasks.models.ops.positions import RelativeBias
from lrtasks.models.ops.scoped_attention import Memory, Scope, SharedAttention, attention_span, warn_of_padding
from lrtasks.spec import Spec

DEFAULT_WINDOW = 256
GUMBEL_START, GUMBEL_DECAY, GUMBEL_END = 2.0, 0.999995, 0.5
EXPERT_WIDTH, EXPERT_GAIN = 16, 0.32


class Router(nn.Module):
    """The configurator of one module: where the module runs, and the confidence c in [0, 1] of "run".

    ``softmax`` and ``sigmoid``: two logits or one, ``h W + b``, divided by τ. ``gumbel``: two logits, divided by
    max(2 · 0.999995^n, ½), where n counts the forward passes in training (a buffer that a checkpoint stores). Training
    adds an independent Gumbel draw to each logit before the division; evaluation does not (there the public code sets
    c = 1). ``moe``: logits <W h, e_i> / |e_i| with learned embeddings e_0, e_1 of width 16, as X-MoE does
    (arXiv:2204.09179).
    """

    updates: Tensor

    def __init__(self, config: SeqBoat) -> None:
        super().__init__()
        self.kind, d_model = config.router, config.d_model
        if self.kind == "moe":
            self.reduce = nn.Linear(d_model, EXPERT_WIDTH, bias=False)
            self.experts = nn.Parameter(nn.init.orthogonal_(torch.empty(2, EXPERT_WIDTH), gain=EXPERT_GAIN))
            return
        self.logits = linear(d_model, 1 if self.kind == "sigmoid" else 2, truncated=True)
        if self.kind == "gumbel":
            self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        else:
            self.log_tau = nn.Parameter(torch.tensor([math.log(config.temperature * math.sqrt(d_model))]))

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Map ``(..., d_model)`` to the decision, bool, and the confidence, float32 or higher, each ``(...)``."""
        margin = self.margin(h)
        if self.kind == "gumbel" and self.training:
            self.updates += 1
        return margin > 0, torch.sigmoid(margin)

    def margin(self, h: Tensor) -> Tensor:
        """Return the log-odds of "run" against "skip": ``(..., d_model)`` to ``(...)``; 0 means "skip"."""
        if self.kind == "moe":
            directions = F.normalize(at_least_float32(self.experts), dim=-1)
            return at_least_float32(self.reduce(h)) @ (directions[1] - directions[0])
        u = at_least_float32(self.logits(h))
        if self.kind == "gumbel" and self.training:
            u = u - torch.empty_like(u).exponential_().log()  # minus the log of an exponential draw is a Gumbel draw
        return (u[..., 0] if self.kind == "sigmoid" else u[..., 1] - u[..., 0]) / self._tau()

    def temperature(self) -> float | None:
        """Return the divisor of the logits; None for ``moe``, which has none."""
        return None if self.kind == "moe" else float(self._tau())

    def _tau(self) -> Tensor:
        if self.kind == "gumbel":
            return (GUMBEL_START * GUMBEL_DECAY ** self.updates.double()).clamp_min(GUMBEL_END)
        return at_least_float32(self.log_tau).exp()


@dataclass(frozen=True)
class Selection:
    """Compression of a batch of ``shape`` to ``width`` slots per row, the largest count and at least 1.

    Row b keeps its ``counts[b]`` active positions, in order, in the first slots. ``source`` is the flat index of every
    active position in ``(batch, length)``, ascending, and ``target`` that of its slot in ``(batch, width)``.
    """

    shape: tuple[int, int]
    width: int
    counts: Tensor
    source: Tensor
    target: Tensor

    @classmethod
    def of(cls, active: Tensor) -> Selection:
        """Build a selection from ``active``, ``(batch, length)`` bool."""
        batch, length = active.shape
        counts = active.sum(1)
        rows, columns = active.nonzero(as_tuple=True)
        width = max(1, int(counts.max()))
        rank = active.cumsum(1)[rows, columns] - 1
        return cls((batch, length), width, counts, rows * length + columns, rows * width + rank)

    @property
    def valid(self) -> Tensor:
        """Mask of the used slots, ``(batch, width)`` bool."""
        return torch.arange(self.width, device=self.counts.device) < self.counts.unsqueeze(1)

    @property
    def positions(self) -> Tensor:
        """Original position of each slot, ``(batch, width)``; 0 in free slots."""
        position = self.source.new_zeros(self.shape[0] * self.width)
        return position.index_copy(0, self.target, self.source % self.shape[1]).view(-1, self.width)

    def compress(self, x: Tensor) -> Tensor:
        """Map ``(batch, length, d)`` to ``(batch, width, d)`` by a scatter of the active rows; zeros in free slots."""
        rows = x.flatten(0, 1).index_select(0, self.source)
        slots = rows.new_zeros(self.shape[0] * self.width, x.shape[-1]).index_copy(0, self.target, rows)
        return slots.view(-1, self.width, x.shape[-1])

    def extract(self, y: Tensor) -> Tensor:
        """Map ``(batch, width, d)`` back to ``(batch, length, d)`` by one gather; zeros at inactive positions."""
        rows = y.flatten(0, 1).index_select(0, self.target)
        places = rows.new_zeros(self.shape[0] * self.shape[1], y.shape[-1]).index_copy(0, self.source, rows)
        return places.view(*self.shape, y.shape[-1])


@dataclass(frozen=True)
class Activity:
    """Where a module ran in the last forward pass; each field is ``(batch, length)``."""

    valid: Tensor
    """False at padding."""
    active: Tensor
    confidence: Tensor
    """0 where inactive."""


class SparseModule(nn.Module):
    """``c ⊙ module(H)`` at the active positions, zeros at the others.

    With the router ``always`` the module runs everywhere, with c = 1. A module with attention has a ``scope`` and also
    takes valid slots and original positions. ``dropout`` is the rate on the module's output.
    """

    activity: Activity | None = None

    def __init__(self, inner: nn.Module, config: SeqBoat, scope: Scope | None, dropout: float) -> None:
        super().__init__()
        self.inner, self.scope = inner, scope
        self.router = None if config.router == "always" else Router(config)
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: Tensor, mask: Tensor | None = None) -> Tensor:
        """Compute all positions; ``mask`` is ``(batch, length)`` bool, False at padding (never active), or ``None``."""
        valid = torch.ones(h.shape[:2], dtype=torch.bool, device=h.device) if mask is None else mask
        if self.router is None:
            self.activity = Activity(valid, valid, valid.to(h.dtype))
            return self.dropout(self.inner(h, mask))
        active, confidence = self.router(h)
        active = active & valid
        self.activity = Activity(valid, active, confidence.detach() * active)
        selection = Selection.of(active)
        # a causal query in a used slot sees only used slots, since all used slots come first
        slots = None if self.scope is None or self.scope.causal else selection.valid
        inner = (slots, selection.positions) if self.scope is not None else ()
        y = self.dropout(self.inner(selection.compress(h), *inner))
        return selection.extract(y) * confidence.to(y.dtype).unsqueeze(-1)

    def initial_state(self, batch: int) -> Any:
        return self.inner.initial_state(batch)  # type: ignore[operator]

    def step(self, h: Tensor, state: Any) -> tuple[Tensor, Any]:
        active, confidence = (None, None) if self.router is None else self.router(h)
        inner = (active,) if self.scope is not None else ()
        y, state = self.inner.step(h, state, *inner)  # type: ignore[operator]
        return y if active is None else y * (active * confidence).to(y.dtype).unsqueeze(-1), state

    @torch.no_grad()
    def diagnostics(self) -> dict[str, float]:
        """Return numbers that describe the last forward pass.

        ``activation_rate`` and ``activation_rate_std``: share of valid positions that are active, mean and standard
        deviation over samples; ``compressed_length``: slots of the compressed batch over its length; ``temperature``;
        ``attention_span``: mean distance from a query to the other keys that it sees, in original positions, averaged
        over the queries that see other keys (0 if there are none).
        """
        if self.activity is None:
            return {}
        active, valid = self.activity.active, self.activity.valid
        rate = active.sum(1) / valid.sum(1).clamp_min(1)
        found = {"activation_rate": float(rate.mean()), "activation_rate_std": float(rate.std(correction=0))}
        found["compressed_length"] = float(active.sum(1).max() / active.shape[1])
        temperature = None if self.router is None else self.router.temperature()
        if temperature is not None:
            found["temperature"] = temperature
        if self.scope is not None:
            selection = Selection.of(active)
            span = attention_span(selection.positions, selection.counts, self.scope)
            found["attention_span"] = float(span.sum() / (span > 0).sum().clamp_min(1))
        return found

    def portraits(self) -> list[Portrait]:
        """Return a figure of the confidence at each position in the last forward pass, 0 where inactive."""
        if self.activity is None or self.router is None:
            return []
        confidence = self.activity.confidence.float().cpu().numpy().astype(np.float64)
        return [Portrait("confidence", "positions", {"confidence": confidence}, "position", "sample")]


class GatedAttentionUnit(nn.Module):
    """``(g ⊙ O) W_h + b_h`` with ``z, g, v = SiLU(h W + b)`` in this order and ``O`` the attended values.

    Source: Hua et al., "Transformer Quality in Linear Time" (arXiv:2202.10447), in the form of SeqBoat's code.

    ``valid``, ``positions`` and ``active`` are as in :class:`SharedAttention`, the attention on z and v.
    """

    def __init__(self, d_model: int, attention: SharedAttention) -> None:
        super().__init__()
        self.attention = attention
        d_z, d_v = attention.widths
        self.widths = [d_z, d_v, d_v]
        self.mix = linear(d_model, sum(self.widths), truncated=True)
        self.out = linear(d_v, d_model, truncated=True)

    def forward(self, h: Tensor, valid: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        z, g, v = torch.split(F.silu(self.mix(h)), self.widths, -1)
        return self.out(g * self.attention(z, v, valid, positions))

    def initial_state(self, batch: int) -> Memory:
        return self.attention.initial_state(batch)

    def step(self, h: Tensor, state: Memory, active: Tensor | None = None) -> tuple[Tensor, Memory]:
        z, g, v = torch.split(F.silu(self.mix(h)), self.widths, -1)
        attended, state = self.attention.step(z, v, state, active)
        return self.out(g * attended), state


class SeqBoatLayer(NormedBlock):
    """One layer of the module docstring; with several modules, c ⊙ Y is the sum over the modules."""

    def __init__(self, config: SeqBoat, length: int, scope: Scope) -> None:
        super().__init__()
        d_model = config.d_model
        dropout = 0.0 if scope.causal else config.dropout  # a causal layer drops from the sum, not from each module
        unit = GatedAttentionUnit(d_model, config.shared_attention(length, scope))
        modules = [SparseModule(unit, config, scope, dropout)]
        if config.feedforward == "sparse":
            modules.append(SparseModule(config.feedforward_map(), config, None, dropout))
        self.ssm = config.make_ssm(length, scope.causal)
        self.skip = linear(d_model, d_model, truncated=True)
        self.sparse = nn.ModuleList(modules)
        self.set_norm(*config.around)
        self.residual_dropout = nn.Dropout(config.dropout if scope.causal else 0.0)

    def initial_state(self, batch: int) -> Any:
        """Return the states of the state-space map and of the modules."""
        return self.ssm.initial_state(batch), [module.initial_state(batch) for module in self.sparse]  # type: ignore[operator]

    def run(self, x: Tensor, state: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
        recurrent, memories = state or (None, [None] * len(self.sparse))
        h, recurrent = computed(self.ssm, self.normed(x), state=recurrent, mask=mask)
        h = self.dropout(F.silu(h))
        update, following = self.skip(h), []
        for module, memory in zip(self.sparse, memories, strict=True):
            y, memory = computed(module, h, state=memory, mask=mask)
            update = update + y
            following.append(memory)
        return self.after(F.silu(self.residual_dropout(update) + x)), (recurrent, following)


PIXELS: dict[str, Any] = {**mega.PIXELS, "attention": "relu2", "sinusoids": True}
SHORT: dict[str, Any] = {"window": 256, "kernel_length": 1024}
IMAGE: dict[str, Any] = {**PIXELS, **SHORT, "max_positions": 1024}
TEXT: dict[str, Any] = {**SHORT, "d_model": 128, "temperature": 0.3, "d_z": 64, "norm": "scale", "dropout": 0.1}
TREES: dict[str, Any] = {"d_model": 80, "layers": 6, "temperature": 0.3, "dropout": 0.1, "max_positions": 2002}
TREES |= {"kernel_length": 1024, **mega.budget(90_000, 64, 4e-3, 1e-3, 27_000)}
PATH_X: dict[str, Any] = {"layers": 6, "max_positions": 16384, "window": 512, **PIXELS, **mega.PATH_X}
TASK_PRESETS: Presets = {
    # About as many parameters as dlr's small preset; a step takes longer.
    "small": {"d_model": 64, "layers": 2, "norm": "layer", "window": 32, "budget.lr": 0.001},
    "small/compression": {"window": None},
    **mega.SHORT_SAMPLES,
    # N = 16, d_z and w = 256 as in most rows of the SeqBoat paper's table
    "paper": {**ATOMIC, "d_z": 64, "d_state": 16, "window": 256},
    "paper/recall": {**RECALL, "d_z": 32},
    # SeqBoat paper, hyper-parameters of LRA.
    **dict.fromkeys(mega.LISTOPS_PRESETS, TREES),
    **dict.fromkeys(mega.PATH_X_PRESETS, PATH_X),
}
"""Presets that SeqBoat and its two named variants share."""


def without(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a copy of ``settings`` without the entry ``name``."""
    return {key: value for key, value in settings.items() if key != name}


@registry.register("seqboat")
@dataclass(frozen=True)
class SeqBoat(mega.GatedConfig):
    """A moving average everywhere, and gated attention at the positions that a learned configurator selects.

    The paper's ablations are settings of ``router``, ``scope``, ``ssm`` and ``feedforward``.

    Source: Ren et al. (arXiv:2306.11197), section 3.
    """

    presets: ClassVar[Presets] = {
        **TASK_PRESETS,
        # The other rows of the paper's LRA table, and its language model, for a user's own tasks.
        "lra-text": {**TEXT, "layers": 4, "bias": "compressed", **mega.TEXT},
        "lra-retrieval": {**TEXT, "layers": 6, "max_positions": 4002, **mega.RETRIEVAL},
        "lra-image": {**IMAGE, "d_model": 160, "layers": 8, "temperature": 0.4, "d_z": 96, **mega.IMAGE},
        "lra-pathfinder": {**IMAGE, "d_model": 128, "layers": 6, "d_z": 64, **mega.PATHFINDER},
        "speech": {"d_model": 60, "layers": 8, "d_z": 30, "window": 256, "bias": "compressed", "kernel_length": 4000}
        | {**PIXELS, **mega.SPEECH},
        "enwik8": {"d_model": 616, "layers": 14, "d_z": 128, "norm": "layer", "prenorm": True, "window": 1024}
        | {"bias": "rotary", "dropout": 0.15, "kernel_length": 2048}
        | {**mega.ENWIK8, "budget.clip": 0.25},
    }

    truncated = True

    d_z: int | None = parameter(None, "width of queries and keys; none: d_model / 2", at_least=1)
    scope: Literal["window", "full", "chunk"] = parameter(
        "window", "keys that a query sees in the compressed sequence: a sliding window, all keys, or one chunk"
    )
    window: int | None = parameter(
        None,
        "active tokens in the window: w before, or w/2 on either side; none: 256, or the length if shorter",
        at_least=1,
    )
    chunk: int = parameter(128, "active tokens per chunk, with scope 'chunk'", at_least=1)
    bias: Literal["simple", "compressed", "rotary"] = parameter(
        "simple", "bias by distance in original positions or in the compressed sequence, or rotary original positions"
    )
    max_positions: int | None = parameter(
        None, "distances with a value in the bias (simple, or compressed without a window); none: length", at_least=1
    )
    router: Literal["softmax", "sigmoid", "gumbel", "moe", "always"] = parameter(
        "softmax", "latent configurator, which selects active tokens; 'always' for none"
    )
    temperature: float = parameter(1.0, "start temperature of softmax and sigmoid, in units of sqrt(d_model)", above=0)
    ssm: Literal["ema", "s4d"] = parameter("ema", "state-space map: MD-EMA, or S4D-Lin, with an even d_state")
    feedforward: Literal["none", "after", "sparse"] = parameter(
        "none", "feed-forward: none, a sub-layer after each layer, or a module with its own configurator"
    )
    sinusoids: bool = parameter(False, "add sinusoidal positions, times one learned scale, to the encoded input")

    def check(self) -> None:
        super().check()
        if self.window is not None and self.scope != "window":
            raise UsageError(f"{self.name}: window must be none with scope={self.scope!r}, found {self.window}")

    def blocks(self, input: Spec, causal: bool) -> list[nn.Module]:
        scope = self.attention_scope(input.length, causal)
        return self.stack(lambda: SeqBoatLayer(self, input.length, scope), feedforward=self.feedforward == "after")

    def attention_scope(self, length: int, causal: bool) -> Scope:
        """Return which keys a query sees in a sequence of at most ``length``.

        Raises:
            UsageError: for a window above the length, or an odd one in a bidirectional model.
        """
        if self.scope == "full":
            return Scope(causal)
        if self.scope == "chunk":
            if self.router == "always":
                warn_of_padding(self.name, length, self.chunk)
            return Scope(causal, chunk=self.chunk)
        even = 1 if causal else 2
        window = self.window or max(even, min(DEFAULT_WINDOW, length) // even * even)
        if self.window is not None and window > length:
            limit = f"the sequence length ({length})"
            raise UsageError(f"{self.name}: window must be none or at most {limit}, found {window}")
        if window % even:
            raise UsageError(f"{self.name}: a bidirectional model needs an even window, found {window}")
        return Scope(causal, window=window)

    def shared_attention(self, length: int, scope: Scope) -> SharedAttention:
        """Build the attention of one layer."""
        by_rank, rotary = self.bias == "compressed", self.bias == "rotary"
        reach = self.max_positions or length
        if by_rank and scope.before is not None:
            reach = scope.before + 1
        widths = (self.d_z or max(1, self.d_model // 2), self.d_v or 2 * self.d_model)
        bias = None if rotary else RelativeBias(reach)
        return SharedAttention(widths, length, scope, self.attention, bias, by_rank=by_rank, rotary=rotary)


@registry.register("seqboat-full")
@dataclass(frozen=True)
class SeqBoatFull(SeqBoat):
    """SeqBoat without a window: every active token sees all others (the paper's ablation).

    Source: Ren et al. (arXiv:2306.11197).
    """

    presets: ClassVar[Presets] = {name: without(settings, "window") for name, settings in TASK_PRESETS.items()}

    scope: Literal["window", "full", "chunk"] = parameter(
        "full", "keys that a query sees in the compressed sequence: a sliding window, all keys, or one chunk"
    )


@registry.register("seqboat-local")
@dataclass(frozen=True)
class SeqBoatLocal(SeqBoat):
    """SeqBoat without a configurator: gated attention at every position (the paper's ablation).

    Source: Ren et al. (arXiv:2306.11197).
    """

    presets: ClassVar[Presets] = {name: without(settings, "temperature") for name, settings in TASK_PRESETS.items()}

    router: Literal["softmax", "sigmoid", "gumbel", "moe", "always"] = parameter(
        "always", "latent configurator, which selects active tokens; 'always' for none"
    )
