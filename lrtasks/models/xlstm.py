"""xLSTM (Beck et al., arXiv:2405.04517): layers of the matrix memory (mLSTM) and of the scalar memory (sLSTM).

mLSTM, parallel over positions:

    u, z      halves of a linear map of the input, each ``inner`` wide;  c = silu(conv(u))
    q, k, v   block-diagonal maps (blocks of 4) of c, c and u
    i, f      gates of each head, linear maps of [q k v]
    h         the memory of :func:`lrtasks.models.ops.xlstm.mlstm`
    output    linear((norm(h) + skip * c) * silu(z)), where norm normalises each head

sLSTM, computed position by position, because its gates read h of the previous position:

    i, f      block-diagonal maps (one block per head) of silu(conv(x)), or of x without a convolution
    z, o      block-diagonal maps of x
    h         the memory of :func:`lrtasks.models.ops.xlstm.slstm`, output norm(h)

Initial weights are as in the xlstm package. In its sLSTM, the maps called ``fgate`` and ``igate`` feed the slots i and
f, in this order; here each map has the name of its slot.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.config import Presets, parameter
from lrtasks.errors import UsageError
from lrtasks.models import registry
from lrtasks.models.base import PAPER, PAPER_MQAR, SMALL, TRACKING
from lrtasks.models.ops.layers import NoConv, ShortConv, at_least_float32, hide
from lrtasks.models.ops.xlstm import mlstm, mlstm_start, slstm, slstm_start, slstm_step
from lrtasks.models.recurrent import RecurrentConfig, RecurrentLayer, state_zeros

BLOCK = 4
"""Width of the blocks in the maps to q, k and v."""
WIDE = 16
"""Largest width of joined blocks."""


class BlockLinear(nn.Module):
    """A linear map without bias whose matrix has ``blocks`` diagonal blocks of ``width``, drawn from N(0, std²)."""

    def __init__(self, blocks: int, width: int, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(blocks, width, width) * std)

    def forward(self, x: Tensor) -> Tensor:
        blocks, width, _ = self.weight.shape
        # products of narrow blocks are slow: put several blocks on the diagonal of a larger one
        count = math.gcd(blocks, max(1, WIDE // width))
        eye = torch.eye(count, dtype=self.weight.dtype, device=self.weight.device)
        wide = (
            torch.einsum("ngoi,gh->ngohi", torch.unflatten(self.weight, 0, (-1, count)), eye).flatten(3).flatten(1, 2)
        )
        return torch.einsum("...ni,noi->...no", torch.unflatten(x, -1, wide.shape[:2]), wide).flatten(-2)


class HeadNorm(nn.Module):
    """Layer norm over each head, times ``1 + weight``, without bias: ``(..., H, D)`` to ``(..., H D)``."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        normed = F.layer_norm(at_least_float32(x), x.shape[-1:], eps=1e-5).flatten(-2)
        return (normed * (1 + self.weight)).to(self.weight.dtype)


class MLSTMLayer(RecurrentLayer):
    """The mixer of :class:`MLSTM`. State: the state of the memory, and the last inputs of the convolution."""

    def __init__(self, config: MLSTM) -> None:
        super().__init__()
        d_model, inner, heads = config.d_model, config.inner, config.heads
        self.heads, self.inner = heads, inner
        self.proj_up = nn.Linear(d_model, 2 * inner, bias=False)
        self.conv1d = ShortConv(inner, bias=True)
        std = math.sqrt(2 / (5 * d_model))
        nn.init.normal_(self.proj_up.weight, std=std)
        self.q_proj, self.k_proj, self.v_proj = (BlockLinear(inner // BLOCK, BLOCK, std) for _ in range(3))
        self.igate, self.fgate = nn.Linear(3 * inner, heads), nn.Linear(3 * inner, heads)
        for gate in (self.igate, self.fgate):
            nn.init.zeros_(gate.weight)
        nn.init.normal_(self.igate.bias, std=0.1)
        with torch.no_grad():
            self.fgate.bias.copy_(torch.linspace(3, 6, heads))
        self.outnorm = HeadNorm(inner)
        self.learnable_skip = nn.Parameter(torch.ones(inner))
        self.proj_down = nn.Linear(inner, d_model, bias=False)
        nn.init.normal_(self.proj_down.weight, std=2 / (config.layers * math.sqrt(d_model)))

    def initial_state(self, batch: int) -> Any:
        like = state_zeros(self.proj_down.weight, batch, self.heads, self.inner // self.heads)
        return mlstm_start(like, like), self.conv1d.initial_state(batch)

    def run(self, x: Tensor, state: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        memory, before = state
        u, z = self.proj_up(hide(x, mask)).chunk(2, -1)
        c, before = self.conv1d.run(u, before)
        q, k, v = self.q_proj(c), self.k_proj(c), self.v_proj(u)
        i, f = self._gates(q, k, v)
        q, k, v = (torch.unflatten(value, -1, (self.heads, -1)) for value in (q, k, v))
        if not self.training:
            self.show(log_forget_gate=F.logsigmoid(f), log_input_gate=i)
        h, memory = mlstm(q, k, v, i, f, memory, mask)
        return self.proj_down((self.outnorm(h) + self.learnable_skip * c) * F.silu(z)), (memory, before)

    def _gates(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Return the maps of the joined q, k and v to i and f, as products with each part, which is not copied."""
        weight = torch.cat((self.igate.weight, self.fgate.weight))
        products = [F.linear(part, own) for part, own in zip(parts, weight.chunk(3, -1), strict=True)]
        return sum(products, torch.cat((self.igate.bias, self.fgate.bias))).chunk(2, -1)


class SLSTMLayer(RecurrentLayer):
    """The mixer of :class:`SLSTM`. State: the state of the memory, and the last inputs of the convolution."""

    def __init__(self, config: SLSTM, index: int) -> None:
        super().__init__()
        d_model, heads = config.d_model, config.heads
        width = d_model // heads
        self.conv1d = ShortConv(d_model, bias=True) if config.conv else NoConv()
        std = math.sqrt(2 / (5 * d_model))
        self.input_i, self.input_f, self.input_z, self.input_o = (BlockLinear(heads, width, std) for _ in range(4))
        self.R = nn.Parameter(torch.zeros(heads, 4, width, width))
        self.bias = nn.Parameter(torch.zeros(4, heads, width))
        place = torch.arange(width) / max(width - 1, 1)
        depth = index / max(config.layers - 1, 1)
        with torch.no_grad():
            self.bias[1] = 5 - 12 * place ** (0.3 + 1.3 * depth)
        self.group_norm = HeadNorm(d_model)

    def parameter_options(self) -> dict[str, dict[str, float]]:
        return {"bias": {"weight_decay": 0.0}}

    def initial_state(self, batch: int) -> Any:
        slots, heads, width = self.bias.shape
        return slstm_start(state_zeros(self.bias, batch, heads, slots, width)), self.conv1d.initial_state(batch)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x_if, x_zo, _ = self._slots(hide(x, mask), self.conv1d.initial_state(len(x)))
        return self.group_norm(slstm(x_if, x_zo, self.bias.transpose(0, 1), self.R, mask))

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        memory, before = state
        x_if, x_zo, before = self._slots(x.unsqueeze(1), before)
        slots = torch.cat((x_if, x_zo), -2).squeeze(1) + self.bias.transpose(0, 1)
        h, memory = slstm_step(slots, self.R, memory)
        return self.group_norm(h), (memory, before)

    def _slots(self, x: Tensor, before: Any) -> tuple[Tensor, Tensor, Any]:
        """Return the two inputs of :func:`slstm`, and the state of the convolution after the last position."""
        gated, before = self.conv1d.run(x, before)
        return (
            _two_maps(gated, self.input_i.weight, self.input_f.weight),
            _two_maps(x, self.input_z.weight, self.input_o.weight),
            before,
        )


def _two_maps(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Apply two maps of heads, ``(H, D, D)``, to ``(B, L, H D)``: ``(B, L, H, 2, D)``, a view of ``(H, B, L, 2 D)``."""
    weight = torch.stack((first, second), 1)
    y = torch.unflatten(x, -1, (len(first), -1)).permute(2, 0, 1, 3).flatten(1, 2) @ weight.flatten(1, 2).mT
    return torch.unflatten(torch.unflatten(y, 1, x.shape[:2]).permute(1, 2, 0, 3), -1, (2, -1))


def _check_heads(config: MLSTM | SLSTM, width: int, name: str) -> None:
    """Raise :class:`UsageError` unless each head has at least two channels: the norm of a single one is always 0."""
    if config.divided(width, config.heads, "heads", name) < 2:
        raise UsageError(f"{config.name}: heads must be at most {name} / 2 ({width // 2}), found {config.heads}")


@registry.register("mlstm")
@dataclass(frozen=True)
class MLSTM(RecurrentConfig):
    """xLSTM's matrix memory with exponential input gates, parallel over positions.

    Source: Beck et al. (arXiv:2405.04517), section 2.3.
    """

    layer_class = MLSTMLayer
    presets: ClassVar[Presets] = {
        "small": SMALL,
        "recall-16k": {**SMALL, "heads": 4, "expand": 1.25},
        "recall-64k": {**SMALL, "heads": 4, "expand": 2.75},
        "state-tracking": {**TRACKING, "heads": 8},
        "paper": {**PAPER, "heads": 4},
        "paper/mqar": {**PAPER_MQAR, "heads": 2},
    }

    mlp: bool = parameter(False, "use a gated feed-forward map after each mixer")
    heads: int = parameter(4, "heads of the memory", at_least=1, at_most=1024)
    expand: float = parameter(2.0, "inner width, in multiples of d_model", above=0, at_most=64)
    round_up: int = parameter(
        8, "round the inner width up to a multiple of this (xlstm package: 64)", at_least=4, at_most=4096
    )

    def check(self) -> None:
        _check_heads(self, self.inner, "the inner width")
        if self.inner % BLOCK:
            raise UsageError(
                f"mlstm: the inner width must be a multiple of {BLOCK}, found {self.inner}; change round_up"
            )

    @property
    def inner(self) -> int:
        """Width of the memory's inputs."""
        # 1e-9 is above the rounding error of a quotient such as 116 / 56, which would add a whole multiple
        return math.ceil(self.expand * self.d_model / self.round_up - 1e-9) * self.round_up


@registry.register("slstm")
@dataclass(frozen=True)
class SLSTM(RecurrentConfig):
    """xLSTM's scalar memory: an LSTM with exponential gates, computed one position after the other.

    Source: Beck et al. (arXiv:2405.04517), section 2.2.
    """

    presets: ClassVar[Presets] = {
        "small": {**SMALL, "mlp_width": 124},
        "state-tracking": {**TRACKING, "heads": 4, "conv": False},
        "paper": {**PAPER, "heads": 4, "conv": False, "mlp_width": 166},
    }
    function: ClassVar[Literal["silu", "gelu"]] = "gelu"

    heads: int = parameter(4, "number of heads; the recurrent maps do not mix heads", at_least=1, at_most=1024)
    conv: bool = parameter(True, "use a short convolution before the input and forget gates")

    def check(self) -> None:
        _check_heads(self, self.d_model, "d_model")

    def layer(self, index: int) -> SLSTMLayer:
        return SLSTMLayer(self, index)
