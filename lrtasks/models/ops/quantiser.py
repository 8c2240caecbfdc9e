"""Vector quantiser whose codebook follows its keys by running averages.

Sources: "LongVQ", section 3 (codebook, η, commitment loss); "Transformer-VQ: Linear-Time Transformers via Vector
Quantization", section 3.4, for the averages; van den Oord et al., "Neural Discrete Representation Learning", appendix
A.1, where both come from.

    S, d_k   codes, width of a key
    z_j      code of key j, arg-min_s ‖k_j - c_s‖²
    n_s      keys of code s in this batch, over all processes
    N, M     running averages: N_s ← η N_s + (1 - η) n_s,   M_s ← η M_s + (1 - η) Σ_{j: z_j = s} k_j
    c_s      centre M_s / max(N_s, 0.01)
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lrtasks.models.ops.chunked import hide
from lrtasks.models.portraits import Portrait

FLOOR = 0.01  # least divisor of a centre; a code whose average count is below it is dead, its centre no mean any more
WORKING = 2**24  # distances held at once, in elements


@dataclass(frozen=True)
class Quantised:
    """Keys after quantisation.

    Attributes:
        codes: z, ``(batch, length)`` int64.
        keys: centres of the codes, ``(batch, length, d_k)``, whose gradient goes straight through to the keys.
        centres: the codebook that was used, ``(S, d_k)``, without gradient.
    """

    codes: Tensor
    keys: Tensor
    centres: Tensor


@dataclass(frozen=True)
class Usage:
    """What the last forward pass saw, over its unpadded keys: counts ``(S,)``, mean ‖k - c‖² and mean ‖k‖²."""

    counts: Tensor
    error: Tensor
    power: Tensor


class Codebook(nn.Module):
    """Quantiser of keys ``(batch, length, d_k)``.

    In training a batch is assigned with the centres as they are; only then it moves the averages. The first batch sets
    them instead: the centres become keys of it, drawn at random. So no output depends on a key that follows it or on
    another row of its batch. Counts and sums are those of all processes. Everything that changes is a buffer, float32
    under mixed precision too, so that a checkpoint restores it. No gradient reaches the centres.

    Args:
        size: codes S.
        width: d_k.
        commitment: weight γ of the commitment loss, the mean over unpadded keys of ‖k - c‖² (summed over features).
        decay: η.
        std: standard deviation of the normal draws that the centres are during the first batch.
    """

    count: Tensor
    total: Tensor
    updates: Tensor
    usage: Usage | None = None

    def __init__(self, size: int, width: int, *, commitment: float = 1e-4, decay: float = 0.99, std: float) -> None:
        super().__init__()
        self.size, self.commitment, self.decay = size, commitment, decay
        self.register_buffer("count", torch.ones(size))
        self.register_buffer("total", std * torch.randn(size, width))
        self.register_buffer("updates", torch.zeros((), dtype=torch.int64))
        self._commitment: Tensor | None = None

    def centres(self) -> Tensor:
        """c, ``(S, d_k)``: a new tensor, which later updates leave alone."""
        return self.total / self.count.clamp_min(FLOOR).unsqueeze(1)

    @torch.no_grad()
    def assign(self, keys: Tensor, centres: Tensor) -> Tensor:
        """Codes of keys ``(..., d_k)``, the lowest of equally near ones; ``(...)`` int64."""
        with torch.autocast(keys.device.type, enabled=False):
            flat = keys.detach().to(centres.dtype).flatten(0, -2)
            norms = centres.square().sum(1)
            parts = [
                torch.addmm(norms, part, centres.T, alpha=-2).argmin(1)
                for part in torch.split(flat, max(1, WORKING // self.size))
            ]
        return torch.cat(parts).view(keys.shape[:-1])

    def forward(self, keys: Tensor, mask: Tensor | None = None) -> Quantised:
        """Quantise, and in training move the averages.

        Args:
            keys: ``(batch, length, d_k)``.
            mask: ``(batch, length)`` bool, False at keys that count nowhere, or None.
        """
        keys = keys.to(torch.promote_types(keys.dtype, torch.float32))
        centres = self.centres()
        codes = self.assign(keys, centres)
        chosen = centres.index_select(0, codes.flatten()).view_as(keys).to(keys.dtype)
        seen = hide(keys.detach(), mask).flatten(0, 1).to(self.total.dtype)
        weight = torch.ones_like(seen[:, 0]) if mask is None else mask.flatten().to(seen.dtype)
        number = weight.sum().clamp_min(1)
        error = hide(keys - chosen, mask).square().sum() / number
        self._commitment = error
        counts = torch.zeros_like(self.count).index_add_(0, codes.flatten(), weight)
        self.usage = Usage(counts, error.detach(), seen.square().sum() / number)
        if self.training and not self.updates:
            self._start(seen if mask is None else seen[mask.flatten()])
        elif self.training:
            self._update(seen, codes.flatten(), counts)
        return Quantised(codes, chosen + (keys - keys.detach()), centres)

    def extra_losses(self) -> dict[str, Tensor]:
        """γ times the commitment loss of the last forward pass."""
        return {} if self._commitment is None else {"commitment": self.commitment * self._commitment}

    @torch.no_grad()
    def diagnostics(self) -> dict[str, float]:
        """Numbers of the last forward pass, and of the averages.

        ``codebook_usage``: share of the codes with a key; ``codebook_perplexity``: exp of the entropy of the codes;
        ``dead_codes``: codes whose average count is below 0.01; ``quantisation_error``: mean ‖k - c‖² over mean ‖k‖².
        """
        if self.usage is None:
            return {}
        counts = self.usage.counts.double()
        share = counts / counts.sum().clamp_min(1)
        return {
            "codebook_usage": float((counts > 0).double().mean()),
            "codebook_perplexity": float(torch.special.entr(share).sum().exp()),
            "dead_codes": float((self.count < FLOOR).sum()),
            "quantisation_error": float(self.usage.error / self.usage.power.clamp_min(torch.finfo(torch.float32).tiny)),
        }

    def portraits(self) -> list[Portrait]:
        """Share of the keys of the last forward pass per code, the most used first."""
        if self.usage is None:
            return []
        counts = self.usage.counts.double().sort(descending=True).values
        share = (counts / counts.sum().clamp_min(1)).cpu().numpy()
        every = max(1, self.size // 8)  # more labels would overlap
        labels = tuple("" if rank % every else str(rank) for rank in range(1, self.size + 1))
        return [Portrait("codebook usage", "bars", {"share of keys": share}, "code, by rank", "share", labels=labels)]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the last loss, whose graph cannot be copied."""
        return {**self.__dict__, "_commitment": None}

    @torch.no_grad()
    def _start(self, keys: Tensor) -> None:
        """Make keys ``(n, d_k)`` of the first process the centres; without enough keys the others stay normal draws."""
        if len(keys) < self.size:
            warnings.warn(
                f"a codebook of {self.size} codes is larger than the {len(keys)} keys of a batch:"
                " codes will stay empty",
                stacklevel=3,
            )
        drawn = torch.randperm(len(keys), device=keys.device)[: self.size]
        self.total[: len(drawn)] = keys[drawn]
        self.updates += 1
        if _several_processes():
            dist.broadcast(self.total, 0)

    @torch.no_grad()
    def _update(self, keys: Tensor, codes: Tensor, counts: Tensor) -> None:
        """Move the averages by one batch: keys ``(n, d_k)``, zeros at padding; codes ``(n,)``; counts ``(S,)``."""
        sums = torch.zeros_like(self.total).index_add_(0, codes, keys)
        batch = torch.cat([counts.unsqueeze(1), sums], 1)
        if _several_processes():
            dist.all_reduce(batch)
        self.count.lerp_(batch[:, 0], 1 - self.decay)
        self.total.lerp_(batch[:, 1:], 1 - self.decay)
        self.updates += 1


def _several_processes() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
