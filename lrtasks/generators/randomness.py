"""Counter-based random numbers: one independent stream for each (task, parameters, version, seed, split, index).

Philox (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) has a 128-bit key and a 256-bit counter.
The key is a hash of all parts but the index. The two upper words of the counter hold index and attempt, so the streams
of different samples cannot overlap (each has 2^128 counter values). Different seeds or splits have different keys and
share nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lrtasks.errors import require_whole


def derive_key(**parts: Any) -> np.ndarray:
    """Hash JSON-ready ``parts`` to a Philox key of two uint64 words (BLAKE2b, 128 bits)."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


def generator(key: np.ndarray, index: int = 0, attempt: int = 0) -> np.random.Generator:
    """Return the generator of sample ``index`` under ``key``; ``attempt`` numbers its replacements in a stored set."""
    return np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, index, attempt], dtype=np.uint64)))


class Generators:
    """:func:`generator` of each of ``indices``, in the same order: one object is reset, which is faster than new ones.

    A generator is valid until the next one is requested.
    """

    def __init__(self, key: np.ndarray, indices: Sequence[int] | np.ndarray, attempt: int = 0) -> None:
        self._key, self._indices, self._attempt = key, indices, attempt

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[np.random.Generator]:
        bit_generator = np.random.Philox(key=self._key)
        shared = np.random.Generator(bit_generator)
        fresh: Any = bit_generator.state  # state before the first draw, with an empty buffer
        for index in self._indices:
            fresh["state"]["counter"] = np.array([0, 0, index, self._attempt], dtype=np.uint64)
            bit_generator.state = fresh
            yield shared


def epoch_order(samples: int, seed: int, epoch: int) -> np.ndarray:
    """Return the order of the samples of a finite set in epoch ``epoch``: a permutation of ``0..samples-1``, int64.

    >>> sorted(epoch_order(5, seed=0, epoch=1).tolist())
    [0, 1, 2, 3, 4]

    Raises:
        UsageError: if an argument is not a whole number in 0..2^63-1.
    """
    for name, value in (("samples", samples), ("seed", seed), ("epoch", epoch)):
        require_whole(name, value, 0, 2**63 - 1)
    key = derive_key(purpose="epoch order", seed=int(seed), samples=int(samples))
    return generator(key, epoch).permutation(int(samples))
