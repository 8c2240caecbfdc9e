"""SeqBoat: a state-space map everywhere, gated attention only where a learned configurator asks for it.

Source: "Sparse Modular Activation for Efficient Sequence Modeling", section 3, and its public code, which wins where
the two differ (docs/models/seqboat.md lists where).

    S        input of the layer, (batch, length, d)      X   Norm(S) if pre-norm, else S
    H        dropout(SiLU(SSM(X)))                       T   H W + b
    a, c     decision and confidence of the configurator at each position, from H
    Y        gated attention unit on the active positions of H, zeros elsewhere

    S' = SiLU(c ⊙ Y + T + S)               bidirectional, dropout on Y
    S' = SiLU(dropout(c ⊙ Y + T) + S)      causal
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.config import Presets, parameter
from lrtasks.errors import UsageError
from lrtasks.models import lra, registry
from lrtasks.models.base import Block, ModelConfig, ResidualBlock
from lrtasks.models.ops.convolution import SSM, Kernel
from lrtasks.models.ops.exponentials import EMAKernel
from lrtasks.models.ops.gated_attention import GatedAttentionUnit, SharedAttention
from lrtasks.models.ops.layers import FeedForward, linear, make_norm, silu_feedforward
from lrtasks.models.ops.positions import RelativeBias, Sinusoids
from lrtasks.models.ops.scoped_attention import Scope, warn_of_padding
from lrtasks.models.ops.sparse import Router, SparseModule, make_router
from lrtasks.models.s4d import S4D, S4DKernel
from lrtasks.spec import Spec

DEFAULT_WINDOW = 256


class SeqBoatLayer(Block):
    """One layer, as the module docstring says; with several modules, the sum of their c ⊙ Y.

    Args:
        d_model: width d.
        ssm: the state-space map.
        modules: what may run at each position.
        norm: normalisation, one of :data:`lrtasks.models.ops.layers.NORMS`.
        prenorm: normalise before instead of after.
        dropout: rate on H, and on c ⊙ Y + T if causal.
        causal: see above.
    """

    def __init__(
        self,
        d_model: int,
        ssm: SSM,
        modules: list[SparseModule],
        *,
        norm: str,
        prenorm: bool,
        dropout: float,
        causal: bool,
    ) -> None:
        super().__init__()
        self.ssm = ssm
        self.skip = linear(d_model, d_model, truncated=True)
        self.sparse = nn.ModuleList(modules)
        self.norm = make_norm(norm, d_model)
        self.prenorm = prenorm
        self.dropout = nn.Dropout(dropout)
        self.residual_dropout = nn.Dropout(dropout if causal else 0.0)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.dropout(F.silu(self.ssm(self.norm(x) if self.prenorm else x, mask)))
        update = self.skip(h)
        for module in self.sparse:
            update = update + module(h, mask)
        y: Tensor = F.silu(self.residual_dropout(update) + x)
        return y if self.prenorm else self.norm(y)

    def initial_state(self, batch: int) -> Any:
        """States of the state-space map and of the modules, and the position of the next input."""
        return self.ssm.initial_state(batch), [module.initial_state(batch) for module in self.sparse], 0  # type: ignore[operator]

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One position ``(batch, d_model)``; equals :meth:`forward` of a causal layer in evaluation mode."""
        recurrent, memories, position = state
        h, recurrent = self.ssm.step(self.norm(x) if self.prenorm else x, recurrent)
        h = F.silu(h)
        update, following = self.skip(h), []
        for module, memory in zip(self.sparse, memories, strict=True):
            y, memory = module.step(h, memory, position)  # type: ignore[operator]
            update = update + y
            following.append(memory)
        y = F.silu(update + x)
        return y if self.prenorm else self.norm(y), (recurrent, following, position + 1)


PIXELS: dict[str, Any] = {"attention": "relu2", "norm": "batch", "prenorm": True, "sinusoids": True}
IMAGE: dict[str, Any] = {**PIXELS, "window": 256, "max_positions": 1024, "kernel_length": 1024}
TEXT: dict[str, Any] = {
    "d_model": 128,
    "temperature": 0.3,
    "d_z": 64,
    "norm": "scale",
    "window": 256,
    "dropout": 0.1,
    "kernel_length": 1024,
}
TASK_PRESETS: Presets = {
    # About as many parameters as dlr's small preset; a step takes longer.
    "small": {"d_model": 64, "layers": 2, "norm": "layer", "window": 32, "budget.lr": 0.001},
    "small/compression": {"window": None},
    # The budget of the DLR paper's atomic tasks, at that paper's width; N = 16, d_z and w = 256 as in most rows of the
    # SeqBoat paper's table.
    "paper": {
        "d_model": 128,
        "layers": 1,
        "norm": "layer",
        "d_z": 64,
        "d_state": 16,
        "window": 256,
        "budget.lr": 0.001,
    },
    # Focus and Hyena papers, associative recall: width 64, two layers, 2,000 samples.
    "paper/recall": {"d_model": 64, "d_z": 32, "layers": 2, "budget.lr": 0.0005},
    # SeqBoat paper, hyper-parameters of LRA.
    **lra.paper_presets(
        lra.LISTOPS_TASKS,
        {
            "d_model": 80,
            "layers": 6,
            "temperature": 0.3,
            "dropout": 0.1,
            "kernel_length": 1024,
            "max_positions": 2002,
            **lra.budget(90_000, 64, 4e-3, 1e-3, 27_000),
        },
    ),
    **lra.paper_presets(lra.PATH_X_TASKS, {"layers": 6, "max_positions": 16384, "window": 512, **PIXELS, **lra.PATH_X}),
}
"""What SeqBoat and its two named variants share."""


def without(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """``settings`` without one of them."""
    return {key: value for key, value in settings.items() if key != name}


@registry.register("seqboat")
@dataclass(frozen=True)
class SeqBoat(ModelConfig):
    """A moving average everywhere, and gated attention at the positions that a learned configurator selects.

    The paper's ablations are settings of ``router``, ``scope``, ``ssm`` and ``feedforward``.

    Source: Ren et al. (arXiv:2306.11197), section 3.
    """

    presets: ClassVar[Presets] = {
        **TASK_PRESETS,
        # The other rows of that table, and its language model, for a user's own tasks.
        "lra-text": {**TEXT, "layers": 4, "bias": "compressed", **lra.TEXT},
        "lra-retrieval": {**TEXT, "layers": 6, "max_positions": 4002, **lra.RETRIEVAL},
        "lra-image": {**IMAGE, "d_model": 160, "layers": 8, "temperature": 0.4, "d_z": 96, **lra.IMAGE},
        "lra-pathfinder": {**IMAGE, "d_model": 128, "layers": 6, "d_z": 64, **lra.PATHFINDER},
        "speech": {
            "d_model": 60,
            "layers": 8,
            "d_z": 30,
            "window": 256,
            "bias": "compressed",
            "kernel_length": 4000,
            **PIXELS,
            **lra.SPEECH,
        },
        "enwik8": {
            "d_model": 616,
            "layers": 14,
            "d_z": 128,
            "norm": "layer",
            "prenorm": True,
            "window": 1024,
            "bias": "rotary",
            "dropout": 0.15,
            "kernel_length": 2048,
            **without(lra.ENWIK8, "budget.betas"),
            "budget.clip": 0.25,
        },
    }

    d_z: int | None = parameter(None, "width of queries and keys; none for d_model / 2", at_least=1)
    d_v: int | None = parameter(None, "width of values; none for 2 d_model", at_least=1)
    attention: Literal["softmax", "relu2", "laplace"] = parameter("softmax", "from scores to attention weights")
    scope: Literal["window", "full", "chunk"] = parameter(
        "window", "keys of a query, in the compressed sequence: a sliding window, all, or those of its chunk"
    )
    window: int | None = parameter(
        None,
        "window w, in active tokens: w before (causal) or w/2 on either side; none for 256, or the length if shorter",
        at_least=1,
    )
    chunk: int = parameter(128, "active tokens per chunk, with scope 'chunk'", at_least=1)
    bias: Literal["simple", "compressed", "rotary"] = parameter(
        "simple",
        "learned bias by distance in original positions, by distance in the compressed sequence, or none, with"
        " queries and keys turned by their original position",
    )
    max_positions: int | None = parameter(
        None, "distances that the simple bias tells apart; none for the length", at_least=1
    )
    router: Literal["softmax", "sigmoid", "gumbel", "moe", "always"] = parameter(
        "softmax", "latent configurator; 'always' for none"
    )
    temperature: float = parameter(1.0, "temperature at start, in sqrt(d_model), of softmax and sigmoid", above=0)
    ssm: Literal["ema", "s4d"] = parameter("ema", "state-space map: MD-EMA, or S4D-Lin")
    d_state: int = parameter(16, "states per channel and direction, even with S4D", at_least=1, at_most=1 << 20)
    kernel_length: int | None = parameter(
        None, "cut the kernel of the state-space map to this many lags; none for the length", at_least=1
    )
    feedforward: Literal["none", "after", "sparse"] = parameter(
        "none", "a feed-forward sub-layer after each layer, or a feed-forward module with a configurator of its own"
    )
    d_ffn: int | None = parameter(None, "width inside a feed-forward map; none for 2 d_model", at_least=1)
    sinusoids: bool = parameter(False, "add absolute sinusoids, times one learned scale, to the encoded input")

    def check(self) -> None:
        if self.window is not None and self.scope != "window":
            raise UsageError(
                f"{self.name}: window has no meaning with scope={self.scope!r}, found {self.window};"
                " allowed: window=none"
            )
        if self.ssm == "s4d" and self.d_state % 2:
            raise UsageError(
                f"{self.name}: d_state must be even with ssm='s4d' (conjugate pairs), found {self.d_state}"
            )
        if self.sinusoids and self.d_model % 2:
            raise UsageError(f"{self.name}: d_model must be even with sinusoids, found {self.d_model}")

    def blocks(self, input: Spec, causal: bool) -> list[nn.Module]:
        blocks: list[nn.Module] = [Sinusoids(self.d_model)] if self.sinusoids else []
        scope = self.attention_scope(input.length, causal)
        for _ in range(self.layers):
            blocks.append(self._layer(input.length, scope))
            if self.feedforward == "after":
                blocks.append(ResidualBlock(self._feedforward(), self.d_model, self.norm, self.prenorm, self.dropout))
        return blocks

    def attention_scope(self, length: int, causal: bool) -> Scope:
        """Which keys a query sees in a sequence of at most ``length``.

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
        window = self.window
        if window is None:
            window = max(even, min(DEFAULT_WINDOW, length) // even * even)
        elif window > length:
            raise UsageError(
                f"{self.name}: window must be at most the sequence length ({length}), found {window};"
                " window=none takes one that fits, scope='full' has none"
            )
        elif window % even:
            raise UsageError(f"{self.name}: a bidirectional model needs an even window, found {window}")
        return Scope(causal, window=window)

    def _layer(self, length: int, scope: Scope) -> SeqBoatLayer:
        dropout = 0.0 if scope.causal else self.dropout  # a causal layer drops from the sum, not from each module
        modules = [SparseModule(self._attention_unit(length, scope), self._router(), scope, dropout)]
        if self.feedforward == "sparse":
            modules.append(SparseModule(self._feedforward(), self._router(), None, dropout))
        return SeqBoatLayer(
            self.d_model,
            SSM(self._kernel(1 if scope.causal else 2), self.d_model, length, self.kernel_length),
            modules,
            norm=self.norm,
            prenorm=self.prenorm,
            dropout=self.dropout,
            causal=scope.causal,
        )

    def _attention_unit(self, length: int, scope: Scope) -> GatedAttentionUnit:
        bias = None
        if self.bias != "rotary":
            reach = scope.before if self.bias == "compressed" else None
            bias = RelativeBias(reach + 1 if reach is not None else self.max_positions or length)
        attention = SharedAttention(
            self.d_z or max(1, self.d_model // 2),
            self.d_v or 2 * self.d_model,
            length,
            scope,
            self.attention,
            bias,
            by_rank=self.bias == "compressed",
            rotary=self.bias == "rotary",
        )
        return GatedAttentionUnit(self.d_model, attention)

    def _router(self) -> Router | None:
        if self.router == "always":
            return None
        return make_router(self.router, self.d_model, self.temperature)

    def _kernel(self, directions: int) -> Kernel:
        if self.ssm == "ema":
            return EMAKernel(self.d_model, self.d_state, directions)
        return S4DKernel(S4D(d_model=self.d_model, d_state=self.d_state), directions)

    def _feedforward(self) -> FeedForward:
        return silu_feedforward(self.d_model, self.d_ffn or 2 * self.d_model, self.dropout, truncated=True)


@registry.register("seqboat-full")
@dataclass(frozen=True)
class SeqBoatFull(SeqBoat):
    """SeqBoat without a window: every active token sees all others (the paper's ablation).

    Source: Ren et al. (arXiv:2306.11197).
    """

    presets: ClassVar[Presets] = {name: without(settings, "window") for name, settings in TASK_PRESETS.items()}

    scope: Literal["window", "full", "chunk"] = parameter("full", "keys of a query, in the compressed sequence")


@registry.register("seqboat-local")
@dataclass(frozen=True)
class SeqBoatLocal(SeqBoat):
    """SeqBoat without a configurator: gated attention at every position (the paper's ablation).

    Source: Ren et al. (arXiv:2306.11197).
    """

    presets: ClassVar[Presets] = {name: without(settings, "temperature") for name, settings in TASK_PRESETS.items()}

    router: Literal["softmax", "sigmoid", "gumbel", "moe", "always"] = parameter(
        "always", "latent configurator; 'always' for none"
    )
