"""What one measurement found: plain JSON, one file per model and length."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lrtasks.bench.case import BASELINE, Case
from lrtasks.bench.measure import Phase, clock_of
from lrtasks.errors import UsageError
from lrtasks.files import write_atomically

SCHEMA = 1


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One model at one length.

    Attributes:
        identity: what was measured (:meth:`Case.identity`).
        environment: versions, commit, platform, processor, threads.
        sizes: ``parameters`` and ``state_bytes``, or ``reason``.
        training: what :func:`lrtasks.bench.measure.cost` returned for a training step, or ``reason``: one line on why
            there is nothing.
        inference: the same for a forward pass.
        schema: version of this layout.
    """

    identity: Mapping[str, Any]
    environment: Mapping[str, Any]
    sizes: Mapping[str, Any]
    training: Mapping[str, Any]
    inference: Mapping[str, Any]
    schema: int = SCHEMA

    @property
    def model(self) -> str:
        """Name of the model."""
        return str(self.identity["model"])

    @property
    def length(self) -> int:
        """Positions of the sequence."""
        return int(self.identity["length"])

    @property
    def parameters(self) -> int | None:
        """Number of trained values."""
        return self.sizes.get("parameters")

    @property
    def state_bytes(self) -> int | None:
        """Bytes of streaming state at the end of one sequence; None without a streaming form."""
        return self.sizes.get("state_bytes")

    def figures(self, phase: Phase) -> Mapping[str, Any]:
        """What was found in a phase."""
        return self.training if phase == "training" else self.inference

    def seconds(self, phase: Phase) -> float | None:
        """Shortest repeat: CPU time on a CPU, elapsed time on a GPU."""
        return self._shortest(phase, "")

    def speed(self, phase: Phase) -> float | None:
        """How many times faster than the Transformer in the same process; both by their shortest repeats."""
        own, other = self._shortest(phase, ""), self._shortest(phase, "baseline_")
        return other / own if own and other else None

    def peak_bytes(self, phase: Phase) -> int | None:
        """Peak memory above the process's start."""
        return self.figures(phase).get("peak_bytes")

    def reasons(self) -> dict[str, str]:
        """Why a part is missing, by part."""
        parts = {"training": self.training, "inference": self.inference, "sizes": self.sizes}
        return {name: part["reason"] for name, part in parts.items() if "reason" in part}

    def write(self, file: Path) -> None:
        """Write the measurement as JSON, atomically."""
        text = json.dumps(dataclasses.asdict(self), indent=1, allow_nan=False)
        write_atomically(file, (text + "\n").encode())

    def _shortest(self, phase: Phase, prefix: str) -> float | None:
        repeats = self.figures(phase).get(prefix + clock_of(self.identity["device"]))
        return min(repeats) if repeats else None


SHARED = ("settings", "device", "device_name", "torch", "source")
"""Parts of the identity in which the measurements of one table must agree."""


def finished(case: Case, out: Path) -> Measurement | None:
    """The measurement of ``case`` in the folder ``out``; None if there is none.

    Raises:
        UsageError: if its file is damaged, or holds something else.
    """
    file = case.file(out)
    if not file.exists():
        return None
    found = read_measurement(file)
    if found.identity != case.identity():
        raise UsageError(f"{file} is a measurement of something else; remove it")
    return found


def read_measurements(folder: Path) -> list[Measurement]:
    """All measurements in ``folder``, short lengths first, the Transformer first at each length.

    Raises:
        UsageError: if there are none, one is damaged, or two differ in more than model and length.
    """
    files = sorted(folder.glob("*.json"))
    if not files:
        raise UsageError(f"no measurements in {folder}")
    found = [read_measurement(file) for file in files]
    for file, entry in zip(files, found, strict=True):
        for name in SHARED:
            if entry.identity.get(name) != found[0].identity.get(name):
                raise UsageError(
                    f"{files[0]} and {file} were measured with different {name}; keep them in folders of their own"
                )
    return sorted(found, key=lambda entry: (entry.length, entry.model != BASELINE, entry.model))


def read_measurement(file: Path) -> Measurement:
    """The measurement in ``file``.

    Raises:
        UsageError: if it is damaged or of another schema.
    """
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} is damaged and cannot be read as a measurement: {error}; remove it") from None
    fields = {field.name for field in dataclasses.fields(Measurement)}
    if not isinstance(content, dict) or set(content) != fields or content["schema"] != SCHEMA:
        raise UsageError(f"{file} is not a measurement of schema {SCHEMA}; remove it")
    return Measurement(**content)
