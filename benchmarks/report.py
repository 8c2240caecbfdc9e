"""What a report costs: time of ``lrtasks report`` and size of its page.

    python benchmarks/report.py results/small --runs 50

Takes that many of the runs below the folder, evenly spread over them, and writes their report in new processes, one
after the other. Prints the median wall and CPU time of a whole process, start and imports included, and the size of
the page.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def pick(folder: Path, runs: int, out: Path) -> int:
    """Copy ``runs`` of the records below ``folder`` to ``out``, or all if there are fewer; their number."""
    found = sorted(folder.rglob("record.json"))
    count = min(runs, len(found))
    for number in range(count):
        run = out / str(number)
        run.mkdir()
        shutil.copy(found[number * len(found) // count], run)
    return count


def cost(words: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of one process."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "lrtasks", *words], stdout=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a results folder")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, page = Path(name) / "runs", Path(name) / "report.html"
        folder.mkdir()
        count = pick(arguments.folder, arguments.runs, folder)
        words = ["report", str(folder), "--out", str(page)]
        cost(words)
        walls, cpus = zip(*(cost(words) for _ in range(arguments.repeats)), strict=True)
        print(f"{'runs':>6}{'wall':>10}{'CPU':>10}{'page':>12}")
        wall, cpu, size = statistics.median(walls), statistics.median(cpus), page.stat().st_size / 1e6
        print(f"{count:6}{wall:8.2f} s{cpu:8.2f} s{size:9.2f} MB")


if __name__ == "__main__":
    main()
