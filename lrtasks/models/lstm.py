"""LSTM (Hochreiter and Schmidhuber, 1997) and GRU (Cho et al., arXiv:1406.1078) as mixers of a residual stack.

    LSTM   c = sigmoid(f) c + sigmoid(i) tanh(g);  h = sigmoid(o) tanh(c)
    GRU    h = (1 - sigmoid(z)) n + sigmoid(z) h,  n = tanh(W x + b + sigmoid(r) (U h + b'))
    output linear(h)

where i, f, g, o and r, z are linear maps of x and of the previous h. Layers and initial weights are those of torch,
except that 1 is added to the LSTM's forget bias, so that the LSTM remembers at the start (Jozefowicz et al., 2015).

On a CPU, compiled loops compute a GRU with a small state. The products with the input at all positions are one product
before the loop, and the gradients of the weights are one product each after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lrtasks.config import Presets, parameter
from lrtasks.models import registry
from lrtasks.models.base import PAPER, SMALL, TRACKING
from lrtasks.models.ops.chunked import skipping_padding
from lrtasks.models.ops.layers import hide
from lrtasks.models.recurrent import RecurrentConfig, RecurrentLayer


def gru(rnn: nn.GRU, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return what ``rnn(x, state)`` returns: h at all positions, ``(B, L, H)``, and the last state, ``(1, B, H)``.

    Args:
        rnn: a batch-first GRU with one layer and biases.
        x: ``(B, L, d_model)``.
        state: ``(1, B, H)``.
    """
    from lrtasks.models.ops import loops  # imports numba

    if x.shape[1] == 1 or not loops.gru_usable(state):
        return rnn(x, state)
    input_weight, weight, input_bias, bias = rnn.parameters()
    h = _GRU.apply(nn.functional.linear(x.transpose(0, 1), input_weight, input_bias), weight, bias, state[0])  # type: ignore[no-untyped-call]
    return h.transpose(0, 1), h[-1:]


class _GRU(torch.autograd.Function):
    """The loop of :func:`gru`: h ``(L, B, H)`` from contributions of the input ``(L, B, 3 H)``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, state: Tensor) -> Tensor:
        from lrtasks.models.ops import loops

        length, batch, width = x.shape
        h = torch.cat((state.unsqueeze(0), x.new_empty(length, batch, width // 3)))
        gates = x.new_empty(length, batch, width // 3 * 4)
        own = torch.empty_like(x[0])
        loops.run_loop(loops.gru_forward, x.contiguous(), weight.T.contiguous(), bias, h, gates, own)
        ctx.save_for_backward(h, gates, weight)
        return h[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, ...]:
        from lrtasks.models.ops import loops

        h, gates, weight = ctx.saved_tensors
        d_h = torch.cat((torch.zeros_like(h[:1]), given))
        d_x = h.new_empty(*given.shape[:2], len(weight))
        d_own = torch.empty_like(d_x)
        loops.run_loop(loops.gru_backward, h, gates, weight, d_h, d_x, d_own)
        flat = d_own.flatten(0, 1)
        return d_x, flat.T @ h[:-1].flatten(0, 1), flat.sum(0), d_h[0]


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
                return self.rnn(x, state)
            h, last = gru(self.rnn, x, state[0])
            return h, (last,)


@registry.register("gru")
@dataclass(frozen=True)
class GRU(RecurrentConfig):
    """GRU: like an LSTM, with fewer gates and half the state.

    Source: Cho et al. (arXiv:1406.1078).
    """

    layer_class = RNNLayer
    presets: ClassVar[Presets] = {
        "small": {**SMALL, "d_model": 48, "mlp_width": 112},
        "state-tracking": TRACKING,
        "paper": PAPER,
    }

    hidden: int | None = parameter(None, "width of the state; none: d_model", at_least=1, at_most=65536)
    orthogonal: bool = parameter(False, "initialise the recurrent maps as orthogonal matrices")


@registry.register("lstm")
@dataclass(frozen=True)
class LSTM(GRU):
    """LSTM: a vector state whose gates depend on the state.

    Source: Hochreiter and Schmidhuber, "Long Short-Term Memory", Neural Computation 9 (1997),
    https://doi.org/10.1162/neco.1997.9.8.1735.
    """

    presets: ClassVar[Presets] = {**GRU.presets, "small": {**SMALL, "d_model": 48, "mlp_width": 80}}

    forget_bias: float = parameter(1.0, "number added to the initial bias of the forget gate; torch adds 0")
