"""Measure the cost of tables, comparisons and reports of many runs.

    python benchmarks/report.py results/fair --runs 50
    python benchmarks/report.py results/fair --runs 5000 --models 20

The script takes ``--runs`` of the runs below the folder, evenly spread. With ``--models`` it renames the runs to this
number of models with several learning rates and seeds, and repeats records if there are fewer than runs. It runs the
commands in new processes, one after the other, and prints the median wall and CPU time of a whole process, including
start and imports, and the size of the report. ``compare`` gets two folders that share no seed, so no pair matches.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def pick(folder: Path, runs: int, models: int, out: Path) -> int:
    """Copy ``runs`` of the records below ``folder`` to ``out``; return their number."""
    found = sorted(folder.rglob("record.json"))
    settings: dict[str, object] = {}
    count = runs if models else min(runs, len(found))
    for number in range(count):
        record = json.loads(found[number * len(found) // count].read_text(encoding="utf-8"))
        if models:
            step = number // models
            record["model"]["name"] = name = f"model-{number % models}"
            record["model"]["parameters"] = settings.setdefault(name, record["model"]["parameters"])
            tuning = ("weight_decay", "betas", "schedule", "warmup_steps", "clip", "eval_every")
            record["budget"].update({entry: settings.setdefault(entry, record["budget"][entry]) for entry in tuning})
            record["budget"]["lr"] = 1e-4 * (1 + step % 10)
            record["seed"] = step // 10
            record["cost"]["seconds"] += number
        place = out / ("even" if record["seed"] % 2 == 0 else "odd") / str(number)
        place.mkdir(parents=True)
        (place / "record.json").write_text(json.dumps(record), encoding="utf-8")
    return count


def cost(words: list[str]) -> tuple[float, float]:
    """Return the wall and CPU seconds of one process."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "lrtasks", *words], capture_output=True, check=False)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a results folder")
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--models", type=int, default=0, help="names of models; 0: the records as they are")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, page = Path(name) / "runs", Path(name) / "report.html"
        folder.mkdir()
        count = pick(arguments.folder, arguments.runs, arguments.models, folder)
        commands = {
            "table": ["table", str(folder), "--unequal-budgets"],
            "compare": ["compare", str(folder / "even"), str(folder / "odd")],
            "report": ["report", str(folder), "--unequal-budgets", "--out", str(page)],
        }
        print(f"{count} runs\n{'':10}{'wall':>10}{'CPU':>10}{'page':>12}")
        for command, words in commands.items():
            walls, cpus = zip(*(cost(words) for _ in range(arguments.repeats)), strict=True)
            size = f"{page.stat().st_size / 1e6:9.2f} MB" if command == "report" else ""
            print(f"{command:10}{statistics.median(walls):8.2f} s{statistics.median(cpus):8.2f} s{size}")


if __name__ == "__main__":
    main()
