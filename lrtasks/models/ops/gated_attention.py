"""Single-head attention modules: inside chunks (Focus), on a shared representation (MEGA), in a gated unit (SeqBoat).

Sources: "Transformer Quality in Linear Time", section 3 (gated attention unit); "Mega: Moving Average Equipped Gated
Attention", sections 3.2 to 3.4; "Sparse Modular Activation for Efficient Sequence Modeling", section 3.3.

    z     shared representation, width d_z; queries q = z ⊙ γ_0 + β_0, keys k = z ⊙ γ_1 + β_1
    v     values, width d_v
    g     gate of the attended values
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.errors import UsageError
from lrtasks.models.ops.layers import WEIGHT_STD, linear, normal_, require_causal
from lrtasks.models.ops.positions import RelativeBias, rotate
from lrtasks.models.ops.scoped_attention import AttentionFunction, Memory, Scope, attend, attend_step

CHUNKS = 32
"""About how many chunks a sequence has by default: the Focus paper's C."""
SHORTEST = 32
"""The shortest default chunk, in positions."""


class ChunkAttention(nn.Module):
    """``softmax(q kᵀ / sqrt(d_k) + bias) v`` over the keys of the query's own chunk of M positions.

    Args:
        d_k: width of queries and keys.
        d_v: width of values.
        chunk: M; the last chunk is padded.
        causal: no keys after the query.
        bias: learn a bias for each distance inside a chunk.
    """

    def __init__(self, d_k: int, d_v: int, chunk: int, *, causal: bool, bias: bool) -> None:
        super().__init__()
        self.d_k, self.d_v, self.chunk = d_k, d_v, chunk
        self.scope = Scope(causal, chunk=chunk)
        self.bias = RelativeBias(chunk, truncated=False) if bias else None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        """``(batch, length, d_k)`` twice and ``(batch, length, d_v)`` to ``(batch, length, d_v)``.

        ``mask`` is ``(batch, length)`` bool, False at keys that no query sees, or ``None``.
        """
        return attend(q, k, v, scope=self.scope, function="softmax", valid=mask, bias=self.bias)

    def initial_state(self, like: Tensor, batch: int) -> Memory:
        """Room for one chunk, in the type and on the device of ``like``; raises :class:`UsageError` if not causal."""
        require_causal(self.scope.causal)
        return Memory.empty(batch, self.chunk, (self.d_k, self.d_v), like, positions=False, by_row=False)

    def step(self, q: Tensor, k: Tensor, v: Tensor, memory: Memory, position: int) -> tuple[Tensor, Memory]:
        """One position: ``(batch, d_k)`` twice and ``(batch, d_v)`` to ``(batch, d_v)``."""
        return attend_step(q, k, v, memory, position, scope=self.scope, function="softmax", bias=self.bias)


def default_chunk(length: int) -> int:
    """Shortest chunk of at least max(32, length / 32) positions that leaves the last one half full or better.

    >>> [default_chunk(length) for length in (32, 256, 258, 1026, 65538)]
    [32, 32, 33, 36, 2049]
    """
    chunk = max(SHORTEST, -(-length // CHUNKS))
    while length % chunk and 2 * (length % chunk) < chunk < length:
        chunk += 1
    return chunk


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
        """Empty memory of as many slots as a query can see; raises :class:`UsageError` if not causal."""
        require_causal(self.scope.causal)
        widths, slots = (self.gamma.shape[1], self.d_v), self.scope.slots(self.length)
        positions = self.bias is not None and not self.by_rank
        return Memory.empty(batch, slots, widths, self.gamma, positions=positions, by_row=True)

    def step(
        self, z: Tensor, v: Tensor, memory: Memory, position: int, active: Tensor | None = None
    ) -> tuple[Tensor, Memory]:
        """One position: ``(batch, d_z)`` and ``(batch, d_v)`` to ``(batch, d_v)``.

        ``position`` is the original position, and ``active`` says in which rows the key is stored, as in
        :func:`~lrtasks.models.ops.scoped_attention.attend_step`.
        """
        q, k = (
            x[:, 0] for x in self._queries_and_keys(z.unsqueeze(1), torch.full((len(z), 1), position, device=z.device))
        )
        return attend_step(q, k, v, memory, position, active, scope=self.scope, function=self.function, bias=self.bias)

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
