"""Runs for Weights & Biases: on this machine alone, unless the environment says ``WANDB_MODE=online``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from lrtasks.errors import UsageError, first_line

PROJECT = "lrtasks"


class WeightsAndBiases:
    """Writes the folder ``wandb``, which ``wandb sync`` uploads; online, a run that goes on is the same run there."""

    place: ClassVar[str] = "wandb"

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        if mode != "online":
            # its error reports and usage figures would be sent even so
            os.environ["WANDB_ERROR_REPORTING"] = "false"
        import wandb

        self._exit_code = 1
        try:
            self._run = wandb.init(
                dir=folder,
                mode=mode,
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                id=folder.name,
                name=folder.name,
                group=settings["task"]["name"],
                config=dict(settings),
                resume="allow" if mode == "online" else None,
                # a run that the caller has open stays the caller's, and so does what is printed
                reinit="create_new",
                settings=wandb.Settings(console="off", silent=True),
            )
        except (wandb.Error, ValueError) as error:
            raise UsageError(f"tracker 'wandb' cannot start: {first_line(error)}") from None

    def log(self, step: int, values: Mapping[str, float]) -> None:
        # a run that goes on online has its earlier points there already
        if step >= self._run.starting_step:
            self._run.log(dict(values), step=step)

    def finish(self, step: int, values: Mapping[str, float], status: str) -> None:
        self._run.summary.update({**values, "status": status})
        self._exit_code = 0 if status == "done" else 1

    def close(self) -> None:
        self._run.finish(self._exit_code)
