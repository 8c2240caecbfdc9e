"""Attention over quantised keys, in time linear in the length, exactly as the quadratic form gives it.

Sources: "LongVQ", section 3; "Transformer-VQ: Linear-Time Transformers via Vector Quantization", sections 3.2 and 3.3.

    q_i, k̂_j, v_j   query (already scaled), quantised key c_(z_j), value
    ω               reach of the local bias, and positions of a block
    near, far       keys of the query's block and its neighbours (causal: the one before); all other keys
    n_s, U_s        over the far keys of a block: their number and the sum of their values, per code s

    softmax       Σ_j e^(q·k̂_j) v_j = Σ_near e^(q·k̂_j + b) v_j + Σ_s e^(q·c_s) U_s,  and the same with 1 and n_s below
    elementwise   Σ_j f(q·k̂_j) v_j = Σ_near f(q·k̂_j + b) v_j + Σ_s f(q·c_s) U_s

:func:`attend_quantised` is the parallel form. It computes blocks together in segments of bounded size and carries the
sums over the keys outside a segment from both ends (causal: from the first). With more than one segment, the backward
pass computes each again. :class:`QuantisedAttention` adds scales, normalisation, the bias and the streaming form.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lrtasks.errors import UsageError
from lrtasks.models.ops.chunked import hide
from lrtasks.models.ops.layers import require_causal
from lrtasks.models.ops.positions import LocalBias
from lrtasks.models.ops.quantiser import Codebook
from lrtasks.models.ops.scoped_attention import AttentionFunction, Bias, Scope, Tiles, attention_weights

KeyGradients = Literal["near", "code-mean"]
NORM_EPSILON = 1e-6
WORKING = 2**25
"""Elements of the largest tensor of a segment."""
BLOCKS = 128
"""Blocks of a segment at most: adding up far blocks takes time in proportion to their number."""


def attend_quantised(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    codes: Tensor | None = None,
    centres: Tensor | None = None,
    *,
    block: int,
    causal: bool,
    function: AttentionFunction,
    bias: Bias | None = None,
    valid: Tensor | None = None,
    key_gradients: KeyGradients = "near",
    working: int = WORKING,
) -> Tensor:
    """``function(q k̂ᵀ + bias) v`` over all keys (causal: up to the query's).

    Args:
        q: scaled queries ``(batch, length, d_k)``.
        k: quantised keys ``(batch, length, d_k)``; gradients reach them through the near part.
        v: values ``(batch, length, d_v)``.
        codes: ``(batch, length)`` int64; may be missing if there are at most two blocks, which have no far keys.
        centres: codebook ``(S, d_k)``, likewise.
        block: positions of a block, at least the reach of the bias.
        causal: no key after the query.
        function: from scores to weights, computed in float32 at least.
        bias: maps distances to what is added to the scores; 0 beyond ``block``.
        valid: ``(batch, length)`` bool, False at keys that no query sees, even if they hold NaN; None if all are seen.
        key_gradients: ``"near"``: none through the far part; ``"code-mean"``: there c_s counts as the mean of the far
            keys of code s, which gives their sum the exact gradient, spread evenly over them.
        working: elements that the largest tensor of a segment may have (a segment has one block at least).

    Returns:
        ``(batch, length, d_v)``; zeros for a query without any key.
    """
    batch, length = q.shape[:2]
    block = min(block, length)
    count = -(-length // block)
    back = min(1, count - 1)
    tiles = Tiles(length, count, block, back, 0 if causal else back)
    part = _Part(tiles, function, v.shape[2], causal, _added(tiles, causal, bias, q.device), valid is not None)
    dtype = torch.promote_types(v.dtype, torch.float32)
    k, v = hide(k, valid), hide(v, valid)
    columns = [v.to(dtype), hide(torch.ones(batch, length, 1, dtype=dtype, device=v.device), valid)]
    if key_gradients == "code-mean":
        columns.append(k.to(dtype))
    edge, extra = back * block, count * block - length
    q = F.pad(q, (0, 0, 0, extra))
    k, content = (F.pad(x, (0, 0, edge, edge + extra)) for x in (k, torch.cat(columns, -1)))
    if count <= 2:
        codes = centres = None
    if codes is None or centres is None:
        return part(q, k, content, None, None, None, None)[:, :length]

    codes = F.pad(codes, (edge, edge + extra))
    size = len(centres)
    per_block = batch * max(block * (tiles.span + size), size * content.shape[2])
    together = max(1, min(BLOCKS, working // per_block))
    starts = range(0, count, together)
    stops = [min(start + together, count) for start in starts]
    before, after = _carried(content, codes, size, block, starts, stops, causal)
    outputs = []
    for start, stop, first, last in zip(starts, stops, before, after, strict=True):
        queries, keys = slice(start * block, stop * block), slice(start * block, (stop + 2) * block)
        arguments = (q[:, queries], k[:, keys], content[:, keys], codes[:, keys], centres, first, last)
        if len(starts) > 1 and torch.is_grad_enabled():
            outputs.append(checkpoint(part, *arguments, use_reentrant=False, preserve_rng_state=False))
        else:
            outputs.append(part(*arguments))
    return torch.cat(outputs, 1)[:, :length]


def join(
    near: Tensor, far: Tensor | None, number: Tensor | None, function: AttentionFunction, *, padded: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Weights of near keys, and per code of each of its far keys, under one maximum and one normaliser.

    Args:
        near: scores ``(..., keys)``, -inf at keys that the query does not see.
        far: scores of the codes ``(..., S)``, or None.
        number: n, far keys per code, broadcast against ``far``.
        function: from scores to weights.
        padded: a query may see no key at all; its weights are 0.
    """
    working = torch.promote_types(near.dtype, torch.float32)
    near = near.to(working)
    if far is None or number is None:
        return attention_weights(near, function, padded=padded), None
    far, number = far.to(working), number.to(working)
    if function != "softmax":
        return attention_weights(near, function), attention_weights(far, function)
    # log n: a code stands for n keys; -inf where there is none
    weights = attention_weights(torch.cat([near, far + number.log()], -1), function, padded=padded)
    near_weights, far_weights = torch.split(weights, [near.shape[-1], far.shape[-1]], -1)
    return near_weights, far_weights / number.clamp_min(1)


@dataclasses.dataclass(frozen=True)
class _Part:
    """Attention of a segment of blocks.

    Attributes:
        tiles: shape of a block with its near keys.
        function: from scores to weights.
        d_v: width of values.
        causal: far keys lie before only.
        added: bias, and -inf after the query if causal, ``(block, span)`` or None.
        padded: some keys are padding.
    """

    tiles: Tiles
    function: AttentionFunction
    d_v: int
    causal: bool
    added: Tensor | None
    padded: bool

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        content: Tensor,
        codes: Tensor | None,
        centres: Tensor | None,
        before: Tensor | None,
        after: Tensor | None,
    ) -> Tensor:
        """``(batch, G ω, d_v)`` for G blocks of queries; keys, content and codes hold a block more on either side.

        ``content`` is values, 1, and perhaps keys, zero where padded; ``before`` and ``after``, ``(batch, S, width)``,
        are its sums over the far keys of the first and of the last block outside the segment.
        """
        block, d_v = self.tiles.block, self.d_v
        queries = _blocks(q, block)
        near_content = self._near(content, queries.shape[1])
        near = queries @ self._near(k, queries.shape[1]).transpose(-1, -2)
        if self.added is not None:
            near = near + self.added
        near = near.masked_fill(near_content[..., d_v].unsqueeze(2) == 0, -torch.inf)
        if codes is None or centres is None or before is None:
            weights, _ = join(near, None, None, self.function, padded=self.padded)
            return (weights.to(q.dtype) @ near_content[..., :d_v].to(q.dtype)).flatten(1, 2)
        sums = _far_sums(content, codes, len(centres), block, before, None if self.causal else after)
        number = sums[..., d_v].detach().unsqueeze(2)
        c = centres.to(q.dtype)
        if sums.shape[-1] > d_v + 1:
            mean = sums[..., d_v + 1 :] / number.transpose(2, 3).clamp_min(1)
            c = c + (mean - mean.detach()).to(q.dtype)
        far = queries @ c.transpose(-1, -2)
        weights, far_weights = join(near, far, number, self.function, padded=self.padded)
        assert far_weights is not None
        values, far_values = near_content[..., :d_v].to(q.dtype), sums[..., :d_v]
        y = weights.to(q.dtype) @ values + (far_weights.to(far_values.dtype) @ far_values).to(q.dtype)
        return y.flatten(1, 2)

    def _near(self, x: Tensor, count: int) -> Tensor:
        """Blocks ``(batch, count, span, width)`` from ``(batch, positions, width)``."""
        blocks = _blocks(x, self.tiles.block)
        shifts = 1 + self.tiles.back + self.tiles.ahead
        return torch.cat([blocks[:, shift : shift + count] for shift in range(shifts)], 2)


def _added(tiles: Tiles, causal: bool, bias: Bias | None, device: torch.device) -> Tensor | None:
    """Bias at near keys, and -inf after the query if causal, ``(block, span)``."""
    added = None if bias is None else tiles.toeplitz(bias, device)
    if not causal:
        return added
    later = tiles.differences(device) > 0
    return (torch.zeros_like(later, dtype=torch.float32) if added is None else added).masked_fill(later, -torch.inf)


def _blocks(x: Tensor, block: int) -> Tensor:
    """``(batch, positions, ...)`` to ``(batch, blocks, block, ...)``."""
    return x.reshape(len(x), -1, block, *x.shape[2:])


def sum_by_code(content: Tensor, codes: Tensor, size: int) -> Tensor:
    """``(rows, positions, width)`` to ``(rows, S, width)``."""
    table = content.new_zeros(len(content), size, content.shape[2])
    return table.scatter_add(1, codes.unsqueeze(-1).expand_as(content), content)


def _far_sums(content: Tensor, codes: Tensor, size: int, block: int, before: Tensor, after: Tensor | None) -> Tensor:
    """Sums over the far keys of each of G blocks, ``(batch, G, S, width)``, from G + 2 blocks of content.

    Block g lies at place g + 1: far are places up to g - 1, and from g + 3. One product with a matrix of zeros and ones
    adds them up for both directions, and subtracts nothing.
    """
    blocks, block_codes = _blocks(content, block), _blocks(codes, block)
    batch, places = blocks.shape[:2]
    table = sum_by_code(blocks.flatten(0, 1), block_codes.flatten(0, 1), size).view(batch, places, -1)
    ahead = torch.arange(places, device=content.device) - torch.arange(1, places - 1, device=content.device).unsqueeze(
        1
    )
    far, outside = ahead <= -2, before
    if after is not None:
        far, outside = far | (ahead >= 2), before + after
    with torch.autocast(content.device.type, enabled=False):  # counts keep all their digits
        inside = far.to(content.dtype) @ table
    return inside.view(batch, -1, *outside.shape[1:]) + outside.unsqueeze(1)


def _carried(
    content: Tensor, codes: Tensor, size: int, block: int, starts: range, stops: list[int], causal: bool
) -> tuple[list[Tensor], list[Tensor | None]]:
    """For each segment, sums over the keys two blocks or more before its first, and (if not causal) after its last."""

    def over(first: int, last: int) -> Tensor:
        place = slice(first * block, last * block)
        return sum_by_code(content[:, place], codes[:, place], size)

    nothing = content.new_zeros(len(content), size, content.shape[2])
    before, after = [nothing], [nothing]
    # block b lies at place b + 1
    for start, stop in zip(starts[:-1], stops[:-1], strict=True):
        before.append(before[-1] + over(start, stop))
    if causal:
        return before, [None] * len(starts)
    for start, stop in zip(reversed(starts[1:]), reversed(stops[1:]), strict=True):
        after.append(after[-1] + over(start + 2, stop + 2))
    return before, [*reversed(after)]


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
        key_gradients: as :func:`attend_quantised` takes it.
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
        near = near.masked_fill((place < 0) | (place > position), -torch.inf)
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
