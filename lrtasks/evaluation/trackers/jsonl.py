"""One JSON object per line: the settings, each point of the learning curve, the end."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from lrtasks.files import remove_partials, write_atomically


class Jsonl:
    """Writes ``metrics.jsonl``, whole at every moment; values that are no finite numbers are null."""

    place: ClassVar[str] = "metrics.jsonl"

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._path = folder / self.place
        remove_partials(self._path)
        self._lines: list[str] = []
        self._add({"run": folder.name, "settings": settings})

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._add({"step": step, **_finite(values)})

    def finish(self, step: int, values: Mapping[str, float], status: str) -> None:
        self._add({"step": step, "status": status, **_finite(values)})

    def close(self) -> None:
        """There is nothing open between two lines."""

    def _add(self, content: Mapping[str, Any]) -> None:
        self._lines.append(json.dumps(content, allow_nan=False) + "\n")
        write_atomically(self._path, "".join(self._lines).encode())


def _finite(values: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
