"""Measure the cost of making data: time of a batch and samples per second, for each task at a given length.

    python benchmarks/generators.py --length 4096
    python benchmarks/generators.py --length 65536 --tasks shift cumsum --batch-size 4

The time is the CPU time of this process (median over batches), on one thread unless OMP_NUM_THREADS is set. For
``mips`` the last column is the time of the plain search, which holds all L×L inner products at once, divided by the
time of the task's search.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import timeit
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy is loaded

import numpy as np

from lrtasks.generators import Task, make, names, registry
from lrtasks.generators.tasks.mips import Mips, nearest_so_far


def cpu_seconds(call: Callable[[], object], repeats: int) -> float:
    """Return the median CPU time of ``call()`` over ``repeats`` calls, after one call that is not counted."""
    call()
    return statistics.median(timeit.repeat(call, "gc.enable()", time.process_time, repeats, number=1))


def batch_seconds(task: Task, size: int, repeats: int) -> float:
    """Return the CPU time of making a batch of ``size`` samples."""
    return cpu_seconds(task.stream(size).__next__, repeats)


def task_of(name: str, length: int) -> Task:
    """Return the task at its preset ``paper``, with its parameter ``length``, if it has one, set to ``length``."""
    parameters = registry.get(name).preset_values("paper")[0]
    if "length" in registry.get(name).parameter_names():
        parameters = {**parameters, "length": length}
    return make(name, **parameters)


def plain_search_ratio(task: Mips, repeats: int) -> float:
    """Return the time of the search that holds all inner products, divided by the time of the task's search."""
    queries, keys = np.random.default_rng(0).standard_normal((2, task.length, task.dim)).astype(np.float32)
    future = np.triu(np.ones((task.length, task.length), bool), 1)

    def plain() -> np.ndarray:
        scores = queries.astype(np.float64) @ keys.T.astype(np.float64)
        scores[future] = -np.inf
        best: np.ndarray = scores.argmax(axis=1)
        return best

    return cpu_seconds(plain, repeats) / cpu_seconds(lambda: nearest_so_far(queries, keys), repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=4096, help="task length L (default %(default)s)")
    parser.add_argument("--batch-size", type=int, default=16, help="samples per batch (default %(default)s)")
    parser.add_argument("--repeats", type=int, default=10, help="batches timed (default %(default)s)")
    parser.add_argument("--tasks", nargs="+", choices=names(), default=names(), help="default: all", metavar="TASK")
    arguments = parser.parse_args()
    size = arguments.batch_size
    print(f"{'task':<16}{'positions':>10}{'ms/batch':>10}{'ms/sample':>11}{'samples/s':>11}{'plain/ours':>12}")
    for name in arguments.tasks:
        task = task_of(name, arguments.length)
        seconds = batch_seconds(task, size, arguments.repeats)
        plain = f"{plain_search_ratio(task, 3):>12.1f}" if isinstance(task, Mips) and task.length <= 8192 else ""
        rate = f"{1e3 * seconds:>10.2f}{1e3 * seconds / size:>11.3f}{size / seconds:>11.0f}"
        print(f"{name:<16}{task.input.length:>10}{rate}{plain}")


if __name__ == "__main__":
    main()
