"""Single-head softmax attention inside chunks of the sequence, parallel and streaming.

Source: "Mega: Moving Average Equipped Gated Attention", section 3.4, as the Focus paper uses it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from lrtasks.models.ops.relative_bias import RelativeBias
from lrtasks.models.ops.scoped_attention import Scope, attend
from lrtasks.models.ops.streaming import require_causal

CHUNKS = 32  # about so many chunks in a sequence: the Focus paper's C
SHORTEST = 32

Cache = tuple[Tensor, Tensor]
"""Keys ``(batch, M, d_k)`` and values ``(batch, M, d_v)`` of the present chunk; later slots mean nothing yet."""


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

    def initial_state(self, like: Tensor, batch: int) -> Cache:
        """Room for one chunk, in the type and on the device of ``like``.

        Raises:
            UsageError: if the attention is not causal.
        """
        require_causal(self.scope.causal)
        return like.new_zeros(batch, self.chunk, self.d_k), like.new_zeros(batch, self.chunk, self.d_v)

    def step(self, q: Tensor, k: Tensor, v: Tensor, cache: Cache, position: int) -> tuple[Tensor, Cache]:
        """One position: ``(batch, d_k)`` twice and ``(batch, d_v)`` to ``(batch, d_v)``."""
        keys, values = (part.clone() for part in cache)
        slot = position % self.chunk
        keys[:, slot], values[:, slot] = k, v
        scores = (keys[:, : slot + 1] @ q.unsqueeze(-1)).squeeze(-1) / math.sqrt(self.d_k)
        if self.bias is not None:
            scores = scores + self.bias(torch.arange(-slot, 1, device=q.device))
        attended = scores.softmax(-1).unsqueeze(1) @ values[:, : slot + 1]
        return attended.squeeze(1), (keys, values)


def default_chunk(length: int) -> int:
    """Shortest chunk of at least max(32, length / 32) positions that leaves the last one half full or better.

    >>> [default_chunk(length) for length in (32, 256, 258, 1026, 65538)]
    [32, 32, 33, 36, 2049]
    """
    chunk = max(SHORTEST, -(-length // CHUNKS))
    while length % chunk and 2 * (length % chunk) < chunk < length:
        chunk += 1
    return chunk
