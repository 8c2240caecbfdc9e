"""Single-head attention in which a query sees all keys, the keys in a sliding window, or the keys of its own chunk.

The parallel form :func:`attend` works in tiles. A tile is a block of queries and the range of keys that at least one of
them sees. The scores of n positions therefore take n (w + block) numbers with a window w, and n C numbers with chunks
of C; long sequences need no n × n array. Queries that see all keys (causal: all past keys) are computed block by block.
:meth:`ScopedAttention.step` is the streaming form. A rank is a position 0, 1, ... in the (compressed) sequence.

Symbols: ``n`` positions, ``e`` width of queries and keys, ``f`` width of values.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.errors import UsageError
from lrtasks.models.ops.layers import WEIGHT_STD, at_least_float32, hide, normal_, require_causal
from lrtasks.models.ops.positions import rotate

AttentionFunction = Literal["softmax", "relu2", "laplace"]
Bias = Callable[[Tensor], Tensor]
"""Maps integer distances (key position minus query position) of any shape to numbers of the same shape."""

BLOCK = 128
"""Approximate queries in a window's tile. Smaller tiles repeat more keys; larger tiles compute more masked scores."""
LAPLACE_MEAN, LAPLACE_STD = 0.707107, 0.282095
"""sqrt(1/2) and sqrt(1/(4π)), rounded to six digits as in the public code of MEGA."""


def relu2(scores: Tensor) -> Tensor:
    """Compute ``max(s, 0)²`` ("Primer", section 3)."""
    return F.relu(scores).square()


def laplace(scores: Tensor) -> Tensor:
    """Compute ``½ (1 + erf((s - μ) / (σ √2)))``, a smooth step with value 0.006 at 0 (MEGA, section 3)."""
    return 0.5 * (1 + torch.erf((scores - LAPLACE_MEAN) / (LAPLACE_STD * math.sqrt(2))))


def attention_weights(scores: Tensor, function: AttentionFunction, *, padded: bool = False) -> Tensor:
    """Compute attention weights over the last axis; a weight is exactly 0 where the score is -inf.

    Args:
        scores: ``(..., keys)``.
        function: maps scores to weights.
        padded: allow rows in which all scores are -inf; their weights are 0.
    """
    if function != "softmax":
        return relu2(scores) if function == "relu2" else laplace(scores)
    if not padded:
        return torch.softmax(scores, -1)
    empty = scores.detach().amax(-1, keepdim=True) == -torch.inf
    return torch.softmax(scores.masked_fill(empty, 0), -1).masked_fill(empty, 0)


@dataclass(frozen=True)
class Scope:
    """The set of keys that a query sees.

    Attributes:
        causal: the query sees no later keys.
        window: w: the query sees its own key and, if causal, the w keys before it; else w/2 keys on each side.
        chunk: C: the query sees the keys of its own block of C ranks. At most one of ``window`` and ``chunk`` is given.
    """

    causal: bool
    window: int | None = None
    chunk: int | None = None

    @property
    def before(self) -> int | None:
        """Return how many ranks before the query the window starts; None without a window."""
        return self.window if self.window is None or self.causal else self.window // 2

    def first(self, rank: Tensor) -> Tensor:
        """Return the lowest rank that a query sees."""
        if self.chunk is not None:
            return rank // self.chunk * self.chunk
        return torch.zeros_like(rank) if self.before is None else (rank - self.before).clamp_min(0)

    def stop(self, rank: Tensor, length: int) -> Tensor:
        """Return one more than the highest rank that a query sees in a sequence of ``length`` ranks."""
        if self.causal:
            return rank + 1
        if self.chunk is not None:
            return ((rank // self.chunk + 1) * self.chunk).clamp_max(length)
        return torch.full_like(rank, length) if self.before is None else (rank + self.before + 1).clamp_max(length)

    def divisor(self, length: int, valid: Tensor | None, device: torch.device) -> Tensor | int:
        """Return the divisor of scores for functions other than softmax: the number of keys, at least 1.

        With a window, the divisor is w, also near the ends. Otherwise, if causal, it is the query's rank in its chunk
        or sequence, counted from 1; if not causal, it is the number of valid keys in its chunk or sequence.

        Returns:
            A number, or ``(length, 1)``, or ``(batch, length, 1)`` with ``valid`` keys.
        """
        if self.window is not None:
            return self.window
        rank = torch.arange(length, device=device)
        first, stop = self.first(rank), self.stop(rank, length)
        if valid is None or self.causal:
            return (stop - first).unsqueeze(-1)
        count = F.pad(valid.cumsum(1), (1, 0))
        return (count[:, stop] - count[:, first]).clamp_min(1).unsqueeze(-1)

    @property
    def most(self) -> float:
        """Return the largest number of keys that a query of a causal scope sees; infinity if there is no limit."""
        return self.chunk or (math.inf if self.window is None else self.window + 1)

    def tiles(self, length: int) -> Tiles:
        """Return the tiles into which ``length`` positions are divided."""
        if self.before is None:
            return Tiles(length, min(self.chunk or length, length), 0, 0)
        after = 0 if self.causal else self.before
        block = math.ceil(self.before / max(1, round(self.before / BLOCK)))
        if length <= block + self.before + after:
            return Tiles(length, length, 0, 0)
        return Tiles(length, block, math.ceil(self.before / block), math.ceil(after / block))

    def sees(self, difference: Tensor) -> Tensor | None:
        """Return whether a query sees the key at its rank + ``difference``, within a tile; None if it sees all keys."""
        visible = difference <= 0 if self.causal else None
        if self.before is not None:
            near = difference.abs() <= self.before
            visible = near if visible is None else visible & near
        return visible


@dataclass(frozen=True)
class Tiles:
    """Blocks of ``block`` queries; each block sees its own keys, ``back`` blocks before them and ``ahead`` after."""

    length: int
    block: int
    back: int
    ahead: int

    @property
    def count(self) -> int:
        """Return the number of blocks."""
        return -(-self.length // self.block)

    def queries(self, x: Tensor) -> Tensor:
        """Split ``(batch, length, ...)`` into ``(batch, count, block, ...)``, padded with zeros at the end."""
        return self._blocks(x, 0, 0)

    def keys(self, x: Tensor) -> Tensor:
        """Gather the ``span`` keys of each tile, ``(batch, count, span, ...)``, padded with zeros at both ends."""
        blocks = self._blocks(x, self.back, self.ahead)
        return torch.cat([blocks[:, shift : shift + self.count] for shift in range(1 + self.back + self.ahead)], 2)

    def existing(self, valid: Tensor | None, device: torch.device) -> Tensor | None:
        """Return the mask of keys, False at padding, ``(batch or 1, count, 1, span)``; None if there is no padding."""
        if valid is None:
            if not self.back + self.ahead and self.count * self.block == self.length:
                return None
            valid = torch.ones(1, self.length, dtype=torch.bool, device=device)
        return self.keys(valid).unsqueeze(2)

    def _blocks(self, x: Tensor, back: int, ahead: int) -> Tensor:
        extra = self.count * self.block - self.length
        x = F.pad(x, (*(0, 0) * (x.dim() - 2), back * self.block, ahead * self.block + extra))
        return torch.unflatten(x, 1, (-1, self.block))


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scope: Scope,
    function: AttentionFunction,
    valid: Tensor | None = None,
    bias: Bias | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """Compute ``A v`` with ``A = function(scale q kᵀ + bias)`` for keys in scope and ``A = 0`` elsewhere.

    The scale is 1/sqrt(e) for softmax, otherwise 1 / :meth:`Scope.divisor`. The bias is not scaled.

    Args:
        q: ``(batch, n, e)``, as k; v is ``(batch, n, f)``.
        scope: which keys a query sees.
        function: maps scores to weights; computed in float32 at least.
        valid: ``(batch, n)`` bool, False at keys that no query sees, even if they hold NaN; None if all are seen.
        bias: added to the scores; evaluated once per distance or, with ``positions``, once per pair.
        positions: ``(batch, n)`` integers, from which the distances for ``bias`` are computed; None to use ranks.

    Returns:
        ``(batch, n, f)``; zeros for a query that sees no key.
    """
    length = q.shape[1]
    divisor = math.sqrt(q.shape[-1]) if function == "softmax" else scope.divisor(length, valid, q.device)
    q = q * (1 / (divisor.to(q.dtype) if isinstance(divisor, Tensor) else divisor))
    k, v = hide(k, valid), hide(v, valid)
    near = None if positions is None else positions.to(torch.int32)

    def tile(qkv: tuple[Tensor, ...], first: int, existing: Tensor | None, places: tuple[Tensor, ...] | None) -> Tensor:
        """Attend from blocks of queries; ``first`` is the rank of a block's first query relative to its first key."""
        query, key, value = qkv
        scores = at_least_float32(query @ key.transpose(-1, -2))
        if bias is not None and places is not None:
            scores = scores.add_(bias(places[1].unsqueeze(-2) - places[0].unsqueeze(-1)))
        rows, columns = scores.shape[-2:]
        added = by_distance(scope, rows, columns, first, q.device, None if places is not None else bias)
        if added is not None:
            scores = scores.add_(added)
        if existing is not None:
            scores = scores.masked_fill_(~existing, -torch.inf)
        return attention_weights(scores, function, padded=valid is not None).to(value.dtype) @ value

    if scope.before is None and (scope.chunk or length) >= length > 2 * BLOCK:
        blocks = []
        for start in range(0, length, BLOCK):
            own, seen = slice(start, start + BLOCK), slice(0, min(start + BLOCK, length) if scope.causal else length)
            existing = None if valid is None else valid[:, None, seen]
            places = None if near is None else (near[:, own], near[:, seen])
            blocks.append(tile((q[:, own], k[:, seen], v[:, seen]), start, existing, places))
        return torch.cat(blocks, 1)
    tiles = scope.tiles(length)
    places = None if near is None else (tiles.queries(near), tiles.keys(near))
    qkv = tiles.queries(q), tiles.keys(k), tiles.keys(v)
    y = tile(qkv, tiles.back * tiles.block, tiles.existing(valid, q.device), places)
    return y.flatten(1, 2)[:, :length]


def by_distance(
    scope: Scope, queries: int, keys: int, first: int, device: torch.device, bias: Bias | None
) -> Tensor | None:
    """Return the numbers to add to scores ``(queries, keys)``: ``bias``, and -inf at keys out of scope; or None.

    The rank of the first query relative to the first key is ``first``. ``bias`` is evaluated once per distance.
    """
    distances = torch.arange(1 - queries - first, keys - first, device=device)
    visible = scope.sees(distances)
    if bias is None and visible is None:
        return None
    values = torch.zeros(len(distances), device=device) if bias is None else bias(distances)
    if visible is not None:
        values = values.masked_fill(~visible, -torch.inf)
    # row i begins at number queries - 1 - i; in copies of the numbers, one per row, these starts have equal distances
    copies = values.expand(queries, -1).flatten()
    return copies.as_strided((queries, keys), (len(values) - 1, 1), queries - 1)


@dataclass(frozen=True)
class Memory:
    """Streaming state: a first-in, first-out queue of keys and values; the newest key is in the last slot.

    Attributes:
        k: keys ``(batch, slots, e)``.
        v: values ``(batch, slots, f)``.
        position: original positions ``(batch, slots)``; None if they are not needed.
        count: number of keys that each row has stored so far, ``(batch,)``, or ``(1,)`` if all rows store every key.
        following: original position of the next input.
    """

    k: Tensor
    v: Tensor
    position: Tensor | None
    count: Tensor
    following: int = 0

    def push(self, k: Tensor, v: Tensor, active: Tensor | None) -> Memory:
        """Store one key and value in each row, or in each ``active`` row, and drop the oldest entry of that row."""

        def pushed(old: Tensor, entry: Tensor) -> Tensor:
            shifted = torch.cat([old[:, 1:], entry.to(old.dtype).unsqueeze(1)], 1)
            return shifted if active is None else torch.where(active.view(-1, *(1,) * (old.dim() - 1)), shifted, old)

        place = self.position
        place = None if place is None else pushed(place, place.new_full((len(k),), self.following))
        count = self.count + (1 if active is None else active)
        return Memory(pushed(self.k, k), pushed(self.v, v), place, count, self.following + 1)


class ScopedAttention(nn.Module):
    """Module with :func:`attend` and its streaming form.

    Args:
        widths: width of queries and keys, and width of values.
        length: maximum sequence length; also the size of the streaming memory if the scope does not limit it.
        scope: which keys a query sees.
        function: maps scores to weights.
        bias: module that maps distances to numbers that are added to the scores, or None.
        by_rank: the distances for the bias are differences of ranks, not of original positions.
    """

    by_row = False
    """Whether the rows of a batch may store different numbers of keys."""

    def __init__(
        self,
        widths: tuple[int, int],
        length: int,
        scope: Scope,
        function: AttentionFunction,
        bias: nn.Module | None,
        *,
        by_rank: bool = False,
    ) -> None:
        super().__init__()
        self.widths, self.length, self.scope = widths, length, scope
        self.function: AttentionFunction = function
        self.bias, self.by_rank = bias, by_rank

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Attend as :func:`attend` does; ``positions`` are original positions, ``(batch, n)``, None for 0 .. n-1."""
        places = None if self.by_rank else positions
        return attend(q, k, v, scope=self.scope, function=self.function, valid=valid, bias=self.bias, positions=places)

    def initial_state(self, batch: int, like: Tensor) -> Memory:
        """Return an empty memory for as many keys as a query can see, with the type and device of ``like``.

        Raises:
            UsageError: if the attention is not causal.
        """
        require_causal(self.scope.causal)
        slots = int(min(self.length, self.scope.most))
        k, v = (like.new_zeros(batch, slots, width) for width in self.widths)
        integers = torch.zeros(batch, slots, dtype=torch.int64, device=like.device)
        position = integers if self.bias is not None and not self.by_rank else None
        return Memory(k, v, position, integers.new_zeros(batch if self.by_row else 1))

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, memory: Memory, active: Tensor | None = None
    ) -> tuple[Tensor, Memory]:
        """Compute one position of a causal scope.

        Args:
            q: ``(batch, e)``.
            k: ``(batch, e)``.
            v: ``(batch, f)``.
            memory: keys so far; distances for the bias use their positions, or ranks if the memory has no positions.
            active: ``(batch,)`` bool, rows whose key is stored; outputs of other rows are meaningless. None for all.

        Returns:
            ``(batch, f)`` and the memory with the new keys.

        Raises:
            UsageError: beyond ``length`` positions, if the memory has lost a key that the query sees.
        """
        position, memory = memory.following, memory.push(k, v, active)
        slots = memory.k.shape[1]
        if position >= self.length and slots < min(self.scope.most, int(memory.count.max())):
            raise UsageError(f"the streaming form of attention was built for {slots} positions, found one more")
        rank = memory.count.unsqueeze(1) - 1
        ranks = rank + torch.arange(1 - memory.k.shape[1], 1, device=q.device)
        first = self.scope.first(rank)
        # a row without any key yet has rank -1
        divisor = self.scope.window or (rank - first + 1).clamp_min(1).to(q.dtype)
        scale: float | Tensor = math.sqrt(q.shape[-1]) if self.function == "softmax" else divisor
        scores = (memory.k @ q.unsqueeze(2)).squeeze(2) / scale
        if self.bias is not None:
            scores = scores + self.bias(ranks - rank if memory.position is None else memory.position - position)
        scores = scores.masked_fill((ranks < first) | (ranks < 0), -torch.inf)
        weights = attention_weights(scores, self.function, padded=active is not None)
        return (weights.unsqueeze(1) @ memory.v).squeeze(1), memory


class SharedAttention(ScopedAttention):
    """Attention on a shared representation z: queries z ⊙ γ_0 + β_0, keys z ⊙ γ_1 + β_1 (MEGA, section 3).

    Args, in addition to those of :class:`ScopedAttention`:
        widths: width of z, and width of the values.
        rotary: rotate queries and keys by their original positions; z must have an even width.
        truncated: truncate the normal draws of γ (standard deviation 0.02) at 0.04.
    """

    by_row = True

    def __init__(
        self,
        widths: tuple[int, int],
        length: int,
        scope: Scope,
        function: AttentionFunction,
        bias: nn.Module | None,
        *,
        by_rank: bool = False,
        rotary: bool = False,
        truncated: bool = True,
    ) -> None:
        super().__init__(widths, length, scope, function, bias, by_rank=by_rank)
        if rotary and widths[0] % 2:
            raise UsageError(f"rotary positions turn pairs of features: d_z must be even, found {widths[0]}")
        self.rotary = rotary
        self.gamma = nn.Parameter(normal_(torch.empty(2, widths[0]), WEIGHT_STD, truncated=truncated))
        self.beta = nn.Parameter(torch.zeros(2, widths[0]))

    def forward(  # type: ignore[override]
        self, z: Tensor, v: Tensor, valid: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Map z ``(batch, n, d_z)`` and values ``(batch, n, d_v)`` to attended values ``(batch, n, d_v)``."""
        return super().forward(*self._queries_and_keys(z, positions), v, valid, positions)

    def initial_state(self, batch: int) -> Memory:  # type: ignore[override]
        return super().initial_state(batch, self.gamma)

    def step(  # type: ignore[override]
        self, z: Tensor, v: Tensor, memory: Memory, active: Tensor | None = None
    ) -> tuple[Tensor, Memory]:
        """Map one position: z ``(batch, d_z)`` and value ``(batch, d_v)`` to ``(batch, d_v)`` and the new memory."""
        places = torch.full((len(z), 1), memory.following, device=z.device)
        q, k = (x[:, 0] for x in self._queries_and_keys(z.unsqueeze(1), places))
        return super().step(q, k, v, memory, active)

    def _queries_and_keys(self, z: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
        q, k = z * self.gamma[0] + self.beta[0], z * self.gamma[1] + self.beta[1]
        if not self.rotary:
            return q, k
        if positions is None:
            return rotate(q), rotate(k)
        both = torch.stack([q, k])
        turned = rotate(both.flatten(1, 2), positions.flatten()).view_as(both)
        return turned[0], turned[1]


def attention_span(positions: Tensor, counts: Tensor, scope: Scope) -> Tensor:
    """Compute the mean distance, in original positions, from each query to the other keys that it sees.

    Source: "Sparse Modular Activation for Efficient Sequence Modeling", section 5 (Figure 6), and its public code.
    Running sums make the computation linear in n.

    Args:
        positions: ``(batch, n)``, ascending original positions of the active tokens, at the front of each row.
        counts: ``(batch,)``, number of active tokens.
        scope: which keys a query sees.

    Returns:
        ``(batch, n)`` float64; 0 for a query that sees no other key, and in unused slots.
    """
    length = positions.shape[1]
    rank = torch.arange(length, device=positions.device)
    taken = rank < counts.unsqueeze(1)
    total = F.pad((positions * taken).cumsum(1), (1, 0))
    first = scope.first(rank).expand_as(positions)
    stop = torch.minimum(scope.stop(rank, length).expand_as(positions), counts.unsqueeze(1)).clamp_min(1)
    before, after = rank - first, (stop - rank - 1).clamp_min(0)
    here = rank.expand_as(positions)
    past = before * positions - (total.gather(1, here) - total.gather(1, first))
    future = total.gather(1, torch.maximum(stop, here + 1)) - total.gather(1, here + 1) - after * positions
    keys = (before + after).clamp_min(1)
    return (past + future) * taken / keys.double()


def warn_of_padding(name: str, length: int, chunk: int) -> None:
    """Warn if model ``name`` has several chunks and its last chunk is not full, because this chunk is padded."""
    if chunk < length and length % chunk:
        found = f"{name}: chunk {chunk} does not divide the length {length}"
        warnings.warn(f"{found}; the last chunk is padded by {-length % chunk}", stacklevel=2)
