"""Compare the CPU time per sample of listops, recall and mqar with the published methods of drawing samples.

    python benchmarks/listops_recall.py

All times are CPU times of this process for batches of 16, including labels. The alternatives are plain Python or NumPy,
written here from the published descriptions: ListOps grows trees and rejects each until a length fits; recall uses a
dictionary and draws one token after another; MQAR permutes all keys and all values and draws slots with
``choice(p=...)``.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterator

import numpy as np

import lrtasks
from lrtasks.generators.listops import Limits

BATCH = 16
SECONDS = 3.0


def milliseconds(draw: Callable[[], object], samples: int) -> float:
    """Return the CPU milliseconds per sample of ``draw``, which makes ``samples`` samples per call."""
    draw()
    calls, start = 0, time.process_time()
    while time.process_time() - start < SECONDS:
        draw()
        calls += 1
    return 1e3 * (time.process_time() - start) / (calls * samples)


def listops_by_rejection(limits: Limits, rng: random.Random) -> list[str]:
    def grow(depth: int) -> list[str]:
        if depth >= limits.max_depth or rng.random() > 0.25:
            return [rng.choice("0123456789")]
        arguments = [token for _ in range(rng.randint(2, limits.max_args)) for token in grow(depth + 1)]
        return [rng.choice(("[MIN", "[MAX", "[MED", "[SM")), *arguments, "]"]

    while True:
        tokens = grow(1)
        if limits.min_length < len(tokens) < limits.max_length:
            return tokens


def recall_by_loop(length: int, keys: int, rng: np.random.Generator) -> list[int]:
    table = {key: rng.integers(keys, 2 * keys) for key in range(keys)}
    tokens = []
    for _ in range(length // 2):
        key = int(rng.integers(keys))
        tokens += [key, table[key]]
    return [*tokens, 2 * keys, int(rng.choice(tokens[::2]))]


def mqar_by_permutation(length: int, pairs: int, vocab: int, rng: np.random.Generator) -> np.ndarray:
    keys = rng.choice(np.arange(1, vocab // 2), pairs, replace=False)
    values = rng.choice(np.arange(vocab // 2, vocab), pairs, replace=False)
    slots = (length - 2 * pairs) // 2
    weights = np.arange(1, slots + 1) ** (0.01 - 1)
    drawn = rng.choice(slots, pairs, replace=False, p=weights / weights.sum())
    tokens = rng.integers(vocab, size=length)
    tokens[0 : 2 * pairs : 2], tokens[1 : 2 * pairs : 2] = keys, values
    tokens[2 * pairs + 2 * drawn] = keys
    return tokens


def rows() -> Iterator[tuple[str, str, float, float]]:
    """Yield task, setting, milliseconds of the package and milliseconds of the alternative."""
    for setting in ("small", "lra-like", "paper"):
        task, rng = lrtasks.make("listops", setting=setting), random.Random(0)
        limits = task.limits
        stream = task.stream(BATCH)
        ours = milliseconds(lambda stream=stream: next(stream), BATCH)
        yield (
            "listops",
            setting,
            ours,
            milliseconds(lambda limits=limits, rng=rng: listops_by_rejection(limits, rng), 1),
        )
    generator = np.random.Generator(np.random.Philox(0))
    for length in (64, 1024, 8192, 65_536):
        stream = lrtasks.make("recall", length=length).stream(BATCH)
        ours = milliseconds(lambda stream=stream: next(stream), BATCH)
        yield (
            "recall",
            f"length {length}",
            ours,
            milliseconds(lambda length=length: recall_by_loop(length, 14, generator), 1),
        )
    for length, pairs in ((64, 4), (256, 64), (512, 64), (1024, 256), (8192, 4), (8192, 512)):
        stream = lrtasks.make("mqar", length=length, pairs=pairs).stream(BATCH)
        ours = milliseconds(lambda stream=stream: next(stream), BATCH)
        shape = (length, pairs, 8192)
        plain = milliseconds(lambda shape=shape: mqar_by_permutation(*shape, generator), 1)
        yield "mqar", f"length {length}, {pairs} pairs", ours, plain


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"{'task':8} {'setting':24} {'ms a sample':>12} {'alternative':>12} {'ratio':>7}")
    for task, setting, ours, alternative in rows():
        print(f"{task:8} {setting:24} {ours:12.3f} {alternative:12.3f} {alternative / ours:7.1f}", flush=True)


if __name__ == "__main__":
    main()
