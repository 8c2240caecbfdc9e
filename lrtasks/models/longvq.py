"""LongVQ: a moving average, and gated attention on it whose keys are quantised, in time linear in the length.

Source: "LongVQ", section 3. The paper leaves much open: docs/models/longvq.md lists each reading.

    X    input of the layer, (batch, length, d)       X'   Norm(X) if pre-norm, else X
    Z    dropout(SiLU(SSM(X')))
    V    SiLU(X' W_v + b_v)                           Q, K  linear maps of Z
    G_a  SiLU(Z W_g + b_g), gate of the attended values
    K̂    K quantised to the nearest of S codes        O_a  dropout((G_a ⊙ Attention(Q, K̂, V)) W_o + b_o)
    G_o  sigmoid(X' W_u + b_u), gate of the output
    Y    G_o ⊙ O_a + (1 - G_o) ⊙ X, normalised if post-norm

A feed-forward sub-layer follows each layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.config import Presets, parameter
from lrtasks.errors import UsageError
from lrtasks.models import lra, registry
from lrtasks.models.base import ModelConfig, NormedBlock, ResidualBlock
from lrtasks.models.ops.convolution import SSM, Kernel
from lrtasks.models.ops.exponentials import EMAKernel
from lrtasks.models.ops.layers import WEIGHT_STD, linear, normal_, silu_feedforward
from lrtasks.models.ops.quantised_attention import QuantisedAttention
from lrtasks.models.ops.quantiser import Codebook
from lrtasks.models.s4d import S4D, S4DKernel
from lrtasks.spec import Spec

DEFAULT_WINDOW = 128
PIXELS: dict[str, Any] = {"norm": "batch", "prenorm": True}

# Without a meaning where keys are not quantised; so is ``codebook``, but presets set that one.
QUANTISER_OPTIONS = ("commitment", "decay", "key_gradients")


class QueriesAndKeys(nn.Module):
    """Two linear maps of Z ``(..., d_model)``, each to ``(..., d_k)``."""

    def __init__(self, d_model: int, d_k: int) -> None:
        super().__init__()
        self.query = linear(d_model, d_k, truncated=False)
        self.key = linear(d_model, d_k, truncated=False)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        return self.query(z), self.key(z)


class SharedQueriesAndKeys(nn.Module):
    """MEGA's: one map S = SiLU(Z W + b), queries S ⊙ γ_0 + β_0 and keys S ⊙ γ_1 + β_1."""

    def __init__(self, d_model: int, d_k: int) -> None:
        super().__init__()
        self.shared = linear(d_model, d_k, truncated=False)
        self.gamma = nn.Parameter(normal_(torch.empty(2, d_k), WEIGHT_STD, truncated=False))
        self.beta = nn.Parameter(torch.zeros(2, d_k))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        shared = F.silu(self.shared(z))
        return shared * self.gamma[0] + self.beta[0], shared * self.gamma[1] + self.beta[1]


class LongVQLayer(NormedBlock):
    """One layer, as the module docstring says, for sequences of at most ``length``."""

    def __init__(self, config: LongVQ, length: int, causal: bool) -> None:
        super().__init__()
        d_model, directions, codebook = config.d_model, 1 if causal else 2, None
        d_k, d_v = config.d_k or max(1, d_model // 2), config.d_v or 2 * d_model
        kernel: Kernel
        if config.ssm == "ema":
            kernel = EMAKernel(d_model, config.d_state, directions, truncated=False)
        else:
            start: Literal["lin", "legs"] = "lin" if config.ssm == "s4d-lin" else "legs"
            kernel = S4DKernel(S4D(d_model=d_model, d_state=config.d_state, start=start), directions)
        self.ssm = SSM(kernel, d_model, length, config.kernel_length, truncated=False)
        self.maps = (SharedQueriesAndKeys if config.shared_qk else QueriesAndKeys)(d_model, d_k)
        if config.quantise:
            std = d_k**-0.25 if config.qk_norm else WEIGHT_STD
            codebook = Codebook(config.codebook, d_k, commitment=config.commitment, decay=config.decay, std=std)
        self.attention = QuantisedAttention(
            d_k,
            d_v,
            length,
            config.reach(length),
            causal=causal,
            function=config.attention,
            codebook=codebook,
            local_bias=config.local_bias,
            qk_norm=config.qk_norm,
            key_gradients=config.key_gradients,
        )
        self.value = linear(d_model, d_v, truncated=False)
        self.gate = linear(d_model, d_v, truncated=False)
        self.out = linear(d_v, d_model, truncated=False)
        self.update = linear(d_model, d_model, truncated=False)
        self.set_norm(*config.around)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        normed = self.normed(x)
        z = self.dropout(F.silu(self.ssm(normed, mask)))
        q, k = self.maps(z)
        attended = self.attention(q, k, F.silu(self.value(normed)), mask)
        return self._finish(x, normed, z, attended)

    def initial_state(self, batch: int) -> Any:
        """States of the state-space map and of the attention."""
        return self.ssm.initial_state(batch), self.attention.initial_state(batch, self.value.weight)

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """One position ``(batch, d_model)``; equals :meth:`forward` of a causal layer in evaluation mode."""
        recurrent, memory = state
        normed = self.normed(x)
        z, recurrent = self.ssm.step(normed, recurrent)
        z = F.silu(z)
        q, k = self.maps(z)
        attended, memory = self.attention.step(q, k, F.silu(self.value(normed)), memory)
        return self._finish(x, normed, z, attended), (recurrent, memory)

    def _finish(self, x: Tensor, normed: Tensor, z: Tensor, attended: Tensor) -> Tensor:
        candidate = self.dropout(self.out(F.silu(self.gate(z)) * attended))
        return self.blend(x, torch.sigmoid(self.update(normed)), candidate)


@registry.register("longvq")
@dataclass(frozen=True)
class LongVQ(ModelConfig):
    """A moving average read by gated attention through a codebook, in time linear in the length.

    The paper's ablations are settings of ``codebook``, ``attention``, ``local_bias`` and ``quantise``.

    Sources: Liu et al. (arXiv:2404.11163), section 3; the linear-time form is Transformer-VQ's (arXiv:2309.16354).
    """

    # 2: the first training batch is quantised with the normal draws at start, not with keys of its own.
    version: ClassVar[int] = 2
    presets: ClassVar[Presets] = {
        # About as many parameters as dlr's small preset; a step takes longer. A codebook and a window to fit lengths of
        # some hundred positions.
        "small": {"d_model": 52, "layers": 2, "norm": "layer", "codebook": 128, "window": 32, "budget.lr": 0.001},
        "small/compression": {"window": None},
        # The budget of the DLR paper's atomic tasks, at that paper's width; N = 16, d_k and S as in most rows of the
        # LongVQ paper.
        "paper": {
            "d_model": 128,
            "layers": 1,
            "norm": "layer",
            "d_k": 64,
            "d_state": 16,
            "codebook": 512,
            "budget.lr": 0.001,
        },
        # Focus and Hyena papers, associative recall: width 64, two layers, 2,000 samples.
        "paper/recall": {"d_model": 64, "d_k": 32, "layers": 2, "budget.lr": 0.0005},
        # LongVQ paper, hyper-parameters of LRA. Softmax and ListOps' layer norm are readings (docs/models/longvq.md).
        **lra.paper_presets(lra.LISTOPS_TASKS, {"d_model": 80, "layers": 6, "d_k": 64, "dropout": 0.1, **lra.LISTOPS}),
        **lra.paper_presets(lra.PATH_X_TASKS, {"d_model": 64, "d_k": 32, "layers": 4, **PIXELS, **lra.PATH_X}),
        # The other rows of that table, for a user's own tasks.
        "lra-text": {"d_model": 128, "layers": 4, "d_k": 64, "norm": "scale", "dropout": 0.1, **lra.TEXT},
        "lra-retrieval": {"d_model": 128, "layers": 6, "d_k": 64, "norm": "scale", "dropout": 0.1, **lra.RETRIEVAL},
        "lra-image": {"d_model": 160, "layers": 8, "d_k": 96, **PIXELS, **lra.IMAGE},
        "lra-pathfinder": {"d_model": 128, "layers": 6, "d_k": 64, **PIXELS, **lra.PATHFINDER},
        "speech": {"d_model": 60, "layers": 6, "d_k": 30, **PIXELS, **lra.SPEECH},
        "enwik8": {
            "d_model": 512,
            "layers": 12,
            "d_k": 128,
            "d_v": 1024,
            "d_ffn": 1024,
            "norm": "layer",
            "prenorm": True,
            "dropout": 0.1,
            **lra.ENWIK8,
        },
    }

    d_k: int | None = parameter(None, "width of queries and keys; none for d_model / 2", at_least=1)
    d_v: int | None = parameter(None, "width of values; none for 2 d_model", at_least=1)
    d_ffn: int | None = parameter(None, "width inside the feed-forward sub-layer; none for 2 d_model", at_least=1)
    attention: Literal["softmax", "laplace", "relu2"] = parameter("softmax", "from scores to attention weights")
    codebook: int = parameter(
        512,
        "codes S of each layer if keys are quantised; a single one would make all keys equal",
        at_least=2,
        at_most=1 << 16,
    )
    quantise: bool = parameter(True, "quantise keys; false for attention over the keys, of quadratic cost")
    commitment: float = parameter(1e-4, "weight γ of the commitment loss", at_least=0)
    decay: float = parameter(0.99, "decay η of the codebook's running averages, per batch", at_least=0, at_most=1)
    key_gradients: Literal["near", "code-mean"] = parameter(
        "near", "keys learn through their neighbours only, or through distant queries too, evenly for each code"
    )
    window: int | None = parameter(
        None,
        "reach ω of the local bias, and positions of a block of near keys; none for 128, or the length if shorter",
        at_least=1,
    )
    local_bias: bool = parameter(True, "add a learned bias by distance up to the window")
    qk_norm: bool = parameter(True, "normalise queries and keys")
    shared_qk: bool = parameter(False, "queries and keys from one shared map, as MEGA's, instead of two linear maps")
    ssm: Literal["ema", "s4d-lin", "s4d-legs"] = parameter(
        "ema", "state-space map: MD-EMA, or S4D with frequencies at start after Lin or LegS"
    )
    d_state: int = parameter(16, "states per channel and direction, even with S4D", at_least=1, at_most=4096)
    kernel_length: int | None = parameter(
        None, "cut the kernel of the state-space map to this many lags; none for the length", at_least=1
    )

    def check(self) -> None:
        if self.ssm != "ema" and self.d_state % 2:
            raise UsageError(
                f"{self.name}: d_state must be even with ssm={self.ssm!r} (conjugate pairs), found {self.d_state}"
            )
        if not self.quantise:
            for name in QUANTISER_OPTIONS:
                if getattr(self, name) != getattr(LongVQ, name):
                    raise UsageError(f"{self.name}: {name} has no meaning with quantise=false; leave it out")

    def blocks(self, input: Spec, causal: bool) -> list[nn.Module]:
        blocks: list[nn.Module] = []
        for _ in range(self.layers):
            blocks.append(LongVQLayer(self, input.length, causal))
            feedforward = silu_feedforward(self.d_model, self.d_ffn or 2 * self.d_model, self.dropout, truncated=False)
            blocks.append(ResidualBlock(feedforward, *self.around))
        return blocks

    def reach(self, length: int) -> int:
        """ω in a sequence of at most ``length``; raises :class:`UsageError` for a longer window."""
        if self.window is None:
            return min(DEFAULT_WINDOW, length)
        if self.window > length:
            raise UsageError(
                f"{self.name}: window must be at most the sequence length ({length}), found {self.window};"
                " window=none takes one that fits"
            )
        return self.window
