"""A backend that runs nothing, for tests of commands that start many runs."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from typing import Any

from lrtasks.run_config import RunConfig
from lrtasks.suite.backends import Began, Event, Failure, Job


class Pretend:
    """A backend without processes: it records every run as done with the score 0.97.

    Attributes:
        jobs: jobs that have begun.
        failing: models or tasks whose runs fail.
        notes: notes of every record.
        stop_after: number of begun jobs after which the backend simulates Ctrl-C.
    """

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.failing: set[str] = set()
        self.notes: list[str] = []
        self.stop_after: int | None = None

    def run(self, jobs: Sequence[Job]) -> Generator[tuple[int, Event], None, None]:
        for number, job in enumerate(jobs):
            if len(self.jobs) == self.stop_after:
                raise KeyboardInterrupt
            self.jobs.append(job)
            yield number, Began()
            words = list(job.arguments)
            model, task, seed = (words[words.index(name) + 1] for name in ("--model", "--task", "--seed"))
            if not {model, task} & self.failing:
                job.folder.mkdir(parents=True)
                config = RunConfig.make(task, model, seed=int(seed), settings=settings_of(words))
                record = config.record("done")
                record.scores = {split: {record.task["metric"]: 0.97} for split in ("val", "test")}
                record.baselines = {"guess": {record.task["metric"]: 0.0}}
                record.cost = {"seconds_per_step": 0.01, "device": "cpu"}
                record.notes = [*self.notes]
                record.write(job.folder)
            yield number, Failure("killed by SIGKILL")


def settings_of(words: list[str]) -> dict[str, Any]:
    """Return the settings that a command line passes with ``--set``."""
    pairs = [words[place + 1].split("=", 1) for place, word in enumerate(words) if word == "--set"]
    return {name: json.loads(value) for name, value in pairs}
