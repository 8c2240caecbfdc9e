"""Measure the cost of starting (a command's help, an import, a run), and of a run beside another run.

    python benchmarks/startup.py --repeats 9
    python benchmarks/startup.py --suite 6      # a tiny run by itself, and as one of a suite
    python benchmarks/startup.py --beside 300   # a run of 300 steps alone, and two at a time
    python benchmarks/startup.py --allocator 60 # runs of 60 steps with freed memory kept, and given back

Without an option, the script prints the median wall and CPU time of new processes, and the CPU time divided by that of
``python -c pass``. ``--suite`` prints a run's CPU time, the wall time that one more run adds, and the largest private
memory of a run (Linux). ``--beside`` prints the time of a run alone, and of the first of two runs that start together,
for several settings of threads (medians of three). ``--allocator`` prints CPU time and page faults of runs that
keep freed memory (the default), divided by those of runs with glibc's settings.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

CASES = {
    "python -c pass": ["-c", "pass"],
    "import lrtasks": ["-c", "import lrtasks"],
    "import lrtasks.generators": ["-c", "import lrtasks.generators"],
    "lrtasks --help": ["-m", "lrtasks", "--help"],
    "lrtasks list": ["-m", "lrtasks", "list"],
    "lrtasks eval --help": ["-m", "lrtasks", "eval", "--help"],
}
THREADS = {
    "the defaults": {},
    "two threads that wait passively": {"OMP_NUM_THREADS": "2"},
    "two threads, GOMP_SPINCOUNT=10000": {"OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "10000"},
}
"""Settings of threads that ``--beside`` compares."""
TINY = {"length": 16, "d_model": 8, "batch_size": 4, "steps": 1, "eval_every": 1, "val_batches": 1, "test_batches": 1}
RUN = ["eval", "--model", "dlr", "--task", "shift", "--test-batches", "2", "--device", "cpu"]


def cost(words: list[str]) -> tuple[float, float]:
    """Return the wall and CPU seconds of one process and of the processes that it waits for."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def print_commands(repeats: int) -> None:
    """Print the times of commands and imports."""
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


class Runs(threading.Thread):
    """CPU seconds and largest private memory of the processes four generations below this one: the runs of a suite.

    The thread reads both every 20 ms, since no process waits for the runs and could measure their time.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.kibibytes = 0
        self.seconds: dict[int, float] = {}
        self.start()

    def run(self) -> None:
        while True:
            generation = [os.getpid()]
            for _ in range(4):
                generation = [child for process in generation for child in children(process)]
            for process in generation:
                with suppress(OSError):
                    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
                    own = sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
                    self.kibibytes = max(self.kibibytes, own)
                    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
                    self.seconds[process] = (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
            time.sleep(0.02)


def children(process: int) -> list[int]:
    """Return the ids of the processes that a process has started."""
    with suppress(OSError):
        return [
            int(word)
            for task in Path(f"/proc/{process}/task").iterdir()
            for word in (task / "children").read_text().split()
        ]
    return []


def print_suite(runs: int) -> None:
    """Print the cost of one tiny run by itself, and of a run in a suite."""
    settings = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]
    with tempfile.TemporaryDirectory() as out:
        words = ["-m", "lrtasks", "eval", "--model", "attention", "--task", "cumsum", *settings, "--device", "cpu"]
        wall, cpu = cost([*words, "--out", f"{out}/alone"])
        print(f"a tiny run by itself:        {cpu:6.2f} s CPU, {wall:6.2f} s wall")
        seen = Runs()
        words = ["-m", "lrtasks", "suite", "--models", "attention", "--tasks", "cumsum", *settings, "--device", "cpu"]
        one, many = (cost([*words, "--seeds", str(seeds), "--out", f"{out}/{seeds}"])[0] for seeds in (1, 1 + runs))
    cpu, own = statistics.mean(seen.seconds.values()), seen.kibibytes / 1024
    print(f"a run of a suite:            {cpu:6.2f} s CPU, {(many - one) / runs:6.2f} s wall, {own:.0f} MB of its own")


def print_beside(steps: int, repeats: int = 3) -> None:
    """Print the time of a run alone, and beside an equal run, with the defaults and with other settings of threads."""
    print(f"{'':36}{'alone':>8}{'beside another':>17}{'ratio':>8}")
    for name, settings in THREADS.items():
        alone, beside = (
            statistics.median(first_of(1 + neighbours, steps, settings) for _ in range(repeats))
            for neighbours in (0, 1)
        )
        print(f"{name:36}{alone:6.1f} s{beside:15.1f} s{beside / alone:8.1f}", flush=True)


def first_of(runs: int, steps: int, settings: dict[str, str]) -> float:
    """Return the wall seconds of the first of ``runs`` equal runs that start together."""
    with tempfile.TemporaryDirectory() as out:
        start = time.perf_counter()
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "lrtasks", *RUN, "--steps", str(steps), "--out", f"{out}/{number}"],
                env={**os.environ, **settings},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for number in range(runs)
        ]
        processes[0].wait()
        wall = time.perf_counter() - start
        for process in processes:
            process.wait()
        return wall


def print_allocator(steps: int, repeats: int = 3) -> None:
    """Print the cost of training with freed memory kept, divided by the cost with glibc's own settings."""
    print(f"{'':24}{'CPU time':>10}{'of it system':>14}{'page faults':>13}")
    for model, length in (("dlr", 256), ("transformer", 256), ("longvq", 256), ("dlr", 4096)):
        spent: dict[str, list[tuple[float, float, int]]] = {"kept": [], "given back": []}
        words = ["eval", "--model", model, "--task", "shift", "--length", str(length), "--steps", str(steps)]
        words += ["--device", "cpu", "--workers", "0", "--test-batches", "1", "--val-batches", "1"]
        for _ in range(repeats):
            for name, runs in spent.items():
                user = {} if name == "kept" else {"MALLOC_TRIM_THRESHOLD_": "131072"}
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                with tempfile.TemporaryDirectory() as out:
                    command = [sys.executable, "-m", "lrtasks", *words, "--out", out]
                    subprocess.run(command, env={**os.environ, **user}, capture_output=True, check=True)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                system = after.ru_stime - before.ru_stime
                faults = after.ru_minflt - before.ru_minflt
                runs.append((after.ru_utime - before.ru_utime + system, system, faults))
        kept, given_back = ([statistics.median(column) for column in zip(*spent[name], strict=True)] for name in spent)
        columns = zip(kept, given_back, (10, 14, 13), strict=True)
        ratios = "".join(f"{ours / theirs:>{width}.2f}" for ours, theirs, width in columns)
        print(f"{model:14}{length:>10}{ratios}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9, help="processes per case, one after the other in turn")
    parser.add_argument("--suite", type=int, help="measure this many more runs in a suite instead")
    parser.add_argument("--beside", type=int, help="measure runs of this many steps beside each other instead")
    parser.add_argument("--allocator", type=int, help="measure runs of this many steps with both allocators instead")
    options = parser.parse_args()
    if options.suite:
        print_suite(options.suite)
    elif options.beside:
        print_beside(options.beside)
    elif options.allocator:
        print_allocator(options.allocator)
    else:
        print_commands(options.repeats)


if __name__ == "__main__":
    main()
