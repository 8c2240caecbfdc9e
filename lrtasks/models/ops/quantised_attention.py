"""Attention over quantised keys as a layer's part: scales, normalisation, bias, and the streaming form.

Sources: "LongVQ", section 3; "Transformer-VQ: Linear-Time Transformers via Vector Quantization", section 3. Letters as
in :mod:`lrtasks.models.ops.vq_attention`, which computes the parallel form.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.errors import UsageError
from lrtasks.models.ops.attention_functions import MASKED, AttentionFunction
from lrtasks.models.ops.quantiser import Codebook
from lrtasks.models.ops.relative_bias import LocalBias
from lrtasks.models.ops.scoped_attention import Scope
from lrtasks.models.ops.streaming import require_causal
from lrtasks.models.ops.vq_attention import KeyGradients, attend_quantised, join, sum_by_code

NORM_EPSILON = 1e-6


@dataclasses.dataclass
class State:
    """Streaming state.

    Attributes:
        k: (quantised) keys of the block before and of the present one, ``(batch, slots, d_k)``.
        v: values, ``(batch, slots, d_v)``.
        codes: ``(batch, slots)``, or None without a codebook.
        sums: values and 1, summed per code over the far keys, ``(batch, S, d_v + 1)``, or None.
        position: of the next input.
    """

    k: Tensor
    v: Tensor
    codes: Tensor | None
    sums: Tensor | None
    position: int


class QuantisedAttention(nn.Module):
    """Queries and keys ``(batch, length, d_k)`` with values ``(batch, length, d_v)`` to ``(batch, length, d_v)``.

    Scores are q·k̂/sqrt(d_k) + bias under a softmax, q·k̂/n + bias under the other functions, with n the number of
    unpadded keys, causal the query's position from 1. With ``qk_norm`` queries and keys are x / sqrt(mean(x²) + 1e-6)
    d_k^(-1/4), and a softmax divides no further.

    Args:
        d_k: width of queries and keys.
        d_v: width of values.
        length: longest sequence; slots of the streaming state without a codebook.
        window: ω.
        causal: no key after the query.
        function: from scores to weights.
        codebook: the quantiser, or None for attention over the keys themselves, of quadratic cost.
        local_bias: add a learned bias up to a distance of ω.
        qk_norm: see above.
        key_gradients: as :func:`lrtasks.models.ops.vq_attention.attend_quantised` takes it.
    """

    def __init__(
        self,
        d_k: int,
        d_v: int,
        length: int,
        window: int,
        *,
        causal: bool,
        function: AttentionFunction,
        codebook: Codebook | None,
        local_bias: bool = True,
        qk_norm: bool = True,
        key_gradients: KeyGradients = "near",
    ) -> None:
        super().__init__()
        self.d_k, self.d_v, self.length = d_k, d_v, length
        self.block = length if codebook is None else window
        self.causal, self.qk_norm = causal, qk_norm
        self.function: AttentionFunction = function
        self.key_gradients: KeyGradients = key_gradients
        self.codebook = codebook
        self.bias = LocalBias(window, causal) if local_bias else None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """``mask`` is ``(batch, length)`` bool, False at padding, or ``None``."""
        q, k = self._normalised(q), self._normalised(k)
        codes = centres = None
        block = k.shape[1]
        if self.codebook is not None:
            quantised = self.codebook(k, mask)
            codes, k, centres = quantised.codes, quantised.keys, quantised.centres
            block = self.block
        scale: float | Tensor = self._softmax_scale()
        if self.function != "softmax":
            divisor = Scope(self.causal).divisor(q.shape[1], mask, q.device)
            scale = 1 / torch.as_tensor(divisor).to(q.dtype)
        return attend_quantised(
            (q * scale).to(v.dtype),
            k.to(v.dtype),
            v,
            codes,
            centres,
            block=block,
            causal=self.causal,
            function=self.function,
            bias=self.bias,
            valid=mask,
            key_gradients=self.key_gradients,
        )

    def initial_state(self, batch: int, like: Tensor) -> State:
        """Two blocks of keys and sums per code; without a codebook, as many keys as the longest sequence has.

        Args:
            batch: rows.
            like: a tensor of the type and on the device wanted.

        Raises:
            UsageError: if the attention is not causal.
        """
        require_causal(self.causal)
        if self.codebook is None:
            slots, codes, sums = self.length, None, None
        else:
            slots = 2 * self.block
            codes = torch.zeros(batch, slots, dtype=torch.int64, device=like.device)
            sums = like.new_zeros(batch, self.codebook.size, self.d_v + 1)
        return State(like.new_zeros(batch, slots, self.d_k), like.new_zeros(batch, slots, self.d_v), codes, sums, 0)

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        """One position, ``(batch, d_k)`` twice and ``(batch, d_v)``; equals :meth:`forward` in evaluation mode.

        Raises:
            UsageError: without a codebook, past the longest sequence.
        """
        if self.codebook is None and state.position >= self.length:
            raise UsageError(f"attention without a codebook was built for {self.length} positions, found one more")
        q, k = self._normalised(q), self._normalised(k)
        centres = code = None
        if self.codebook is not None:
            centres = self.codebook.centres()
            code = self.codebook.assign(k, centres)
            k = centres.index_select(0, code).to(k.dtype)
        state = self._pushed(state, k, v, code)
        slots = state.k.shape[1]
        position = state.position - 1
        # place of the first slot: the present block fills the last slots
        base = (position // self.block + 1) * self.block - slots
        place = base + torch.arange(slots, device=q.device)
        q = q * (self._softmax_scale() if self.function == "softmax" else 1 / state.position)
        near = (state.k @ q.unsqueeze(2)).squeeze(2)
        if self.bias is not None:
            near = near + self.bias(place - position)
        near = near.masked_fill((place < 0) | (place > position), MASKED)
        if centres is None or state.sums is None:
            weights, _ = join(near, None, None, self.function)
            return (weights.to(v.dtype).unsqueeze(1) @ state.v).squeeze(1), state
        number, far = state.sums[..., self.d_v], q @ centres.to(q.dtype).T
        weights, far_weights = join(near, far, number, self.function)
        assert far_weights is not None
        y = weights.to(v.dtype).unsqueeze(1) @ state.v
        y = y + far_weights.to(v.dtype).unsqueeze(1) @ state.sums[..., : self.d_v]
        return y.squeeze(1), state

    def _pushed(self, state: State, k: Tensor, v: Tensor, code: Tensor | None) -> State:
        """Store one key and value; at the start of a block, the block before the last joins the sums."""
        block, slots = self.block, state.k.shape[1]
        keys, values, codes, sums = state.k, state.v, state.codes, state.sums
        place = state.position % block
        if codes is not None and sums is not None and place == 0 and state.position:
            if state.position > block:
                content = F.pad(values[:, :block], (0, 1), value=1.0)
                sums = sums + sum_by_code(content, codes[:, :block], sums.shape[1])
            keys, values, codes = (x.roll(-block, 1) for x in (keys, values, codes))
        slot = slots - block + place
        keys, values = _stored(keys, k, slot), _stored(values, v, slot)
        if codes is not None and code is not None:
            codes = _stored(codes, code, slot)
        return State(keys, values, codes, sums, state.position + 1)

    def _normalised(self, x: Tensor) -> Tensor:
        if not self.qk_norm:
            return x
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        scale: float = self.d_k**-0.25
        return x * (torch.rsqrt(x.square().mean(-1, keepdim=True) + NORM_EPSILON) * scale)

    def _softmax_scale(self) -> float:
        return 1.0 if self.qk_norm else self.d_k**-0.5


def _stored(memory: Tensor, entry: Tensor, slot: int) -> Tensor:
    memory = memory.clone()
    memory[:, slot] = entry
    return memory
