"""Compare the time of making a sample of about 128 tokens with the time of its random draws alone.

    python benchmarks/modern_tasks.py                                 # all tasks with tokens, each at about 128
    python benchmarks/modern_tasks.py chomsky stack
    python benchmarks/modern_tasks.py chomsky@reverse-string copying@lookup

Times are CPU milliseconds per sample in batches of 64 on one core (median). The script records the draws that the task
makes for its samples, and repeats only these draws from the same generators. TASK@PRESET uses the parameters of a
preset.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import timeit
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy is loaded

import numpy as np

from lrtasks.generators import Task, make, names, registry
from lrtasks.generators import randomness as random
from lrtasks.generators.languages import LANGUAGES

BATCH = 64
LANGUAGE_LENGTHS = {
    "duplicate-string": 43,
    "compute-sqrt": 85,
    **dict.fromkeys(("binary-addition", "stack-manipulation"), 63),
}
HALVES = ("reverse-string", "odds-first", "binary-multiplication", "bucket-sort")
AT_128: dict[str, dict[str, dict[str, Any]]] = {
    "word-problem": {group: {"group": group, "length": 128} for group in ("Z2", "S3", "A5", "A4xZ5")},
    "flip-flop": {"": {"instructions": 64}},
    "chomsky": {
        name: {"language": name, "lengths": (length, length), "labels": "every"}
        for name in LANGUAGES
        for length in [LANGUAGE_LENGTHS.get(name, 64 if name in HALVES else 127)]
    },
    "dyck": {"": {"length": 128, "stay": 0.7}, "whole": {"depth": 5, "whole": (100, 127)}},
    "stack": {"": {"stacks": 4, "values": 16, "operations": 42, "stay": 0.8}},
    "copying": {
        "copy": {"string": (63, 63)},
        "reverse": {"mode": "reverse", "string": (63, 63), "feed": "blank"},
        "jelassi": {"mode": "suffix-lookup", "string": (118, 118)},
        "lookup": {"mode": "suffix-lookup", "string": (118, 118), "ngram": 2, "law": "clean"},
    },
    "selective-copying": {
        "spread": {"noise": 112, "memorise": 8},
        "delay": {"noise": 112, "memorise": 8, "spread": False},
        "mad": {"noise": 112, "memorise": 8, "law": "mad"},
    },
    "induction-heads": {"": {"length": 127}},
}
"""Settings of about 128 tokens; other tasks run at their preset ``small``."""


class Recorder:
    """A random generator that records its draws.

    Args:
        rng: generator that makes the draws.
        calls: list to which method, arguments and keywords of each draw are appended.
    """

    def __init__(self, rng: np.random.Generator, calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]]) -> None:
        self._rng = rng
        self._calls = calls

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._rng, name)

        def draw(*args: Any, **keywords: Any) -> Any:
            self._calls.append((name, args, keywords))
            return method(*args, **keywords)

        return draw


def draws_of(task: Task) -> list[list[tuple[str, tuple[Any, ...], dict[str, Any]]]]:
    """Return the draws of each sample of one batch."""
    made: list[list[tuple[str, tuple[Any, ...], dict[str, Any]]]] = []

    def recording() -> Iterator[Any]:
        for rng in random.Generators(task.key(0, "train"), range(BATCH)):
            made.append([])
            yield Recorder(rng, made[-1])

    task.samples(recording())
    return made


def milliseconds(call: Callable[[], object], repeats: int) -> float:
    """Return the median CPU milliseconds per sample of ``call()``, after one call that is not counted."""
    call()
    return 1e3 * statistics.median(timeit.repeat(call, "gc.enable()", time.process_time, repeats, number=1)) / BATCH


def measured(task: Task, repeats: int) -> tuple[float, float]:
    """Return the milliseconds per sample of the task, and of its draws alone."""
    recorded = draws_of(task)

    def draw() -> None:
        for rng, calls in zip(random.Generators(task.key(0, "train"), range(BATCH)), recorded, strict=True):
            for name, args, keywords in calls:
                getattr(rng, name)(*args, **keywords)

    return milliseconds(task.stream(BATCH).__next__, repeats), milliseconds(draw, repeats)


def settings(chosen: list[str]) -> Iterator[tuple[str, Task]]:
    """Yield titles and tasks."""
    for choice in chosen or names():
        name, _, preset = choice.partition("@")
        at_128 = {} if preset else AT_128.get(name, {})
        for title, parameters in at_128.items():
            yield f"{name} {title}".strip(), make(name, **parameters)
        if not at_128:
            task = make(name, **registry.get(name).preset_values(preset or "small")[0])
            if chosen or task.input.kind == "token":
                yield choice, task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK[@PRESET]", help="default: all tasks that read tokens")
    parser.add_argument("--repeats", type=int, default=20, help="batches timed (default %(default)s)")
    arguments = parser.parse_args()
    print(f"{'task':<40}{'positions':>10}{'ms/sample':>11}{'draws':>9}{'ratio':>7}")
    for title, task in settings(arguments.tasks):
        whole, draws = measured(task, arguments.repeats)
        print(f"{title:<40}{task.input.length:>10}{whole:>11.3f}{draws:>9.3f}{whole / draws:>7.1f}", flush=True)


if __name__ == "__main__":
    main()
