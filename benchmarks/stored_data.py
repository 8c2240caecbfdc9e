"""Compare the cost of reading shuffled batches of a stored dataset, and of writing it, with the cost of drawing it.

    python benchmarks/stored_data.py
    python benchmarks/stored_data.py --samples 4000 --batch-size 64

For each task the script writes a Parquet dataset to a temporary folder. It prints CPU milliseconds per sample of this
process, on one thread unless OMP_NUM_THREADS is set: ``draw`` is the generator alone, ``write`` is drawing, encoding
and writing, ``read`` is reading shuffled batches (a new ``open_dataset``, one epoch, the cache empty at the start).
``MB`` is the size of the dataset, and the last columns are ``write / draw`` and ``read / draw``.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy is loaded

from lrtasks.data import epoch_order, generate, info, open_dataset
from lrtasks.generators import Task, make

TASKS: dict[str, Task] = {
    "shift 4096": make("shift", length=4096),
    "pathfinder 128": make("pathfinder", res=128),
    "pathfinder 256": make("pathfinder", res=256),
    "listops paper": make("listops", setting="paper"),
    "recall 1024": make("recall", length=1024),
}


def measure(task: Task, samples: int, batch_size: int) -> tuple[float, float, float, float]:
    """Return the milliseconds per sample of drawing, writing and reading, and the dataset's size in MB."""
    task.batch(range(2))  # compiles the code of compiled generators
    start = time.process_time()
    for first in range(0, samples, batch_size):
        task.batch(range(first, min(first + batch_size, samples)))
    drawn = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        generate(task, folder, samples=samples, split=(1, 0, 0), workers=1)
        written = time.process_time()
        dataset = open_dataset(folder)
        opened = time.process_time()
        order = epoch_order(samples, seed=0, epoch=0).tolist()
        for first in range(0, samples, batch_size):
            dataset.batch(order[first : first + batch_size])
        read = time.process_time()
        size = info(folder)["bytes"] / 1e6
    scale = 1e3 / samples
    return (drawn - start) * scale, (written - drawn) * scale, (read - opened) * scale, size


def main() -> None:
    """Print one line per task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--batch-size", type=int, default=16)
    options = parser.parse_args()
    print(f"{'task':16} {'draw ms':>8} {'write ms':>9} {'read ms':>8} {'MB':>7} {'write/draw':>11} {'read/draw':>10}")
    for name, task in TASKS.items():
        draw, write, read, size = measure(task, options.samples, options.batch_size)
        print(f"{name:16} {draw:8.2f} {write:9.2f} {read:8.2f} {size:7.1f} {write / draw:11.2f} {read / draw:10.3f}")


if __name__ == "__main__":
    main()
