"""LSTM (Hochreiter and Schmidhuber, 1997) and GRU (Cho et al., arXiv:1406.1078) as mixers of a residual stack.

    LSTM   c = sigmoid(f) c + sigmoid(i) tanh(g);  h = sigmoid(o) tanh(c)
    GRU    h = (1 - sigmoid(z)) n + sigmoid(z) h,  n = tanh(W x + b + sigmoid(r) (U h + b'))
    output linear(h)

with i, f, g, o and r, z linear maps of x and of the h before. Torch's layers and start; one is added to the LSTM's
forget bias, so that it remembers at the start (Jozefowicz et al., 2015).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from lrtasks.config import Presets, parameter
from lrtasks.models import registry
from lrtasks.models.ops.chunked import skipping_padding
from lrtasks.models.ops.layers import zero_padding
from lrtasks.models.recurrent import PAPER, SMALL, TRACKING, RecurrentConfig

State = tuple[Tensor, ...]
"""h, and c of an LSTM, each ``(1, batch, hidden)``."""


class RNNLayer(nn.Module):
    """A torch LSTM or GRU with an output map, on ``(batch, length, d_model)``.

    Args:
        d_model: width.
        hidden: width of the state.
        kind: ``lstm`` or ``gru``.
        forget_bias: added to the forget gate of an LSTM at the start.
        orthogonal: let the recurrent maps start orthogonal.
    """

    def __init__(
        self,
        d_model: int,
        hidden: int,
        kind: Literal["lstm", "gru"],
        *,
        forget_bias: float = 0.0,
        orthogonal: bool = False,
    ) -> None:
        super().__init__()
        self.rnn: nn.RNNBase = (nn.LSTM if kind == "lstm" else nn.GRU)(d_model, hidden, batch_first=True)
        self.o_proj = nn.Linear(hidden, d_model)
        start = dict(self.rnn.named_parameters())
        with torch.no_grad():
            if kind == "lstm":
                start["bias_ih_l0"][hidden : 2 * hidden] += forget_bias
            if orthogonal:
                for gate in start["weight_hh_l0"].chunk(4 if kind == "lstm" else 3):
                    nn.init.orthogonal_(gate)

    @property
    def out(self) -> nn.Linear:
        """The map back to the residual stream."""
        return self.o_proj

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Mix; ``mask`` is ``(batch, length)`` bool, False at padding, which is skipped, or ``None``."""
        x = zero_padding(x, mask)
        h = self._run(x)[0] if mask is None else skipping_padding(lambda valid: self._run(valid)[0], x, mask)
        y: Tensor = self.o_proj(h)
        return y

    def initial_state(self, batch: int) -> State:
        """Zeros."""
        h = self.o_proj.weight.new_zeros(1, batch, self.rnn.hidden_size)
        return (h, h) if isinstance(self.rnn, nn.LSTM) else (h,)

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One position ``(batch, d_model)``; equals :meth:`forward`."""
        h, state = self._run(x.unsqueeze(1), state)
        return self.o_proj(h[:, 0]), state

    def _run(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """h at all positions and the state after them; not rounded under autocast."""
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(self.o_proj.weight.dtype)
            if isinstance(self.rnn, nn.LSTM):
                return self.rnn(x, state)  # type: ignore[no-any-return]
            h, last = self.rnn(x, None if state is None else state[0])
            return h, (last,)


@registry.register("lstm")
@dataclass(frozen=True)
class LSTM(RecurrentConfig):
    """LSTM: a vector state whose gates depend on the state.

    Source: Hochreiter and Schmidhuber, "Long Short-Term Memory", Neural Computation 9 (1997),
    https://doi.org/10.1162/neco.1997.9.8.1735.
    """

    presets: ClassVar[Presets] = {
        "small": {**SMALL, "d_model": 48, "mlp_width": 80},
        "state-tracking": TRACKING,
        "paper": PAPER,
    }

    hidden: int | None = parameter(None, "width of the state; none for d_model", at_least=1, at_most=65536)
    orthogonal: bool = parameter(False, "start with orthogonal recurrent maps")
    forget_bias: float = parameter(1.0, "added to the forget gate's bias at the start; torch adds 0")

    def layer(self, index: int) -> RNNLayer:
        hidden = self.hidden or self.d_model
        return RNNLayer(self.d_model, hidden, "lstm", forget_bias=self.forget_bias, orthogonal=self.orthogonal)


@registry.register("gru")
@dataclass(frozen=True)
class GRU(RecurrentConfig):
    """GRU: like an LSTM, with fewer gates and half the state.

    Source: Cho et al. (arXiv:1406.1078).
    """

    presets: ClassVar[Presets] = {
        "small": {**SMALL, "d_model": 48, "mlp_width": 112},
        "state-tracking": TRACKING,
        "paper": PAPER,
    }

    hidden: int | None = parameter(None, "width of the state; none for d_model", at_least=1, at_most=65536)
    orthogonal: bool = parameter(False, "start with orthogonal recurrent maps")

    def layer(self, index: int) -> RNNLayer:
        return RNNLayer(self.d_model, self.hidden or self.d_model, "gru", orthogonal=self.orthogonal)
