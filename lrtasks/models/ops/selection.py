"""Compression of sequences to their active positions, and back.

Source: "Sparse Modular Activation for Efficient Sequence Modeling", section 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Selection:
    """Where the active positions of a batch go: row b keeps its ``counts[b]`` active ones, in order, at the front.

    Attributes:
        shape: ``(batch, length)`` of what is compressed.
        width: slots per row, the largest count and at least 1.
        counts: active positions of each row, ``(batch,)``.
        source: flat index of every active position in ``(batch, length)``, ascending.
        target: flat index of its slot in ``(batch, width)``.
    """

    shape: tuple[int, int]
    width: int
    counts: Tensor
    source: Tensor
    target: Tensor

    @classmethod
    def of(cls, active: Tensor) -> Selection:
        """From ``active``, ``(batch, length)`` bool."""
        batch, length = active.shape
        counts = active.sum(1)
        rows, columns = active.nonzero(as_tuple=True)
        width = max(1, int(counts.max()))
        rank = active.cumsum(1)[rows, columns] - 1
        return cls((batch, length), width, counts, rows * length + columns, rows * width + rank)

    @property
    def valid(self) -> Tensor:
        """``(batch, width)`` bool: which slots are taken."""
        return torch.arange(self.width, device=self.counts.device) < self.counts.unsqueeze(1)

    @property
    def positions(self) -> Tensor:
        """``(batch, width)``: original position of each slot, 0 in free ones."""
        position = self.source.new_zeros(self.shape[0] * self.width)
        return position.index_copy(0, self.target, self.source % self.shape[1]).view(-1, self.width)

    def compress(self, x: Tensor) -> Tensor:
        """``(batch, length, d)`` to ``(batch, width, d)``, zeros in free slots: one scatter of the active rows."""
        rows = x.flatten(0, 1).index_select(0, self.source)
        slots = rows.new_zeros(self.shape[0] * self.width, x.shape[-1]).index_copy(0, self.target, rows)
        return slots.view(-1, self.width, x.shape[-1])

    def extract(self, y: Tensor) -> Tensor:
        """``(batch, width, d)`` back to ``(batch, length, d)``, zeros at inactive positions: one gather of the same."""
        rows = y.flatten(0, 1).index_select(0, self.target)
        places = rows.new_zeros(self.shape[0] * self.shape[1], y.shape[-1]).index_copy(0, self.source, rows)
        return places.view(*self.shape, y.shape[-1])
