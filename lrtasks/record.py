"""The record of one run: plain JSON, written atomically, with all that is needed to repeat it."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lrtasks.config import parse_assignment
from lrtasks.errors import UsageError
from lrtasks.files import is_held, write_atomically

SCHEMA = 2
FILE = "record.json"
LOCK = "lock"
"""File in a run's folder, held by the one process that may work there."""
PANEL = "predictions.png"
"""What a run of an image task leaves beside its record: a few images, their targets and its predictions."""
STATUSES = ("running", "interrupted", "done", "diverged", "failed")
FINISHED = ("done", "diverged")
"""Statuses of runs that are not carried out again."""
MAX_BYTES = 32 * 2**20
"""A larger file is not read as a record."""
MAX_NUMBER = 1e100
"""Larger numbers are read as None: no real score, loss or cost is as large, and sums of smaller numbers stay finite."""


@dataclasses.dataclass
class RunRecord:
    """What one run was and what came out.

    Attributes:
        schema: version of this layout.
        status: ``running``, ``interrupted`` (its process ended before the run), ``done``, ``diverged`` (loss, weights
            or predictions are no finite numbers) or ``failed``.
        command: the command that repeats the run.
        digest: digest of the run's config (:attr:`lrtasks.run_config.RunConfig.digest`); empty in records of schema 1.
        task: ``{name, version, parameters, metric, address, data}``: ``metric`` is the headline score, ``address`` what
            ``--task`` takes (``None`` for a Python object), ``data`` the digest of a stored dataset or ``None``.
        model: ``{name, parameters, version, source, address, count, state_bytes}``: hyper-parameters, version of a
            registered model's numbers, digest of the source of a user's own model (``None`` for a registered one), what
            ``--model`` takes (``None`` for a Python object), number of trained values (a complex one counts twice),
            bytes of streaming state (``None`` without a streaming form).
        preset: the preset that filled in what the user left open.
        budget: fields of :class:`lrtasks.budget.Budget`.
        seed: seeds initialisation and training stream.
        scores: by split (``val``, ``test``, ...) or further test (``2x``, ...), by name; empty where it is impossible.
        errors: by test, the standard error of the headline score over test samples, by bootstrap.
        baselines: scores of the trivial baselines on the test stream.
        further_baselines: the same on each further test.
        scaled: by test, the headline score between the best baseline (0) and a perfect one (1).
        generalisation_length: greatest tested length with a scaled score of at least 0.9 there and at all shorter ones;
            ``None`` if the trained length does not reach it.
        selection: ``{by, values, chosen}`` if settings were selected: on which stream, the values that were tried by
            the setting's name, and whether this run was chosen.
        steps_to_solve: step from which validation held a scaled score of 0.99 at two evaluations in a row; the floor is
            that on validation.
        curve: one entry per evaluation: ``step``, ``loss`` (mean since the last one) and the validation scores.
        slices: the test score by group, for each breakdown that the task declares.
        further_slices: the same for each further test.
        diagnostics: what the model's modules report after training, by module.
        cost: ``seconds_per_step`` and ``seconds`` of training alone, ``seconds_with_evaluation``,
            ``peak_memory_bytes``, ``device``.
        environment: versions, commit, platform.
        notes: what a reader should know, such as a slow path taken.
    """

    command: str
    task: dict[str, Any]
    model: dict[str, Any]
    preset: str
    budget: dict[str, Any]
    seed: int
    environment: dict[str, Any]
    digest: str = ""
    status: str = "running"
    scores: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    errors: dict[str, float | None] = dataclasses.field(default_factory=dict)
    baselines: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    further_baselines: dict[str, dict[str, dict[str, float]]] = dataclasses.field(default_factory=dict)
    scaled: dict[str, float | None] = dataclasses.field(default_factory=dict)
    generalisation_length: int | None = None
    steps_to_solve: int | None = None
    selection: dict[str, Any] = dataclasses.field(default_factory=dict)
    curve: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    slices: dict[str, list[dict[str, Any]]] = dataclasses.field(default_factory=dict)
    further_slices: dict[str, dict[str, list[dict[str, Any]]]] = dataclasses.field(default_factory=dict)
    diagnostics: dict[str, Any] = dataclasses.field(default_factory=dict)
    cost: dict[str, Any] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    schema: int = SCHEMA

    def to_json(self) -> str:
        """The record as strict JSON; a score that is not a finite number becomes null."""
        return json.dumps(_finite(dataclasses.asdict(self)), indent=1, allow_nan=False)

    def write(self, folder: Path) -> None:
        """Write ``record.json`` into ``folder`` atomically."""
        write_atomically(folder / FILE, (self.to_json() + "\n").encode())

    def filled_slices(self) -> dict[str, list[dict[str, Any]]]:
        """The breakdowns that have a group; where no element of the test set is labelled, there is none."""
        return {name: rows for name, rows in self.slices.items() if rows}

    def score(self, name: str, split: str = "test") -> float | None:
        """A score, or ``None`` if the run has none of this name that is a finite number.

        Test scores are those of runs that are done: one may fail after its test, in its diagnostics for instance.
        """
        value = self.scores.get(split, {}).get(name)
        if value is None or not math.isfinite(value) or (split == "test" and self.status != "done"):
            return None
        return float(value)

    def score_of(self, test: str) -> float | None:
        """The headline score on ``test`` or a further test, while the run goes on too."""
        value = self.scores.get(test, {}).get(self.task["metric"])
        return None if value is None or not math.isfinite(value) else float(value)

    def floor(self, test: str) -> float | None:
        """The best baseline's headline score on ``test`` or a further test."""
        baselines = self.baselines if test == "test" else self.further_baselines.get(test, {})
        found = [scores.get(self.task["metric"]) for scores in baselines.values()]
        return max((float(value) for value in found if value is not None), default=None)

    def headline(self, split: str = "test") -> float | None:
        """The score that the task's metric names, as :meth:`score` gives it."""
        return self.score(self.task["metric"], split)

    def best_baseline(self) -> tuple[str, float] | None:
        """Name and headline score of the best trivial baseline; its score is the floor."""
        metric = self.task["metric"]
        scored = [(name, scores[metric]) for name, scores in self.baselines.items() if scores.get(metric) is not None]
        return max(scored, key=lambda item: item[1], default=None)

    def steps(self) -> int:
        """Training steps up to the last evaluation."""
        return self.curve[-1]["step"] if self.curve else 0

    def outcome(self) -> str:
        """The status for a reader, with the steps of a run that has not ended.

        ``no score`` of a run that is done without one, for example because a prediction was not a number.
        """
        if self.status in ("running", "interrupted"):
            return f"{self.status}, {self.steps()} of {self.budget.get('steps')} steps"
        return "no score" if self.status == "done" and self.headline() is None else self.status


def split_selected(settings: Mapping[str, Any], names: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of some settings, and the others.

    A parameter ``MIXER.NAME`` of a mixer in a stack is an entry ``MIXER.NAME=VALUE`` of the stack's ``hyper``.

    >>> split_selected({"d_model": 8, "hyper": ["gla.heads=2", "gla.expand=1"]}, ["gla.heads", "d_model"])
    ({'d_model': 8, 'gla.heads': 2}, {'hyper': ['gla.expand=1']})
    """
    values = {name: value for name, value in settings.items() if name in names}
    others = {name: value for name, value in settings.items() if name not in names}
    if any("." in name for name in names):
        entries = {entry.partition("=")[0]: entry for entry in others["hyper"]}
        values |= {name: parse_assignment(entry)[1] for name, entry in entries.items() if name in names}
        others["hyper"] = [entry for name, entry in entries.items() if name not in names]
    return values, others


def read_record(path: Path) -> RunRecord:
    """Read ``record.json``, or the one in the folder ``path``.

    A number that is not finite, or beyond :data:`MAX_NUMBER`, is read as ``None``.

    Raises:
        UsageError: if it is missing, no regular file, too large, damaged or of another schema.
    """
    file = path / FILE if path.is_dir() else path
    content = _load(file)
    if not isinstance(content, dict):
        raise UsageError(f"{file} is not a run record")
    if content.get("schema") == 1:
        content = _from_schema_1(content)
    if content.get("schema") != SCHEMA:
        found = f"{file} has schema {content.get('schema')!r}"
        raise UsageError(f"{found}; this version of lrtasks reads schemas 1 to {SCHEMA}{_writer(content)}")
    problem = _problem(content)
    if problem:
        raise UsageError(f"{file} is not a run record: {problem}")
    return RunRecord(**content)


def finished_record(folder: Path, digest: str) -> RunRecord | None:
    """The record of the run with this digest in ``folder``, if the run needs no more work.

    Raises:
        UsageError: if the folder holds the record of another run, or one that cannot be read.
    """
    if not (folder / FILE).exists():
        return None
    try:
        record = read_record(folder)
        if record.digest != digest:
            found = f"digest {record.digest or 'missing'}, this one is {digest}"
            raise UsageError(f"{folder / FILE} belongs to another run ({found})")
    except UsageError as error:
        raise UsageError(f"{error}; move or remove that file to run this again") from None
    return record if record.status in FINISHED else None


def _from_schema_1(content: dict[str, Any]) -> dict[str, Any]:
    """Read schema 1: it called baselines floors, identified a user's own model by its modules, and had no digest."""
    content = {("baselines" if name == "floors" else name): value for name, value in content.items()}
    if isinstance(content.get("model"), dict):
        renamed = {("source" if name == "structure" else name): value for name, value in content["model"].items()}
        content["model"] = {"version": None if renamed.get("source") else 1, **renamed}
    return {"digest": "", **content, "schema": SCHEMA}


def read_records(folder: Path | str) -> tuple[list[tuple[Path, RunRecord]], list[str]]:
    """Read all records below ``folder``, sorted by path; links to folders are followed, each folder is read once.

    A run whose process was killed has the status ``interrupted`` here, whatever its file says.

    Returns:
        ``(folder, record)`` pairs, and one line for each file or folder that could not be read: a damaged record hides
        no other.

    Raises:
        UsageError: if there is no such folder.
    """
    folder = Path(folder)
    if not folder.exists():
        raise UsageError(f"no results folder at {folder}")
    found: list[tuple[Path, RunRecord]] = []
    problems: list[str] = []
    for file in sorted(_files(folder, problems)):
        try:
            record = read_record(file)
        except UsageError as error:
            problems.append(str(error))
            continue
        if record.status == "running" and not is_held(file.with_name(LOCK)):
            record.status = "interrupted"
        found.append((file.parent, record))
    return found, problems


def score_name(rows: Sequence[Mapping[str, Any]]) -> str:
    """Name of the score in the rows of a breakdown, of which there is at least one."""
    return next(name for name in rows[0] if name not in ("label", "elements"))


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_NUMBER = int | float | None
_NUMBERS = {None: _NUMBER}
_SLICES: dict[Any, Any] = {None: [{"label": str | int | float, **_NUMBERS}]}
_FORMS: dict[str, Any] = {
    **dict.fromkeys(("command", "preset", "digest", "status"), str),
    **dict.fromkeys(("seed", "schema"), int),
    **dict.fromkeys(("generalisation_length", "steps_to_solve"), int | None),
    **dict.fromkeys(("environment", "selection", "diagnostics"), dict),
    "task": {"name": str, "version": int, "parameters": dict, "metric": str},
    "model": {"name": str, "parameters": dict, "count": int | None, "state_bytes": int | None},
    "budget": {"steps": _NUMBER},
    "scores": {None: _NUMBERS},
    "errors": _NUMBERS,
    "baselines": {None: _NUMBERS},
    "further_baselines": {None: {None: _NUMBERS}},
    "scaled": _NUMBERS,
    "curve": [{"step": int, **_NUMBERS}],
    "slices": _SLICES,
    "further_slices": {None: _SLICES},
    "cost": {"seconds_per_step": _NUMBER, "device": str, **_NUMBERS},
    "notes": [str],
}
"""What the readers of records rely on in each field: types of entries, that of all others under ``None``."""


def _load(file: Path) -> Any:
    """The JSON in ``file``, its numbers finite."""
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):  # opening a pipe or a device may block, or never end
            raise UsageError(f"{file} is not a regular file")
        if found.st_size > MAX_BYTES:
            raise UsageError(f"{file} is too large for a run record: {found.st_size:,} bytes, at most {MAX_BYTES:,}")
        text = file.read_text(encoding="utf-8")
        content = _finite(json.loads(text))
        if _SURROGATE.search(text):
            json.dumps(content, ensure_ascii=False).encode()  # fails for a lone surrogate, which is not valid text
        return content
    except OSError as error:
        raise UsageError(f"no run record at {file} ({error.strerror})") from None
    except UsageError:
        raise
    except (ValueError, RecursionError) as error:  # also for numbers with thousands of digits, and for deep nesting
        raise UsageError(f"{file} is damaged and cannot be read as JSON: {error}") from None


def _files(folder: Path, problems: list[str]) -> Iterator[Path]:
    """The records below ``folder``; adds a line to ``problems`` for each folder that cannot be read."""
    seen = set()

    def note(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):  # a file, or removed meanwhile
            problems.append(f"the folder {error.filename} cannot be read ({error.strerror})")

    for place, below, files in os.walk(folder, onerror=note, followlinks=True):
        found = Path(place).stat()
        identity = (found.st_dev, found.st_ino)
        if identity in seen:  # two links lead here, or one that leads back
            below.clear()
            continue
        seen.add(identity)
        below.sort()
        if FILE in files:
            yield Path(place) / FILE


def _writer(content: dict[str, Any]) -> str:
    """Which version wrote a record, if it says so, for a message."""
    environment = content.get("environment")
    version = environment.get("lrtasks") if isinstance(environment, dict) else None
    return f"; it was written by lrtasks {version}" if version else ""


def _problem(content: dict[str, Any]) -> str | None:
    """Why ``content`` is not a record that the readers of records can rely on; ``None`` if it is one."""
    fields = {field.name: field for field in dataclasses.fields(RunRecord)}
    for name in content:
        if name not in fields:
            return f"{name!r} does not belong there"
    required = [name for name, field in fields.items() if field.default is field.default_factory or name == "status"]
    form = {name: _FORMS[name] for name in [*required, *content]}
    if not content.get("cost"):  # a run that was not timed
        form["cost"] = dict
    problem = _misfit({"cost": {}, **content}, form)
    if problem:
        return f"it{problem}" if problem[0] == " " else problem[1:]
    for breakdowns in (content.get("slices", {}), *content.get("further_slices", {}).values()):
        if any(row.keys() <= {"label", "elements"} for rows in breakdowns.values() for row in rows):
            return "slices has a row without a score"
    if content["status"] not in STATUSES:
        return f"'status' must be one of {', '.join(STATUSES)}, found {content['status']!r}"
    return None


def _misfit(value: Any, form: Any) -> str | None:
    """Where and why a value is not of a form, ``None`` if it is."""
    if not isinstance(form, dict | list):
        return None if isinstance(value, form) else f" must be {getattr(form, '__name__', form)}, found {value!r}"
    if not isinstance(value, type(form)):
        return f" must be {type(form).__name__}, found {value!r}"
    for name in form if isinstance(form, dict) else ():
        if name not in value and name is not None:
            return f" lacks {name!r}"
    for name, entry in value.items() if isinstance(value, dict) else enumerate(value):
        problem = _misfit(entry, form[0] if isinstance(form, list) else form.get(name, form.get(None, object)))
        if problem:
            return f".{name}{problem}"
    return None


def _finite(value: Any) -> Any:
    """``value`` with ``None`` in place of each number that is not finite or beyond :data:`MAX_NUMBER`."""
    if isinstance(value, dict):
        return {key: item if type(item) is str else _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float | int):
        return value if -MAX_NUMBER < value < MAX_NUMBER else None
    return value
