"""Single-head attention on a shared representation, the gated attention unit around it, and MEGA's feed-forward map.

Sources: "Transformer Quality in Linear Time", section 3 (gated attention unit); "Mega: Moving Average Equipped Gated
Attention", sections 3.2 and 3.3; "Sparse Modular Activation for Efficient Sequence Modeling", section 3.3.

    z     shared representation, width d_z; queries q = z ⊙ γ_0 + β_0, keys k = z ⊙ γ_1 + β_1
    v     values, width d_v
    g     gate of the attended values
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.errors import UsageError
from lrtasks.models.ops.attention_functions import MASKED, AttentionFunction, attention_weights
from lrtasks.models.ops.initialisation import WEIGHT_STD, linear, normal_
from lrtasks.models.ops.rotary import rotate
from lrtasks.models.ops.scoped_attention import Scope, attend
from lrtasks.models.ops.streaming import require_causal


@dataclasses.dataclass
class Memory:
    """First-in-first-out memory of the streaming form: the newest key is the last slot.

    Attributes:
        k: keys ``(batch, slots, d_z)``.
        v: values ``(batch, slots, d_v)``.
        position: original positions ``(batch, slots)``.
        count: keys that every row has stored so far, ``(batch,)``.
    """

    k: Tensor
    v: Tensor
    position: Tensor
    count: Tensor

    def push(self, k: Tensor, v: Tensor, position: int, active: Tensor | None) -> Memory:
        """Store one key and value per row, or only in the rows that are ``active``; the oldest slot falls out."""
        new = (k, v, torch.full_like(self.count, position))
        slots = []
        for old, entry in zip((self.k, self.v, self.position), new, strict=True):
            shifted = torch.cat([old[:, 1:], entry.to(old.dtype).unsqueeze(1)], 1)
            rows = None if active is None else active.view(-1, *(1,) * (old.dim() - 1))
            slots.append(shifted if rows is None else torch.where(rows, shifted, old))
        return Memory(slots[0], slots[1], slots[2], self.count + (1 if active is None else active))


class SharedAttention(nn.Module):
    """``(batch, n, d_z)`` and values ``(batch, n, d_v)`` to attended values ``(batch, n, d_v)``.

    Args:
        d_z: width of the shared representation.
        d_v: width of the values.
        length: longest sequence; slots of the streaming memory where nothing bounds them.
        scope: which keys a query sees.
        function: from scores to weights.
        bias: module that maps distances to numbers added to the scores, or None.
        by_rank: the bias measures distances in ranks of the (compressed) sequence, not in original positions.
        rotary: turn queries and keys by their original positions.
        truncated: cut the normal draws of γ (standard deviation 0.02) at 0.04.

    Raises:
        UsageError: for rotary positions with an odd d_z.
    """

    def __init__(
        self,
        d_z: int,
        d_v: int,
        length: int,
        scope: Scope,
        function: AttentionFunction,
        bias: nn.Module | None,
        *,
        by_rank: bool = False,
        rotary: bool = False,
        truncated: bool = True,
    ) -> None:
        super().__init__()
        if rotary and d_z % 2:
            raise UsageError(f"rotary positions turn pairs of features: d_z must be even, found {d_z}")
        self.d_v, self.length, self.scope = d_v, length, scope
        self.function: AttentionFunction = function
        self.bias, self.by_rank, self.rotary = bias, by_rank, rotary
        self.gamma = nn.Parameter(normal_(torch.empty(2, d_z), WEIGHT_STD, truncated=truncated))
        self.beta = nn.Parameter(torch.zeros(2, d_z))

    def forward(self, z: Tensor, v: Tensor, valid: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        """Attend.

        Args:
            z: ``(batch, n, d_z)``.
            v: ``(batch, n, d_v)``.
            valid: ``(batch, n)`` bool, False at keys that no query sees.
            positions: ``(batch, n)`` original positions; None for 0 .. n-1.
        """
        q, k = self._queries_and_keys(z, positions)
        return attend(
            q,
            k,
            v,
            scope=self.scope,
            function=self.function,
            valid=valid,
            bias=self.bias,
            positions=None if self.by_rank else positions,
        )

    def initial_state(self, batch: int) -> Memory:
        """Empty memory of as many slots as a query can see: w + 1, C, or the length.

        Raises:
            UsageError: if the attention is not causal.
        """
        require_causal(self.scope.causal)
        slots = min(self.length, self.scope.chunk or self.length)
        if self.scope.window is not None:
            slots = min(self.length, self.scope.window + 1)
        like = self.gamma
        integers = torch.zeros(batch, slots, dtype=torch.int64, device=like.device)
        return Memory(
            like.new_zeros(batch, slots, like.shape[1]),
            like.new_zeros(batch, slots, self.d_v),
            integers,
            integers.new_zeros(batch),
        )

    def step(
        self, z: Tensor, v: Tensor, memory: Memory, position: int, active: Tensor | None = None
    ) -> tuple[Tensor, Memory]:
        """One position: ``(batch, d_z)`` and ``(batch, d_v)`` to ``(batch, d_v)``.

        Args:
            z: shared representation.
            v: values.
            memory: keys so far.
            position: original position.
            active: ``(batch,)`` bool, rows whose key is stored; the output of the others means nothing.
        """
        q, k = self._queries_and_keys(z.unsqueeze(1), torch.full((len(z), 1), position, device=z.device))
        memory = memory.push(k[:, 0], v, position, active)
        slots = memory.k.shape[1]
        rank = memory.count - 1
        ranks = memory.count.unsqueeze(1) - slots + torch.arange(slots, device=z.device)
        first = self.scope.first(rank).unsqueeze(1)
        # a row without any key yet has rank -1
        divisor = self.scope.window or (rank.unsqueeze(1) - first + 1).clamp_min(1).to(q.dtype)
        scale = 1 / (math.sqrt(q.shape[-1]) if self.function == "softmax" else divisor)
        scores = (memory.k @ q.transpose(1, 2)).squeeze(-1) * scale
        if self.bias is not None:
            scores = scores + self.bias(ranks - rank.unsqueeze(1) if self.by_rank else memory.position - position)
        scores = scores.masked_fill((ranks < first) | (ranks < 0), MASKED)
        weights = attention_weights(scores, self.function)
        return (weights.unsqueeze(1) @ memory.v).squeeze(1), memory

    def _queries_and_keys(self, z: Tensor, positions: Tensor | None) -> tuple[Tensor, Tensor]:
        q, k = z * self.gamma[0] + self.beta[0], z * self.gamma[1] + self.beta[1]
        if not self.rotary:
            return q, k
        if positions is None:
            return rotate(q), rotate(k)
        both = torch.stack([q, k])
        turned = rotate(both.flatten(1, 2), positions.flatten()).view_as(both)
        return turned[0], turned[1]


class GatedAttentionUnit(nn.Module):
    """``(g ⊙ O) W_h + b_h`` with ``z, g, v = SiLU(h W + b)`` in this order and ``O`` the attended values.

    Args:
        d_model: width of input and output, ``(batch, n, d_model)``.
        attention: the attention on z and v.
    """

    def __init__(self, d_model: int, attention: SharedAttention) -> None:
        super().__init__()
        self.attention = attention
        self.widths = [attention.gamma.shape[1], attention.d_v, attention.d_v]
        self.mix = linear(d_model, sum(self.widths), truncated=True)
        self.out = linear(attention.d_v, d_model, truncated=True)

    def forward(self, h: Tensor, valid: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        """``valid`` and ``positions`` as :meth:`SharedAttention.forward` takes them."""
        z, g, v = torch.split(F.silu(self.mix(h)), self.widths, -1)
        y: Tensor = self.out(g * self.attention(z, v, valid, positions))
        return y

    def initial_state(self, batch: int) -> Memory:
        """The attention's memory; raises :class:`UsageError` if it is not causal."""
        return self.attention.initial_state(batch)

    def step(self, h: Tensor, state: Memory, position: int, active: Tensor | None = None) -> tuple[Tensor, Memory]:
        """One position ``(batch, d_model)``, as :meth:`SharedAttention.step` takes it."""
        z, g, v = torch.split(F.silu(self.mix(h)), self.widths, -1)
        attended, state = self.attention.step(z, v, state, position, active)
        y: Tensor = self.out(g * attended)
        return y, state


class SiLUFeedForward(nn.Module):
    """``W_2 dropout(SiLU(W_1 x + b_1)) + b_2`` at each position, the map of MEGA's feed-forward sub-layer.

    Args:
        d_model: width of input and output, ``(..., d_model)``.
        d_ffn: width in between.
        dropout: rate there.
        truncated: cut the normal draws of the weights (standard deviation 0.02) at 0.04.
    """

    def __init__(self, d_model: int, d_ffn: int, dropout: float = 0.0, *, truncated: bool = True) -> None:
        super().__init__()
        self.hidden = linear(d_model, d_ffn, truncated=truncated)
        self.out = linear(d_ffn, d_model, truncated=truncated)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, *_: Any) -> Tensor:
        """Extra arguments, of which a map of single positions makes no use, are those of attention."""
        y: Tensor = self.out(self.dropout(F.silu(self.hidden(x))))
        return y

    def initial_state(self, batch: int) -> None:
        """A map of single positions has no state."""

    def step(self, x: Tensor, state: None, *_: Any) -> tuple[Tensor, None]:
        """One position ``(batch, d_model)``."""
        return self(x), state
