"""Measure time and memory of one layer at 16,384 to 65,536 positions; both should be linear in the length.

    python benchmarks/long_lengths.py [--lengths 16384,32768,65536] [--d-model 64] [--batch 1] [--repeats 3]
        [--default-allocator]

The layers are SeqBoat with a window of 256 active tokens, LongVQ with 512 codes and a window of 128, local attention in
chunks of 1,024, and Focus in chunks of 512 (its default chunk grows with the length). Each layer is causal, runs in one
thread, and lies between an embedding and a class per sequence. A training step is forward, loss, backward and AdamW.
Each measurement runs in its own process: the shortest CPU time of the repeats, and peak memory minus the memory before
the layer was built. At 65,536 positions, one float32 array of length × length alone would take 17.2 GB.

By default glibc returns blocks above 32 MB to the system when they are freed, and requests new pages at the next use.
This adds to the time at lengths where a layer's arrays exceed this size. Here glibc keeps the blocks, unless
``--default-allocator`` is given.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from lrtasks.bench import PHASES
from lrtasks.bench.measure import Case, Settings, cost, run_in_process
from lrtasks.bench.report import growth

HYPER: dict[str, dict[str, Any]] = {
    # a fixed table of biases, so that all lengths start from equal weights and equal shares of active tokens
    "seqboat": {"window": 256, "max_positions": 1024},
    "longvq": {"codebook": 512, "window": 128},
    "local-attention": {"chunk": 1024},
    "focus": {"chunk": 512},
}
KEEP_FREED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
TIME_LIMIT = 600.0


COSTS = tuple(f"{phase}_{unit}" for phase in PHASES for unit in ("seconds", "bytes"))


def measure(settings: Settings, model: str, length: int) -> dict[str, Any]:
    """Measure both phases of one layer at one length."""
    row: dict[str, Any] = {"length": length}
    for phase in PHASES:
        found = run_in_process(cost, Case(model, length, settings, hyper=HYPER), phase, False, time_limit=TIME_LIMIT)
        if "reason" in found:
            raise SystemExit(f"{model} at {length}, {phase}: {found['reason']}")
        row[f"{phase}_seconds"] = min(found["cpu_seconds"])
        row[f"{phase}_bytes"] = found["peak_bytes"]
        for report in found.get("diagnostics", {}).values():
            if "activation_rate" in report:
                row["active"] = report["activation_rate"]
    return row


def print_row(model: str, row: dict[str, Any]) -> None:
    cells = [f"{1e3 * row[name]:9.0f} ms" if "seconds" in name else f"{row[name] / 1e6:9.0f} MB" for name in COSTS]
    active = f"  {row['active']:.2f} of the positions active" if "active" in row else ""
    print(f"{model:<16}{row['length']:>7}  {'  '.join(cells)}{active}", flush=True)


def print_exponents(rows: list[dict[str, Any]]) -> None:
    """Print the power of the length with which each cost grows: over all lengths, and between the last two."""
    cells = []
    for name in COSTS:
        found = growth([(row["length"], row[name]) for row in rows])
        cells.append(f"{found['slope']:.2f}, {found['last']:.2f}" if found else "")
    print(f"{'  power':<23}  {'  '.join(f'{cell:>12}' for cell in cells)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="16384,32768,65536", help="separated by commas")
    parser.add_argument("--d-model", type=int, default=64)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--default-allocator", action="store_true", help="let glibc give freed memory back")
    arguments = parser.parse_args()
    if not arguments.default_allocator:
        os.environ.update(KEEP_FREED)  # processes started from here on read it
    settings = Settings(d_model=arguments.d_model, layers=1, batch=arguments.batch, repeats=arguments.repeats)
    print(f"{'':<16}{'length':>7}  {'training':>12}  {'':>12}  {'inference':>12}")
    for model in HYPER:
        rows = []
        for length in (int(text) for text in arguments.lengths.split(",")):
            rows.append(measure(settings, model, length))
            print_row(model, rows[-1])
        print_exponents(rows)


if __name__ == "__main__":
    main()
