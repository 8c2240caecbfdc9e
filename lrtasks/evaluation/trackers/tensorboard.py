"""Event files for TensorBoard."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from torch.utils.tensorboard import SummaryWriter


class TensorBoard:
    """Writes the folder ``tensorboard``: scalars, and the settings with the final scores for the tab HPARAMS."""

    place: ClassVar[str] = "tensorboard"

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._writer = SummaryWriter(str(folder / self.place))
        self._writer.add_text("settings", f"```\n{json.dumps(settings, indent=1)}\n```")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(self, step: int, values: Mapping[str, float], status: str) -> None:
        settings = {**_flat(self._settings), "status": status}
        # "." keeps them in this folder, where they would get one of their own
        self._writer.add_hparams(settings, dict(values), run_name=".", global_step=step)

    def close(self) -> None:
        self._writer.close()


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by names with dots; what is no number, text or truth value becomes text.

    >>> _flat({"task": {"name": "shift", "shape": [2, 3]}, "seed": 0})
    {'task.name': 'shift', 'task.shape': '[2, 3]', 'seed': 0}
    """
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return flat
