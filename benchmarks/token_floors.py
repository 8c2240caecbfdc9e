"""Print the accuracy of the token tasks' baselines on 1,024 test samples, fitted on 1,024 training samples.

python benchmarks/token_floors.py                # all of them
python benchmarks/token_floors.py recall mqar
"""

from __future__ import annotations

import argparse

import lrtasks
from lrtasks.evaluation.scoring import baseline_scores

SAMPLES, BATCH = 1024, 16
SETTINGS = ({"setting": "small"}, {"setting": "lra-like"}, {"setting": "paper"})
TASKS = {
    "listops": SETTINGS,
    "listops-root": SETTINGS,
    "recall": (
        {"length": 64},
        {"length": 1024},
        {"length": 65_536},
        {"length": 1024, "distance": (3, 1025)},
        {"length": 1024, "distance": (257, 1025)},
    ),
    "mqar": ({"length": 64, "pairs": (4, 8), "vocab": 256}, {"length": 512, "pairs": 64}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=", ".join(TASKS))
    tasks = parser.parse_args().tasks or list(TASKS)
    for name in (name for name in tasks if name not in TASKS):
        parser.error(f"unknown task {name!r}; allowed: {', '.join(TASKS)}")
    for name in tasks:
        for parameters in TASKS[name]:
            task = lrtasks.make(name, **parameters)
            train, test = (
                [task.batch(range(first, first + BATCH), split=split) for first in range(0, SAMPLES, BATCH)]
                for split in ("train", "test")
            )
            scores = baseline_scores(task, train, test)
            print(name, parameters, {floor: round(score["accuracy"], 3) for floor, score in scores.items()}, flush=True)


if __name__ == "__main__":
    main()
