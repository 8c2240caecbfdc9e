"""How far attention reaches: a diagnostic that looks at which keys are seen, not at their weights."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lrtasks.models.ops.scoped_attention import Scope


def attention_span(positions: Tensor, counts: Tensor, scope: Scope) -> Tensor:
    """Mean distance in original positions from each query to the other keys that it sees.

    Source: "Sparse Modular Activation for Efficient Sequence Modeling", section 5.2, and its public code. Linear in n,
    by running sums.

    Args:
        positions: ``(batch, n)``, ascending original positions of the active tokens, at the front of each row.
        counts: ``(batch,)``, how many are active.
        scope: which keys a query sees.

    Returns:
        ``(batch, n)`` float64; 0 for a query that sees no other key, and in free slots.
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
