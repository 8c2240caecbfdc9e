"""Attention over quantised keys in time linear in the length, with the same result as the quadratic form.

Sources: "LongVQ", section 4.2; "Transformer-VQ: Linear-Time Transformers via Vector Quantization", sections 3.2, 3.3.

    q_i, k̂_j, v_j   query (already scaled), quantised key c_(z_j), value
    ω               reach of the local bias, and number of positions in a block
    near, far       keys of the query's block and its neighbours (causal: the one before); all other keys
    n_s, U_s        number of far keys of a block with code s, and sum of their values

    softmax       Σ_j e^(q·k̂_j) v_j = Σ_near e^(q·k̂_j + b) v_j + Σ_s e^(q·c_s) U_s
    elementwise   Σ_j f(q·k̂_j) v_j = Σ_near f(q·k̂_j + b) v_j + Σ_s f(q·c_s) U_s

The denominator of the softmax is the same sum with 1 for v_j and n_s for U_s.

:func:`attend_quantised` is the parallel form. It computes the blocks of a segment together; segments have bounded size.
The sums over the keys outside a segment are carried in from both ends (causal: only from the start). If there are
several segments, the backward pass recomputes each of them.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lrtasks.models.ops.layers import hide
from lrtasks.models.ops.scoped_attention import AttentionFunction, Bias, Scope, attention_weights, by_distance

KeyGradients = Literal["near", "code-mean"]
WORKING = 2**25
"""Maximum elements of a segment's largest tensor."""
BLOCKS = 128
"""Maximum blocks of a segment: the time to sum the far blocks of each block is proportional to their number."""


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
    """Compute ``function(q k̂ᵀ + bias) v`` over all keys (causal: up to the query's own).

    Args:
        q: scaled queries ``(batch, length, d_k)``.
        k: quantised keys ``(batch, length, d_k)``; gradients reach them through the near part.
        v: values ``(batch, length, d_v)``.
        codes: ``(batch, length)`` int64; may be None for at most two blocks, which have no far keys.
        centres: the codebook, ``(S, d_k)``; may be None in the same case.
        block: positions per block, at least the reach of the bias.
        function: maps scores to weights; computed in float32 at least.
        bias: maps distances to numbers that are added to the scores; 0 beyond ``block``.
        valid: ``(batch, length)`` bool, False at keys that no query sees, even if they hold NaN; None if all are seen.
        key_gradients: ``"near"``: no key gradient through the far part; ``"code-mean"``: in the far part, c_s counts as
            the mean of the far keys with code s. The sum of these keys' gradients is then exact, and each key gets an
            equal share.
        working: maximum elements of a segment's largest tensor (a segment has at least one block).

    Returns:
        ``(batch, length, d_v)``; zeros for a query that sees no key.
    """
    batch, length = q.shape[:2]
    block = min(block, length)
    count = -(-length // block)
    back = min(1, count - 1)
    span = (1 + back + (0 if causal else back)) * block
    added = by_distance(Scope(causal), block, span, back * block, q.device, bias)
    d_v, padded = v.shape[2], valid is not None
    dtype = torch.promote_types(v.dtype, torch.float32)
    k, v = hide(k, valid), hide(v, valid)
    columns = [v.to(dtype), hide(torch.ones(batch, length, 1, dtype=dtype, device=v.device), valid)]
    if key_gradients == "code-mean":
        columns.append(k.to(dtype))
    edge, extra = back * block, count * block - length
    q = F.pad(q, (0, 0, 0, extra))
    k, content = (F.pad(x, (0, 0, edge, edge + extra)) for x in (k, torch.cat(columns, -1)))

    def part(q: Tensor, k: Tensor, content: Tensor, far: tuple[Tensor, Tensor, Tensor | None] | None = None) -> Tensor:
        """Attend from G blocks of queries, ``(batch, G ω, d_v)``; k, content and codes have an extra block per side.

        ``content`` holds values, 1 and, for ``"code-mean"``, keys; it is zero at padding. ``far`` holds the codes and
        two sums of content, ``(batch, S, width)``: over the far keys of the first block that precede the segment, and
        over the far keys of the last block that follow it (None if causal).
        """
        queries = torch.unflatten(q, 1, (-1, block))
        # keys and content of the near keys of each block: (batch, G, width, span)
        near_k, near_content = (x.unfold(1, span, block)[:, : queries.shape[1]] for x in (k, content))
        values = near_content[:, :, :d_v].mT.to(q.dtype)
        near = queries @ near_k
        near = near if added is None else near + added
        near = near.masked_fill(near_content[:, :, d_v].unsqueeze(2) == 0, -torch.inf)
        if far is None or centres is None:
            weights = attention_weights(near.to(dtype), function, padded=padded)
            return (weights.to(q.dtype) @ values).flatten(1, 2)
        sums = _far_sums(content, len(centres), block, *far)
        number = sums[..., d_v].detach().unsqueeze(2)
        c = centres.to(q.dtype)
        if sums.shape[-1] > d_v + 1:
            mean = sums[..., d_v + 1 :] / number.transpose(2, 3).clamp_min(1)
            c = c + (mean - mean.detach()).to(q.dtype)
        weights, far_weights = join(near, queries @ c.transpose(-1, -2), number, function, padded=padded)
        distant = (far_weights.to(sums.dtype) @ sums[..., :d_v]).to(q.dtype)
        return (weights.to(q.dtype) @ values + distant).flatten(1, 2)

    if count <= 2 or codes is None or centres is None:
        return part(q, k, content)[:, :length]

    codes = F.pad(codes, (edge, edge + extra))
    size = len(centres)
    per_block = batch * max(block * (span + size), size * content.shape[2])
    together = max(1, min(BLOCKS, working // per_block))
    starts = range(0, count, together)
    stops = [min(start + together, count) for start in starts]
    before, after = _carried(content, codes, size, block, starts, stops, causal)
    outputs = []
    for start, stop, first, last in zip(starts, stops, before, after, strict=True):
        queries, keys = slice(start * block, stop * block), slice(start * block, (stop + 2) * block)
        arguments = q[:, queries], k[:, keys], content[:, keys], (codes[:, keys], first, last)
        if len(starts) > 1 and torch.is_grad_enabled():
            outputs.append(checkpoint(part, *arguments, use_reentrant=False, preserve_rng_state=False))
        else:
            outputs.append(part(*arguments))
    return torch.cat(outputs, 1)[:, :length]


def join(
    near: Tensor, far: Tensor, number: Tensor, function: AttentionFunction, *, padded: bool = False
) -> tuple[Tensor, Tensor]:
    """Compute the weights of near keys, and of a far key of each code, with a common maximum and normaliser.

    Args:
        near: scores ``(..., keys)``, -inf at keys that the query does not see.
        far: scores of the codes ``(..., S)``.
        number: n, far keys per code, broadcast against ``far``.
        function: maps scores to weights.
        padded: allow queries that see no key; their weights are 0.
    """
    working = torch.promote_types(near.dtype, torch.float32)
    near, far, number = near.to(working), far.to(working), number.to(working)
    if function != "softmax":
        return attention_weights(near, function), attention_weights(far, function)
    # add log n because a code represents n keys; -inf if it has no far key
    weights = attention_weights(torch.cat([near, far + number.log()], -1), function, padded=padded)
    near_weights, far_weights = torch.split(weights, [near.shape[-1], far.shape[-1]], -1)
    return near_weights, far_weights / number.clamp_min(1)


def sum_by_code(content: Tensor, codes: Tensor, size: int) -> Tensor:
    """Sum content over the positions of each code: ``(rows, positions, width)`` to ``(rows, S, width)``."""
    table = content.new_zeros(len(content), size, content.shape[2])
    return table.scatter_add(1, codes.unsqueeze(-1).expand_as(content), content)


def _far_sums(content: Tensor, size: int, block: int, codes: Tensor, before: Tensor, after: Tensor | None) -> Tensor:
    """Sum content over the far keys of each of G blocks, ``(batch, G, S, width)``, from G + 2 blocks of content.

    Block g is at place g + 1; its far blocks are the places up to g - 1 and from g + 3. One product with a matrix of
    zeros and ones sums them for both directions, without subtractions.
    """
    blocks, block_codes = (torch.unflatten(x, 1, (-1, block)) for x in (content, codes))
    batch, places = blocks.shape[:2]
    table = sum_by_code(blocks.flatten(0, 1), block_codes.flatten(0, 1), size).view(batch, places, -1)
    place = torch.arange(places, device=content.device)
    ahead = place - place[1:-1].unsqueeze(1)
    far, outside = ahead <= -2, before
    if after is not None:
        far, outside = far | (ahead >= 2), before + after
    with torch.autocast(content.device.type, enabled=False):  # counts keep all their digits
        inside = far.to(content.dtype) @ table
    return inside.view(batch, -1, *outside.shape[1:]) + outside.unsqueeze(1)


def _carried(
    content: Tensor, codes: Tensor, size: int, block: int, starts: range, stops: list[int], causal: bool
) -> tuple[list[Tensor], list[Tensor | None]]:
    """Sum, per segment, over keys at least two blocks before its first block and (if not causal) after its last."""

    def over(first: int, last: int) -> Tensor:
        place = slice(first * block, last * block)
        return sum_by_code(content[:, place], codes[:, place], size)

    nothing = content.new_zeros(len(content), size, content.shape[2])
    before, after = [nothing], [nothing]
    # block b is at place b + 1
    for start, stop in zip(starts[:-1], stops[:-1], strict=True):
        before.append(before[-1] + over(start, stop))
    if causal:
        return before, [None] * len(starts)
    for start, stop in zip(reversed(starts[1:]), reversed(stops[1:]), strict=True):
        after.append(after[-1] + over(start + 2, stop + 2))
    return before, [*reversed(after)]
