"""What trackers are told, and when.

A tracker holds nothing that the record does not hold: it is told of the points of the learning curve as they come.
When a run goes on after a kill, its trackers begin anew and are told of all points that the checkpoint knows; so no
step is there twice, and none is lost.
"""

from __future__ import annotations

import importlib
import math
import shutil
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Protocol

from lrtasks.budget import Budget
from lrtasks.errors import UsageError, unknown
from lrtasks.files import held
from lrtasks.record import RunRecord
from lrtasks.suite.jobs import LOCK

_TRACKERS = {
    "jsonl": "lrtasks.evaluation.trackers.jsonl:Jsonl",
    "tensorboard": "lrtasks.evaluation.trackers.tensorboard:TensorBoard",
    "wandb": "lrtasks.evaluation.trackers.wandb:WeightsAndBiases",
}
_PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb"}


class Tracker(Protocol):
    """Writes the course of one run to a place of its own below the run's folder."""

    place: ClassVar[str]
    """Name of its file or folder."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Begin anew in the run's folder; ``settings`` say what the run is, as nested plain data."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Note values after so many steps."""

    def finish(self, step: int, values: Mapping[str, float], status: str) -> None:
        """Note the final values and how the run ended."""

    def close(self) -> None:
        """Let go of all files and processes; called once, finished or not."""


def tracker_names(chosen: str | Iterable[str]) -> tuple[str, ...]:
    """Names of trackers from texts with commas, each once, in order.

    Raises:
        UsageError: for an unknown one, or one whose package is not installed.

    >>> tracker_names(["jsonl,jsonl"])
    ('jsonl',)
    """
    texts = [chosen] if isinstance(chosen, str) else chosen
    names = tuple(dict.fromkeys(name for text in texts for name in text.split(",")))
    for name in names:
        if name not in _TRACKERS:
            raise unknown("tracker", name, _TRACKERS)
        package = _PACKAGES.get(name)
        if package is not None and find_spec(package) is None:
            raise UsageError(f"tracker {name!r} needs the package {package}: pip install 'lrtasks[trackers]'")
    return names


class Tracking:
    """The trackers of one run.

    Args:
        names: which, as :func:`tracker_names` gives them.
        folder: the run's folder.
        record: what the run is, and what is known of it.
    """

    def __init__(self, names: Iterable[str], folder: Path, record: RunRecord) -> None:
        self._budget = Budget(**record.budget)
        self._told = 0
        self._trackers: list[Tracker] = []
        self._places: list[Path] = []
        try:
            for name in names:
                cls = _tracker_class(name)
                self._places.append(folder / cls.place)
                _remove(self._places[-1])
                self._trackers.append(cls(folder, _settings(record)))
        except BaseException:
            self.discard()
            raise

    def update(self, record: RunRecord) -> None:
        """Tell of the points that came since the last call."""
        for point in record.curve[self._told :]:
            step = point["step"]
            values = {"train/loss": point["loss"], "train/lr": self._budget.lr * self._budget.rate(step - 1)}
            values |= {f"val/{name}": value for name, value in point.items() if name not in ("step", "loss")}
            for tracker in self._trackers:
                tracker.log(step, _numbers(values))
        self._told = len(record.curve)

    def finish(self, record: RunRecord) -> None:
        """Tell of all that is left, the final scores and the status."""
        self.update(record)
        step = record.curve[-1]["step"] if record.curve else 0
        final = {
            f"{split}/{name}": value
            for split, scores in record.scores.items()
            if split != "val"
            for name, value in scores.items()
        }
        for tracker in self._trackers:
            tracker.finish(step, _numbers(final), record.status)

    def close(self) -> None:
        """Let go of all files and processes."""
        while self._trackers:
            self._trackers.pop().close()

    def discard(self) -> None:
        """Close, and leave nothing behind."""
        self.close()
        for place in self._places:
            _remove(place)


def track_finished(names: Iterable[str], folder: Path, record: RunRecord) -> None:
    """Tell the trackers that were not there of a run that has ended.

    Raises:
        UsageError: if another process is working in the run's folder, or it cannot be written to.
    """
    missing = [name for name in names if not (folder / _tracker_class(name).place).exists()]
    if not missing:
        return
    try:
        with held(folder / LOCK, f"the run in {folder}"):
            tracking = Tracking(missing, folder, record)
            try:
                tracking.finish(record)
            finally:
                tracking.close()
    except OSError as error:
        raise UsageError(f"trackers cannot write into {folder}: {error.strerror}") from None


def _tracker_class(name: str) -> type[Tracker]:
    module, _, attribute = _TRACKERS[name].partition(":")
    found: type[Tracker] = getattr(importlib.import_module(module), attribute)
    return found


def _settings(record: RunRecord) -> dict[str, Any]:
    return {
        "task": record.task,
        "model": record.model,
        "preset": record.preset,
        "budget": record.budget,
        "seed": record.seed,
        "command": record.command,
    }


def _numbers(values: Mapping[str, float | None]) -> dict[str, float]:
    """With the numbers that a record on disk has no word for."""
    return {name: math.nan if value is None else value for name, value in values.items()}


def _remove(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)
