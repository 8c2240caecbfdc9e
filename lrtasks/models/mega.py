"""MEGA: a moving average, single-head gated attention on the average, and a gated residual.

Source: "Mega: Moving Average Equipped Gated Attention", section 3, and its public code.

    S    input of the layer, (batch, length, d)      X   Norm(S) if pre-norm, else S
    V    SiLU(X W_v + b_v), from X, not X'          X'  dropout(SiLU(EMA(X)))
    φ, Z, G, H'   parts of X' W + b in this order; then a sigmoid on φ, SiLU on Z and G
    O    attention on Z and V
    Ĥ    dropout(SiLU(H' + (G ⊙ O) W_h + b_h))
    S'   φ ⊙ Ĥ + (1 - φ) ⊙ S, normalised if post-norm

A feed-forward sub-layer follows each layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.config import Presets, parameter
from lrtasks.errors import UsageError
from lrtasks.models import registry
from lrtasks.models.base import ATOMIC, RECALL, ModelConfig, NormedBlock, ResidualBlock, computed
from lrtasks.models.ops.convolution import SSM, Kernel
from lrtasks.models.ops.exponentials import exp_kernel
from lrtasks.models.ops.layers import FeedForward, at_least_float32, linear, normal_, silu_feedforward
from lrtasks.models.ops.positions import RelativeBias, RotaryBias, Sinusoids
from lrtasks.models.ops.scoped_attention import Scope, SharedAttention, warn_of_padding
from lrtasks.models.s4d import S4D, S4DKernel
from lrtasks.spec import Spec


class EMAKernel(Kernel):
    """Multi-dimensional damped exponential moving average (MD-EMA), in one or two directions.

        K[c, t] = sum_n gamma[c, n]/sqrt(N) p[c, n] beta[c, n] (1 - p[c, n] a[c, n])^t

    with p = sigmoid(delta), the papers' α, and a = sigmoid(alpha), the papers' δ: the public code exchanges the names.
    The factor 1/sqrt(N) is in the code only. Sources: "Mega: Moving Average Equipped Gated Attention", section 3, and
    its public code, which SeqBoat and LongVQ reuse.

    Initially, delta and alpha are normal with standard deviation 0.2, gamma is normal with standard deviation 1, and
    beta is +1, -1, +1, ... over n plus normal draws with standard deviation 0.02.

    ``truncated`` cuts the normal draws at two standard deviations (SeqBoat; not in MEGA).
    """

    def __init__(self, d_model: int, d_state: int, directions: int = 1, *, truncated: bool = True) -> None:
        super().__init__()
        self.directions = directions
        shape = (directions, d_model, d_state)
        self.delta = nn.Parameter(normal_(torch.empty(shape), 0.2, truncated=truncated))
        self.alpha = nn.Parameter(normal_(torch.empty(shape), 0.2, truncated=truncated))
        signs = 1.0 - 2.0 * (torch.arange(d_state) % 2)
        self.beta = nn.Parameter(signs + normal_(torch.empty(shape), 0.02, truncated=truncated))
        self.gamma = nn.Parameter(normal_(torch.empty(shape), 1.0, truncated=truncated))

    def coefficients(self) -> tuple[Tensor, Tensor]:
        """Return gamma/sqrt(N) p beta and log(1 - p a), each ``(directions, d, N)``, in float32 at least."""
        delta, alpha, beta, gamma = map(at_least_float32, (self.delta, self.alpha, self.beta, self.gamma))
        p, a = torch.sigmoid(delta), torch.sigmoid(alpha)
        weight = gamma * p * beta / math.sqrt(gamma.shape[-1])
        # log1p keeps the digits of a slow decay; the bound keeps the log finite where both sigmoids round to 1
        return weight, torch.log1p(-(p * a).clamp_max(1 - torch.finfo(p.dtype).eps))

    def forward(self, length: int) -> Tensor:
        weight, log_decay = self.coefficients()
        kernel = exp_kernel(weight.flatten(0, 1).unsqueeze(1), log_decay.flatten(0, 1), None, length)
        return kernel.view(*weight.shape[:2], length)

    @torch.no_grad()
    def recurrence(self) -> tuple[Tensor, Tensor]:
        """Return the weight and log(1 - p a) of the look-back kernel, real float64 ``(d, N)``."""
        weight, log_decay = self.coefficients()
        return weight[0].double(), log_decay[0].double()


class MegaLayer(NormedBlock):
    """One layer of the module docstring, for sequences of at most ``length``."""

    def __init__(self, config: Mega, length: int, scope: Scope) -> None:
        super().__init__()
        d_model, d_z, d_v = config.d_model, config.d_z or max(1, config.d_model // 2), config.d_v or 2 * config.d_model
        bias: nn.Module = RotaryBias(d_z, truncated=False)
        if config.bias == "simple":
            bias = RelativeBias(config.max_positions or min(length, scope.chunk or length), truncated=False)
        self.ssm = config.make_ssm(length, scope.causal)
        self.attention = SharedAttention((d_z, d_v), length, scope, config.attention, bias, truncated=False)
        self.widths = [d_model, d_z, d_v, d_model]
        self.value = linear(d_model, d_v, truncated=False)
        self.mix = linear(d_model, sum(self.widths), truncated=False)
        self.out = linear(d_v, d_model, truncated=False)
        self.set_norm(*config.around)

    def initial_state(self, batch: int) -> Any:
        return self.ssm.initial_state(batch), self.attention.initial_state(batch)

    def run(self, x: Tensor, state: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
        normed, (recurrent, memory) = self.normed(x), state or (None, None)
        averaged, recurrent = computed(self.ssm, normed, state=recurrent, mask=mask)
        update, z, gate, hidden = self.mix(self.dropout(F.silu(averaged))).split(self.widths, -1)
        attended, memory = computed(self.attention, F.silu(z), F.silu(self.value(normed)), state=memory, mask=mask)
        candidate = self.dropout(F.silu(hidden + self.out(F.silu(gate) * attended)))
        return self.blend(x, update.sigmoid(), candidate), (recurrent, memory)


# Training budgets that MEGA, SeqBoat and LongVQ publish for the Long Range Arena, speech and enwik8, as settings of
# presets. Source: the tables of hyper-parameters in the three papers. Steps, warm-up and the linear decay of the
# learning rate come from the public code of MEGA and SeqBoat; LongVQ uses MEGA's.
def budget(steps: int, batch_size: int, lr: float, weight_decay: float, warmup_steps: int) -> dict[str, Any]:
    """Return a budget with the betas, the linear schedule and the clipping that all rows of the tables share."""
    row = {"steps": steps, "batch_size": batch_size, "lr": lr, "weight_decay": weight_decay, "betas": (0.9, 0.98)}
    row |= {"schedule": "linear", "warmup_steps": warmup_steps, "clip": 1.0}
    return {f"budget.{name}": value for name, value in row.items()}


LISTOPS = budget(90_000, 64, 1e-3, 0.01, 3_000)
"""The budget of MEGA and LongVQ; SeqBoat has its own."""
TEXT = budget(25_000, 50, 4e-3, 0.01, 10_000)
RETRIEVAL = budget(91_960, 64, 3e-3, 0.04, 10_000)
IMAGE = budget(180_000, 50, 1e-2, 0.02, 9_000)
PATHFINDER = budget(250_000, 128, 1e-2, 0.01, 50_000)
PATH_X = budget(125_000, 128, 1e-2, 0.01, 25_000)
SPEECH = budget(250_000, 20, 1e-2, 0.01, 10_000)
ENWIK8 = budget(400_000, 8, 5e-3, 0.1, 24_000)

SHORT_TASKS = ("copying", "depo", "joint-recall", "solve", "sort", "variable-tracking", "word-problem@a5")
SHORT_SAMPLES: dict[str, dict[str, Any]] = {f"small/{task}": {"window": 8} for task in SHORT_TASKS}
"""Presets of SeqBoat and LongVQ for samples of 8 to 30 positions, shorter than the window of ``small``."""
PIXELS: dict[str, Any] = {"norm": "batch", "prenorm": True}
LISTOPS_PRESETS = ("paper/listops-root", "paper/listops")
PATH_X_PRESETS = ("paper/pathfinder-classification", "paper/pathfinder")
"""Presets with the Path-X settings: images as pixel sequences, with one answer or an answer at every position."""


@dataclass(frozen=True)
class GatedConfig(ModelConfig):
    """Layers of a state-space map and gated attention on its output: MEGA and the models that build on MEGA.

    With ``truncated`` the normal draws of initial weights are cut at two standard deviations. ``ssm`` is ``ema``, or
    ``s4d``, ``s4d-lin`` and ``s4d-legs`` for S4D. With ``sinusoids`` absolute sinusoids are added to the encoded input.
    """

    truncated = False
    ssm = "ema"
    sinusoids = False

    d_v: int | None = parameter(None, "width of values; none: 2 d_model", at_least=1)
    d_ffn: int | None = parameter(None, "width inside a feed-forward map; none: 2 d_model", at_least=1)
    attention: Literal["softmax", "relu2", "laplace"] = parameter("softmax", "function from scores to weights")
    d_state: int = parameter(16, "states per channel and direction", at_least=1, at_most=1 << 20)
    kernel_length: int | None = parameter(
        None, "kernel length of the moving average or state space, in lags; none: the sequence length", at_least=1
    )

    def check(self) -> None:
        if self.ssm != "ema" and self.d_state % 2:
            raise UsageError(f"{self.name}: d_state must be even with ssm={self.ssm!r}, found {self.d_state}")
        if self.sinusoids and self.d_model % 2:
            raise UsageError(f"{self.name}: d_model must be even with sinusoids, found {self.d_model}")

    def make_ssm(self, length: int, causal: bool) -> SSM:
        """Build the state-space map of one layer."""
        directions, d_model, d_state = 1 if causal else 2, self.d_model, self.d_state
        if self.ssm == "ema":
            kernel: Kernel = EMAKernel(d_model, d_state, directions, truncated=self.truncated)
        else:
            s4d = S4D(d_model=d_model, d_state=d_state, start="legs" if self.ssm == "s4d-legs" else "lin")
            kernel = S4DKernel(s4d, directions)
        return SSM(kernel, self.d_model, length, self.kernel_length, truncated=self.truncated)

    def feedforward_map(self) -> FeedForward:
        """Build the map of a feed-forward sub-layer or module."""
        return silu_feedforward(self.d_model, self.d_ffn or 2 * self.d_model, self.dropout, truncated=self.truncated)

    def stack(self, make_layer: Callable[[], nn.Module], *, feedforward: bool = True) -> list[nn.Module]:
        """Build the blocks: sinusoids if used, then the layers, each followed by a feed-forward sub-layer if used."""
        blocks: list[nn.Module] = [Sinusoids(self.d_model)] if self.sinusoids else []
        for _ in range(self.layers):
            blocks.append(make_layer())
            if feedforward:
                blocks.append(ResidualBlock(self.feedforward_map(), *self.around))
        return blocks


@registry.register("mega")
@dataclass(frozen=True)
class Mega(GatedConfig):
    """A moving average, single-head gated attention on it, and a gated residual.

    Source: Ma et al. (arXiv:2209.10655), section 3.
    """

    presets: ClassVar[Presets] = {
        # About as many parameters as dlr's small preset; a step takes longer.
        "small": {"d_model": 48, "layers": 2, "norm": "layer", "budget.lr": 0.001},
        # N = 16 and d_z as in most rows of the MEGA paper's table
        "paper": {**ATOMIC, "d_z": 64, "d_state": 16},
        "paper/recall": {**RECALL, "d_z": 32},
        # MEGA paper, hyper-parameters of LRA.
        **{name: {"d_model": 80, "layers": 6, "dropout": 0.1, **LISTOPS} for name in LISTOPS_PRESETS},
        **{
            name: {**PIXELS, "d_model": 64, "d_z": 32, "layers": 4, "attention": "laplace", "sinusoids": True, **PATH_X}
            for name in PATH_X_PRESETS
        },
    }

    d_z: int | None = parameter(None, "width of queries and keys; none: d_model / 2", at_least=1)
    bias: Literal["simple", "rotary"] = parameter("simple", "bias by distance: a learned table, or a rotary product")
    max_positions: int | None = parameter(
        None, "distances with a value in the simple bias; none: the length, or the chunk", at_least=1
    )
    sinusoids: bool = parameter(False, "add sinusoidal positions, times one learned scale, to the encoded input")

    def check(self) -> None:
        super().check()
        d_z = self.d_z or max(1, self.d_model // 2)
        if self.bias == "rotary" and d_z % 2:
            raise UsageError(f"{self.name}: d_z must be even with bias='rotary', found {d_z}")

    def attention_scope(self, length: int, causal: bool) -> Scope:
        """Return which keys a query sees in a sequence of at most ``length``."""
        return Scope(causal)

    def blocks(self, input: Spec, causal: bool) -> list[nn.Module]:
        scope = self.attention_scope(input.length, causal)
        return self.stack(lambda: MegaLayer(self, input.length, scope))


CHUNKS = {
    "small": 32,
    "paper": 128,
    **dict.fromkeys(LISTOPS_PRESETS, 128),
    **dict.fromkeys(PATH_X_PRESETS, 4096),
}
"""Positions per chunk in the presets of MEGA-chunk."""


@registry.register("mega-chunk")
@dataclass(frozen=True)
class MegaChunk(Mega):
    """MEGA with attention inside chunks; the moving average spans the sequence.

    Source: Ma et al. (arXiv:2209.10655), section 3.
    """

    presets: ClassVar[Presets] = {
        name: {**settings, "chunk": CHUNKS[name]} if name in CHUNKS else settings
        for name, settings in Mega.presets.items()
    }

    chunk: int = parameter(128, "positions per chunk; the last one is padded", at_least=1)

    def attention_scope(self, length: int, causal: bool) -> Scope:
        warn_of_padding(self.name, length, self.chunk)
        return Scope(causal, chunk=self.chunk)
