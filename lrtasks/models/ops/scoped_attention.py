"""Attention whose queries see all keys, a sliding window of them, or those of their own chunk, computed in tiles.

A tile is a block of queries with the stretch of keys that any of them sees, so that the scores of a sequence of n
positions take n (w + block) numbers with a window w, and n C with chunks of C; no n × n array exists. Positions count
in ranks here: 0, 1, ... along the (compressed) sequence.

Letters: ``n`` positions, ``e`` width of queries and keys, ``f`` width of values.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lrtasks.models.ops.attention_functions import MASKED, AttentionFunction, attention_weights

Bias = Callable[[Tensor], Tensor]
"""Maps integer distances (key minus query) of any shape to numbers of that shape."""

BLOCK = 128  # queries of a window's tile, about: fewer repeat keys more often, more score pairs that are then masked


@dataclass(frozen=True)
class Scope:
    """Which keys a query sees.

    Attributes:
        causal: none after the query.
        window: w: causal, the w keys before the query and itself; else w/2 keys on either side and itself.
        chunk: C: the keys of the query's own block of C ranks. At most one of the two is given.
    """

    causal: bool
    window: int | None = None
    chunk: int | None = None

    @property
    def before(self) -> int | None:
        """Ranks that a window reaches back; None without a window."""
        return self.window if self.window is None or self.causal else self.window // 2

    def first(self, rank: Tensor) -> Tensor:
        """Lowest rank that a query sees."""
        if self.chunk is not None:
            return rank // self.chunk * self.chunk
        return torch.zeros_like(rank) if self.before is None else (rank - self.before).clamp_min(0)

    def stop(self, rank: Tensor, length: int) -> Tensor:
        """One more than the highest rank that a query sees among ``length``."""
        if self.causal:
            return rank + 1
        if self.chunk is not None:
            return ((rank // self.chunk + 1) * self.chunk).clamp_max(length)
        return torch.full_like(rank, length) if self.before is None else (rank + self.before + 1).clamp_max(length)

    def divisor(self, length: int, valid: Tensor | None, device: torch.device) -> Tensor | int:
        """What scores are divided by unless they go through a softmax: the number of keys, at least 1.

        With a window that is w, near the ends too. Else, if causal, the query's rank in its chunk or sequence, from
        1; if not, the number of valid keys there.

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

    def tiles(self, length: int) -> Tiles:
        """How to cut ``length`` positions."""
        if self.before is None:
            return Tiles.cut(length, min(self.chunk or length, length), 0, 0)
        after = 0 if self.causal else self.before
        block = math.ceil(self.before / max(1, round(self.before / BLOCK)))
        if length <= block + self.before + after:
            return Tiles.cut(length, length, 0, 0)
        return Tiles.cut(length, block, math.ceil(self.before / block), math.ceil(after / block))

    def sees(self, difference: Tensor) -> Tensor | None:
        """Whether a key at rank query + ``difference`` is seen, within a tile; None if all are."""
        visible = difference <= 0 if self.causal else None
        if self.before is not None:
            near = difference.abs() <= self.before
            visible = near if visible is None else visible & near
        return visible


@dataclass(frozen=True)
class Tiles:
    """Blocks of ``block`` queries; each sees its own block of keys, ``back`` blocks before it and ``ahead`` after."""

    length: int
    count: int
    block: int
    back: int
    ahead: int

    @classmethod
    def cut(cls, length: int, block: int, back: int, ahead: int) -> Tiles:
        """Cover ``length`` positions."""
        return cls(length, -(-length // block), block, back, ahead)

    @property
    def span(self) -> int:
        """Keys of a tile."""
        return (self.back + 1 + self.ahead) * self.block

    def queries(self, x: Tensor) -> Tensor:
        """``(batch, length, ...)`` to ``(batch, count, block, ...)``, padded with zeros at the end."""
        return self._blocks(x, 0, 0)

    def keys(self, x: Tensor) -> Tensor:
        """``(batch, length, ...)`` to ``(batch, count, span, ...)``, padded with zeros at both ends."""
        blocks = self._blocks(x, self.back, self.ahead)
        if not self.back + self.ahead:
            return blocks
        return torch.cat([blocks[:, shift : shift + self.count] for shift in range(1 + self.back + self.ahead)], 2)

    def merge(self, tiles: Tensor) -> Tensor:
        """``(batch, count, block, f)`` to ``(batch, length, f)``."""
        return tiles.flatten(1, 2)[:, : self.length]

    def differences(self, device: torch.device) -> Tensor:
        """Rank of key minus rank of query, ``(block, span)``."""
        rank = torch.arange(self.span, dtype=torch.int32, device=device)
        return rank - self.back * self.block - rank[: self.block].unsqueeze(1)

    def toeplitz(self, bias: Bias, device: torch.device) -> Tensor:
        """``bias`` at :meth:`differences`, from one call for every difference that occurs."""
        lowest = 1 - self.block - self.back * self.block
        values = bias(torch.arange(lowest, lowest + self.block + self.span - 1, device=device))
        return values.unfold(0, self.span, 1).flip(0)

    def existing(self, valid: Tensor | None, device: torch.device) -> Tensor | None:
        """Keys that are not padding, ``(batch or 1, count, 1, span)``; None if all are keys."""
        if valid is None:
            if not self.back + self.ahead and self.count * self.block == self.length:
                return None
            valid = torch.ones(1, self.length, dtype=torch.bool, device=device)
        return self.keys(valid).unsqueeze(2)

    def _blocks(self, x: Tensor, back: int, ahead: int) -> Tensor:
        extra = self.count * self.block - self.length
        if back or ahead or extra:
            x = F.pad(x, (*(0, 0) * (x.dim() - 2), back * self.block, ahead * self.block + extra))
        return x.reshape(len(x), -1, self.block, *x.shape[2:])


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
    """``A v`` with ``A = function(scale q kᵀ + bias)`` over the keys in scope, 0 elsewhere.

    The scale is 1/sqrt(e) for a softmax, and otherwise one over :meth:`Scope.divisor`; the bias is not divided.

    Args:
        q: ``(batch, n, e)``.
        k: ``(batch, n, e)``.
        v: ``(batch, n, f)``.
        scope: which keys a query sees.
        function: from scores to weights, computed in float32 at least.
        valid: ``(batch, n)`` bool, False at keys that no query sees; None if all are seen.
        bias: added to the scores; looked up once per distance, or once per pair with ``positions``.
        positions: ``(batch, n)`` integers between which ``bias`` measures distances; None for the ranks.

    Returns:
        ``(batch, n, f)``; finite, of no meaning for a query without any key.
    """
    tiles = scope.tiles(q.shape[1])
    query, key, value = tiles.queries(q * _scale(q, scope, function, valid)), tiles.keys(k), tiles.keys(v)
    working = torch.promote_types(q.dtype, torch.float32)
    scores = (query @ key.transpose(-1, -2)).to(working)
    added = _added(tiles, scope, valid, bias, positions, q.device)
    if added is not None:
        scores = scores.add_(added)
    weights = attention_weights(scores, function)
    return tiles.merge(weights.to(v.dtype) @ value)


def _scale(q: Tensor, scope: Scope, function: AttentionFunction, valid: Tensor | None) -> Tensor | float:
    if function == "softmax":
        return 1 / math.sqrt(q.shape[-1])
    divisor = scope.divisor(q.shape[1], valid, q.device)
    return 1 / divisor.to(q.dtype) if isinstance(divisor, Tensor) else 1 / divisor


def _added(
    tiles: Tiles, scope: Scope, valid: Tensor | None, bias: Bias | None, positions: Tensor | None, device: torch.device
) -> Tensor | None:
    """Bias, and :data:`MASKED` at keys out of sight; ``(count, block, span)`` with leading axes 1 where it can."""
    seen, existing = scope.sees(tiles.differences(device)), tiles.existing(valid, device)
    visible = existing if seen is None else seen if existing is None else seen & existing
    if bias is None:
        added = None if visible is None else torch.zeros((), device=device)
    elif positions is None:
        added = tiles.toeplitz(bias, device)
    else:
        near = positions.to(torch.int32)
        added = bias(tiles.keys(near).unsqueeze(2) - tiles.queries(near).unsqueeze(3))
    if visible is None or added is None:
        return added
    return torch.where(visible, added, MASKED)


def warn_of_padding(name: str, length: int, chunk: int) -> None:
    """Say that the last chunk of model ``name`` is padded, if there are several and the last is not full."""
    if chunk < length and length % chunk:
        warnings.warn(
            f"{name}: chunk {chunk} does not divide the length {length}; the last chunk is padded by {-length % chunk}",
            stacklevel=2,
        )
