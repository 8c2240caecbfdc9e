"""The GRU of torch (Cho et al., arXiv:1406.1078), computed by compiled loops where the state is small, on a CPU.

With the contributions ``x`` of the input and ``a = R h_(t-1) + b`` of the previous state, each in three parts:

    r = sigmoid(x_r + a_r);  z = sigmoid(x_z + a_z);  n = tanh(x_n + r a_n);  h = (1 - z) n + z h_(t-1)

The products with the input at all positions are one product before the loop, and the gradients of the weights one
product each after it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def gru(rnn: nn.GRU, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return what ``rnn(x, state)`` returns: h at all positions, ``(B, L, H)``, and the last state, ``(1, B, H)``.

    Args:
        rnn: a batch-first GRU with one layer and biases.
        x: ``(B, L, d_model)``.
        state: ``(1, B, H)``.
    """
    from lrtasks.models.ops import loops  # imports numba

    if x.shape[1] == 1 or not loops.gru_usable(state):
        h, last = rnn(x, state)
        return h, last
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
        loop = loops.on_tensors(loops.gru_forward)
        loop(x.contiguous(), weight.T.contiguous(), bias, h, gates, torch.empty_like(x[0]))
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
        loops.on_tensors(loops.gru_backward)(h, gates, weight, d_h, d_x, d_own)
        flat = d_own.flatten(0, 1)
        return d_x, flat.T @ h[:-1].flatten(0, 1), flat.sum(0), d_h[0]
