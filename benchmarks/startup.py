"""What it costs to start: a command's help and an import, beside an interpreter that does nothing.

    python benchmarks/startup.py --repeats 9

Prints the median wall and CPU time of new processes, and the CPU time over that of ``python -c pass``.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time

CASES = {
    "python -c pass": ["-c", "pass"],
    "import lrtasks": ["-c", "import lrtasks"],
    "import lrtasks.generators": ["-c", "import lrtasks.generators"],
    "lrtasks --help": ["-m", "lrtasks", "--help"],
    "lrtasks list": ["-m", "lrtasks", "list"],
    "lrtasks eval --help": ["-m", "lrtasks", "eval", "--help"],
}


def cost(words: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of one process."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9, help="processes per case, one after the other in turn")
    repeats = parser.parse_args().repeats
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in CASES}
    for round_number in range(repeats + 1):
        for name, words in CASES.items():
            measured = cost(words)
            if round_number:  # the first round fills caches
                found[name].append(measured)
    medians = {name: [statistics.median(column) for column in zip(*runs, strict=True)] for name, runs in found.items()}
    plain = medians["python -c pass"][1]
    print(f"{'':28}{'wall':>8}{'CPU':>8}{'ratio':>8}")
    for name, (wall, cpu) in medians.items():
        print(f"{name:28}{wall:7.3f}s{cpu:7.3f}s{cpu / plain:8.1f}")


if __name__ == "__main__":
    main()
