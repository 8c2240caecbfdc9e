"""Counter-based random numbers: one independent stream for each (task, parameters, version, seed, split, index).

Philox (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) has a 128-bit key and a 256-bit counter.
The key is a hash of everything but the index; the two upper words of the counter hold index and attempt, so streams of
different samples cannot overlap (each has 2^128 counter values), and neighbouring seeds or other splits share nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lrtasks.errors import UsageError


def derive_key(**parts: Any) -> np.ndarray:
    """Hash JSON-ready ``parts`` to a Philox key, two uint64 words (BLAKE2b, 128 bits)."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


def generator(key: np.ndarray, index: int = 0, attempt: int = 0) -> np.random.Generator:
    """The generator of sample ``index`` (and, for stored sets, of its ``attempt``) under ``key``."""
    return np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, index, attempt], dtype=np.uint64)))


def generators(key: np.ndarray, indices: Sequence[int] | np.ndarray, attempt: int = 0) -> Generators:
    """:func:`generator` for each of ``indices``, in their order."""
    return Generators(key, indices, attempt)


class Generators:
    """Generators that are made one after another by setting one object anew, which costs less than making each.

    Each generator is valid until the next one is asked for.
    """

    def __init__(self, key: np.ndarray, indices: Sequence[int] | np.ndarray, attempt: int) -> None:
        self._key, self._indices, self._attempt = key, indices, attempt

    def __len__(self) -> int:
        return len(self._indices)

    def __iter__(self) -> Iterator[np.random.Generator]:
        bit_generator = np.random.Philox(key=self._key)
        shared = np.random.Generator(bit_generator)
        fresh: Any = bit_generator.state  # nothing drawn yet, nothing buffered
        for index in self._indices:
            fresh["state"]["counter"] = np.array([0, 0, index, self._attempt], dtype=np.uint64)
            bit_generator.state = fresh
            yield shared


def epoch_order(samples: int, seed: int, epoch: int) -> np.ndarray:
    """The order in which epoch number ``epoch`` visits a finite set: a permutation of ``0..samples-1``, int64.

    >>> sorted(epoch_order(5, seed=0, epoch=1).tolist())
    [0, 1, 2, 3, 4]

    Raises:
        UsageError: if an argument is not a whole number in 0..2^63-1.
    """
    for name, value in (("samples", samples), ("seed", seed), ("epoch", epoch)):
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not whole or not 0 <= value < 2**63:
            raise UsageError(f"{name} must be a whole number in 0..2^63-1, found {value!r}")
    key = derive_key(purpose="epoch order", seed=int(seed), samples=int(samples))
    return generator(key, epoch).permutation(samples)
