"""Trackers copy a run's record to other formats, through Lightning's loggers. They do not change the run.

All trackers write below the run's folder. When a run is continued, its trackers are written again from the record, so
that no step appears twice.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lrtasks.budget import Budget
from lrtasks.config import flat
from lrtasks.errors import UsageError, first_line, require_known
from lrtasks.files import refuse_links
from lrtasks.record import RunRecord

PACKAGES = {"csv": None, "tensorboard": "tensorboard", "wandb": "wandb"}
"""Trackers and the package that each tracker needs; the name of a tracker is also the name of its folder."""


def tracker_names(chosen: str | Iterable[str]) -> tuple[str, ...]:
    """Return the names of trackers in comma-separated texts, in order and without repeats.

    Raises:
        UsageError: for an unknown tracker, or a tracker whose package is not installed.

    >>> tracker_names(["csv,csv"])
    ('csv',)
    """
    texts = [chosen] if isinstance(chosen, str) else chosen
    names = tuple(dict.fromkeys(name for text in texts for name in str(text).split(",")))
    for name in names:
        require_known("tracker", name, PACKAGES)
        package = PACKAGES[name]
        # a folder called like the package has no origin
        if package is not None and not getattr(find_spec(package), "origin", None):
            raise UsageError(f"tracker {name!r} needs the package {package}: pip install 'lrtasks[trackers]'")
    return names


class Trackers:
    """The trackers of one run, written from its record; they replace the files of an earlier process in ``folder``.

    The files of a run that is overwritten stay until :meth:`begin`, as its record does.
    """

    def __init__(self, names: Iterable[str], folder: Path, record: RunRecord) -> None:
        self._record = record
        self._budget = Budget(**record.budget)
        self._written = 0
        self._places = [folder / name for name in names]
        refuse_links(*self._places)
        self._loggers: list[Any] | None = None

    def begin(self) -> list[Any]:
        """Start the loggers at the first call, and return them."""
        if self._loggers is not None:
            return self._loggers
        for place in self._places:
            shutil.rmtree(place, ignore_errors=True)
        self._loggers = [_logger(place, self._record) for place in self._places]
        named = flat({key: getattr(self._record, key) for key in ("task", "model", "budget", "seed")})
        settings = {key: value if isinstance(value, (bool, int, float, str)) else str(value) for key, value in named}
        for logger in self._loggers:
            logger.log_hyperparams(settings)
        return self._loggers

    def update(self, record: RunRecord) -> None:
        """Write the points that were added to the curve since the last call."""
        for point in record.curve[self._written :]:
            step = point["step"]
            values = {"train/loss": point["loss"], "train/lr": self._budget.lr * self._budget.rate(step - 1)}
            values |= {f"val/{name}": value for name, value in point.items() if name not in ("step", "loss")}
            self._log(values, step)
        self._written = len(record.curve)

    def finish(self, record: RunRecord) -> None:
        """Write the remaining points of the curve, the final scores and the status."""
        self.update(record)
        for split, scores in record.scores.items():
            if split != "val":
                self._log({f"{split}/{name}": value for name, value in scores.items()}, record.steps())
        for logger in self.begin():
            logger.finalize("success" if record.status == "done" else "failed")
        self.close(0 if record.status == "done" else 1)

    def close(self, exit_code: int = 1) -> None:
        """End wandb's run; otherwise wandb ends it at the exit of this process, and prints on the standard output."""
        for place, logger in zip(self._places, self._loggers or (), strict=False):
            if place.name == "wandb":
                logger.experiment.finish(exit_code=exit_code)
        self._loggers = []

    def discard(self) -> None:
        """Remove the written files."""
        self.close()
        for place in self._places:
            shutil.rmtree(place, ignore_errors=True)

    def _log(self, values: Mapping[str, float | None], step: int) -> None:
        finite = {name: value for name, value in values.items() if value is not None}
        for logger in self.begin():
            logger.log_metrics(finite, step)
            logger.save()


def track_finished(names: Iterable[str], folder: Path, record: RunRecord) -> None:
    """Write the trackers that a finished run does not have yet."""
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        trackers = Trackers(missing, folder, record)
        try:
            trackers.finish(record)
        except BaseException:  # a full disk, or Ctrl-C: the next call would find the folders and keep them
            trackers.discard()
            raise


def remove_others(names: Iterable[str], folder: Path) -> None:
    """Remove the files of all trackers but ``names``, which an earlier run or an earlier part of this one wrote."""
    for name in PACKAGES:
        if name not in names and not (folder / name).is_symlink():
            shutil.rmtree(folder / name, ignore_errors=True)


def _logger(place: Path, record: RunRecord) -> Any:
    from pytorch_lightning import loggers

    if place.name == "csv":
        return loggers.CSVLogger(place.parent, name="", version="csv", flush_logs_every_n_steps=1)
    if place.name == "tensorboard":
        return loggers.TensorBoardLogger(place.parent, name="", version="tensorboard")
    # wandb works offline unless the user asks for online mode; without this setting it would still send error reports
    online = os.environ.get("WANDB_MODE", "offline") == "online"
    if not online:
        os.environ["WANDB_ERROR_REPORTING"] = "false"
    place.mkdir(parents=True, exist_ok=True)
    try:
        import wandb

        # started here, not by Lightning, which writes into a run of the caller's and leaves WANDB_MODE changed
        experiment = wandb.init(
            name=place.parent.name,
            dir=place.parent,
            id=place.parent.name,
            mode="online" if online else "offline",
            project=os.environ.get("WANDB_PROJECT", "lrtasks"),
            group=record.task["name"],
            reinit="create_new",
            settings=wandb.Settings(quiet=True),
        )
    except Exception as error:
        raise UsageError(f"tracker 'wandb' cannot start: {first_line(error)}") from None
    experiment.define_metric("trainer/global_step")
    experiment.define_metric("*", step_metric="trainer/global_step", step_sync=True)
    return loggers.WandbLogger(experiment=experiment)
