"""LSTM (Hochreiter and Schmidhuber, 1997) and GRU (Cho et al., arXiv:1406.1078) as mixers of a residual stack.

    LSTM   c = sigmoid(f) c + sigmoid(i) tanh(g);  h = sigmoid(o) tanh(c)
    GRU    h = (1 - sigmoid(z)) n + sigmoid(z) h,  n = tanh(W x + b + sigmoid(r) (U h + b'))
    output linear(h)

where i, f, g, o and r, z are linear maps of x and of the previous h. Layers and initial weights are those of torch,
except that 1 is added to the LSTM's forget bias, so that the LSTM remembers at the start (Jozefowicz et al., 2015).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lrtasks.config import Presets, parameter
from lrtasks.models import registry
from lrtasks.models.base import PAPER, SMALL, TRACKING
from lrtasks.models.ops.chunked import skipping_padding
from lrtasks.models.ops.gru import gru
from lrtasks.models.ops.layers import hide
from lrtasks.models.recurrent import RecurrentConfig, RecurrentLayer


class RNNLayer(RecurrentLayer):
    """A torch LSTM or GRU with an output map. State: h, and c of an LSTM, each ``(1, batch, hidden)``."""

    out_name = "o_proj"

    def __init__(self, config: GRU) -> None:
        super().__init__()
        hidden, gates = config.hidden or config.d_model, 4 if isinstance(config, LSTM) else 3
        kind = nn.LSTM if isinstance(config, LSTM) else nn.GRU
        self.rnn: nn.LSTM | nn.GRU = kind(config.d_model, hidden, batch_first=True)
        self.o_proj = nn.Linear(hidden, config.d_model)
        start = dict(self.rnn.named_parameters())
        with torch.no_grad():
            if isinstance(config, LSTM):
                start["bias_ih_l0"][hidden : 2 * hidden] += config.forget_bias
            if config.orthogonal:
                for gate in start["weight_hh_l0"].chunk(gates):
                    nn.init.orthogonal_(gate)

    def initial_state(self, batch: int) -> tuple[Tensor, ...]:
        h = self.o_proj.weight.new_zeros(1, batch, self.rnn.hidden_size)
        return (h, h) if isinstance(self.rnn, nn.LSTM) else (h,)

    def run(self, x: Tensor, state: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        if mask is None:
            h, state = self._rnn(x, state)
        else:
            h = skipping_padding(lambda valid: self._rnn(valid, state)[0], hide(x, mask), mask)
        return self.o_proj(h), state

    def _rnn(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Return h at all positions and the state after the last one, in full precision also under autocast."""
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(self.o_proj.weight.dtype)
            if isinstance(self.rnn, nn.LSTM):
                return self.rnn(x, state)  # type: ignore[no-any-return]
            h, last = gru(self.rnn, x, state[0])
            return h, (last,)


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
    orthogonal: bool = parameter(False, "initialise the recurrent maps as orthogonal matrices")

    def layer(self, index: int) -> RNNLayer:
        return RNNLayer(self)


@registry.register("lstm")
@dataclass(frozen=True)
class LSTM(GRU):
    """LSTM: a vector state whose gates depend on the state.

    Source: Hochreiter and Schmidhuber, "Long Short-Term Memory", Neural Computation 9 (1997),
    https://doi.org/10.1162/neco.1997.9.8.1735.
    """

    presets: ClassVar[Presets] = {**GRU.presets, "small": {**SMALL, "d_model": 48, "mlp_width": 80}}

    forget_bias: float = parameter(1.0, "number added to the initial bias of the forget gate; torch adds 0")
