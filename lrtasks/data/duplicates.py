"""No two samples of a stored set share a fingerprint.

The rule. Samples are settled one after another: train, val, test, and by index within each. A sample keeps its first
attempt whose fingerprint differs from those of all samples settled before it: attempt 0 if it can, else attempt 1, 2,
... of the same index. Later samples give way to earlier ones, replacements included; so a replacement can displace a
sample that comes after it, never one before. Which attempt an index ends with depends on (task, seed, counts) alone.

Drawing is parallel, settling is not: workers hand in the fingerprints of attempt 0, shard by shard and in any order,
and the main process settles the shards in order. A shard in which something was replaced is then written again. A task
without fingerprints has nothing to settle.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import cast

from lrtasks.errors import UsageError
from lrtasks.generators.base import Split, Task
from lrtasks.spec import Batch

MAX_ATTEMPTS = 1000
DIGEST_BYTES = 16


def fingerprints(task: Task, batch: Batch) -> list[bytes | None]:
    """Digest of each sample's fingerprint; ``None`` where the task has none."""
    return [_digest(task.fingerprint(batch, row)) for row in range(len(batch.x))]


class Settlement:
    """The samples settled so far.

    Args:
        task: the task.
        seed: seed of its streams.
    """

    def __init__(self, task: Task, seed: int) -> None:
        self._task, self._seed = task, seed
        self._taken: set[bytes] = set()

    def settle(self, split: str, first: int, digests: Sequence[bytes | None]) -> dict[int, int]:
        """Settle samples ``first``, ``first + 1``, ... of which ``digests`` are those of attempt 0.

        Returns:
            The attempt of each index that was replaced.

        Raises:
            UsageError: if an index has no new fingerprint in :data:`MAX_ATTEMPTS` attempts.
        """
        attempts = {}
        for index, original in enumerate(digests, first):
            digest, attempt = original, 0
            while digest is not None and digest in self._taken:
                attempt += 1
                if attempt > MAX_ATTEMPTS:
                    raise UsageError(
                        f"{self._task.name}: only {len(self._taken)} different samples were found: sample {index} of"
                        f" {split} repeats one of them in {MAX_ATTEMPTS} attempts; ask for fewer samples or longer ones"
                    )
                batch = self._task.batch([index], self._seed, cast(Split, split), attempt=attempt)
                digest = fingerprints(self._task, batch)[0]
            if digest is not None:
                self._taken.add(digest)
            if attempt:
                attempts[index] = attempt
        return attempts


def _digest(fingerprint: bytes | None) -> bytes | None:
    return None if fingerprint is None else hashlib.blake2b(fingerprint, digest_size=DIGEST_BYTES).digest()
