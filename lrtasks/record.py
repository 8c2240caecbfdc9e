"""The record of one run: plain JSON, written atomically, with all information needed to repeat the run."""

from __future__ import annotations

import bisect
import dataclasses
import json
import math
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lrtasks.config import parse_assignment
from lrtasks.errors import UsageError
from lrtasks.files import is_held, write_atomically

SCHEMA = 3
FILE = "record.json"
LOCK = "lock"
"""Lock file in a run's folder, held by the only process that may work in the folder."""
ANALYSIS = "analysis"
"""Folder in a run's folder for the figures of ``lrtasks analyze``."""
PANEL = "predictions.png"
"""File that a run of an image task writes: a few images with their targets and predictions."""
LOG = "log.txt"
"""File in the folder of a failed run of a suite with the standard error of its process."""
STATUSES = ("running", "interrupted", "done", "diverged", "failed")
FINISHED = ("done", "diverged")
"""Statuses of runs that need no more work."""
NOT_CAUSAL = "the model is not causal, but the task is"
"""Beginning of a note: outputs of the trained model change with later inputs, so its score is not comparable."""
NOT_COMPARABLE = "not comparable: not causal on a causal task"
"""Remark on the score of such a run in tables and reports."""
MAX_BYTES = 32 * 2**20
"""Largest size of a record file, in bytes; a larger file is not read."""
MAX_NUMBER = 1e100
"""Larger numbers are read as None: no real score, loss or cost is so large. Sums of smaller numbers stay finite."""


@dataclasses.dataclass
class RunRecord:
    """Configuration and results of one run.

    Attributes:
        schema: version of this layout.
        status: ``running``, ``interrupted`` (the process ended before the run was finished), ``done``, ``diverged``
            (loss, weights or predictions are not finite) or ``failed``.
        command: the command that repeats the run.
        digest: digest of the run's config (:attr:`lrtasks.run_config.RunConfig.digest`); empty in records of schema 1.
        task: ``name``, ``version``, ``parameters`` and
            ``metric``: name of the headline score;
            ``address``: value for ``--task``; ``None`` for a Python object;
            ``data``: digest of the stored dataset, or ``None``;
            ``source``: digest of the source file of a user's own task, or ``None``.
        model: ``name``, ``parameters`` and
            ``version``: version of a registered model, raised when its results change;
            ``source``: digest of the source file of a user's own model, or ``None``;
            ``address``: value for ``--model``; ``None`` for a Python object;
            ``count``: number of trained values (a complex value counts twice);
            ``state_bytes``: bytes of streaming state; ``None`` without a streaming form.
        preset: the preset that supplied the values that the user did not set.
        budget: fields of :class:`lrtasks.budget.Budget`, without fields that were added later and have their default.
        seed: seeds initialisation and training stream.
        scores: scores by name, for each split (``val``, ``test``, ...) and further test (``2x``, ...); empty for a
            further test that the model cannot run.
        errors: by test, the standard error of the headline score over test samples (bootstrap).
        baselines: scores of the trivial baselines on the test stream.
        further_baselines: scores of the trivial baselines on each further test.
        scaled: by test, the headline score on the scale from the best baseline (0) to a perfect score (1).
        generalisation_length: largest tested length with a scaled score of at least 0.9 at this length and at all
            shorter tested lengths; ``None`` if there is none, or if it is below the trained length.
        selection: ``{by, values, chosen}`` if settings were selected: the stream used for the selection, the tried
            values by the setting's name, and whether this run was chosen. ``defaults`` has the selected values that
            ``budget`` and ``model`` leave out.
        steps_to_solve: step of the first of two consecutive evaluations with a scaled validation score of at least
            0.99; the floor is the best baseline's score on validation.
        curve: one entry per evaluation: ``step``, ``loss`` (mean since the last evaluation) and the validation scores.
        slices: the test score by group, for each slice of the task and of the metric (``class``: F1 by class).
        further_slices: the slices of each further test.
        diagnostics: values that the model's modules report after training, by module.
        cost: ``seconds_per_step`` and ``seconds`` of training alone, ``seconds_with_evaluation``,
            ``peak_memory_bytes``, ``device``.
        environment: versions, commit, platform.
        notes: remarks for the reader, such as the use of a slow code path.
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
        """Return the record as strict JSON, one compact line per field.

        A number that is not finite becomes null. Curve and slices are stored by column (``{"step": [100, 200],
        "loss": [0.7, 0.5]}``), because rows would repeat the names of the columns.
        """
        compact = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
        content = _convert_tables(json.loads(json.dumps(dataclasses.asdict(self)), **_BOUNDED), _to_columns)
        lines = (f" {compact(name)}: {compact(value)}" for name, value in content.items())
        return "{\n" + ",\n".join(lines) + "\n}"

    def write(self, folder: Path) -> None:
        """Write ``record.json`` into ``folder`` atomically."""
        write_atomically(folder / FILE, (self.to_json() + "\n").encode())

    def filled_slices(self) -> dict[str, list[dict[str, Any]]]:
        """Return the slices that are not empty; a slice is empty if the test set labels none of its elements."""
        return {name: rows for name, rows in self.slices.items() if rows}

    def score(self, name: str, split: str = "test") -> float | None:
        """Return a score, or ``None`` if the run has no finite score of this name.

        Test scores count only if the run is done: a run can fail after its test, for example in its diagnostics.
        """
        value = None if split == "test" and self.status != "done" else self.scores.get(split, {}).get(name)
        return None if value is None or not math.isfinite(value) else float(value)

    def stored_tests(self) -> set[str]:
        """Return the names of the further tests on stored datasets; such a name may look like a length (``512``)."""
        addresses = self.budget.get("test_data")
        return {name_of_test_set(str(one)) for one in addresses} if isinstance(addresses, list | tuple) else set()

    def floor(self, test: str) -> float | None:
        """Return the best baseline's headline score on ``test`` or a further test."""
        best = self.best_baseline(test)
        return None if best is None else float(best[1])

    def headline(self, split: str = "test") -> float | None:
        """Return the headline score on ``split``, or ``None`` under the conditions of :meth:`score`."""
        return self.score(self.task["metric"], split)

    def best_baseline(self, test: str = "test") -> tuple[str, float] | None:
        """Return name and headline score of the best trivial baseline; this score is the floor."""
        metric = self.task["metric"]
        baselines = self.baselines if test == "test" else self.further_baselines.get(test, {})
        scored = [(name, scores[metric]) for name, scores in baselines.items() if scores.get(metric) is not None]
        return max(scored, key=lambda item: item[1], default=None)

    def steps(self) -> int:
        """Return the number of training steps up to the last evaluation."""
        return self.curve[-1]["step"] if self.curve else 0

    def score_at(self, step: int) -> float | None:
        """Return the headline validation score of the last evaluation up to a training step.

        A run that is done keeps its last score: it may have stopped because it solved the task. Any other run has no
        score after its last evaluation.
        """
        evaluations = bisect.bisect_right(self.curve, step, key=lambda point: point["step"])
        if not evaluations or (step > self.steps() and self.status != "done"):
            return None
        value = self.curve[evaluations - 1].get(self.task["metric"])
        return None if value is None else float(value)

    def outcome(self) -> str:
        """Return the status as text for a reader, with the number of steps if the run has not ended.

        The text is ``no score`` if the run is done but has no finite headline score.
        """
        if self.status in ("running", "interrupted"):
            return f"{self.status}, {self.steps()} of {self.budget.get('steps')} steps"
        return "no score" if self.status == "done" and self.headline() is None else self.status


def name_of_test_set(address: str) -> str:
    """Return the name of the test on the stored dataset at ``address``: the name of its folder."""
    return address.rstrip("/").rpartition("/")[2]


def split_selected(settings: Mapping[str, Any], names: Collection[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split ``settings`` into the values of the settings ``names`` and the remaining settings.

    The parameter ``MIXER.NAME`` of a mixer in a stack is stored as the entry ``MIXER.NAME=VALUE`` in the stack's
    ``hyper``.

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


def read_record(path: str | Path) -> RunRecord:
    """Read the record file ``path``, or ``record.json`` in the folder ``path``.

    A number that is not finite, or larger than :data:`MAX_NUMBER`, is read as ``None``.

    Raises:
        UsageError: if the file is missing, not a regular file, too large, damaged or of an unknown schema.
    """
    file = Path(path)
    file = file / FILE if file.is_dir() else file
    content = _load(file)
    if not isinstance(content, dict):
        raise UsageError(f"{file} is not a run record")
    if content.get("schema") == 1:
        content = _from_schema_1(content)
    if content.get("schema") == 2:  # stores tables by row
        content["schema"] = SCHEMA
    if content.get("schema") != SCHEMA:
        environment = content.get("environment")
        version = environment.get("lrtasks") if isinstance(environment, dict) else None
        found = f"{file} has schema {content.get('schema')!r}; this version of lrtasks reads schemas 1 to {SCHEMA}"
        raise UsageError(f"{found}; it was written by lrtasks {version}" if version else found)
    content = _convert_tables(content, _to_rows)
    if problem := _problem(content):
        raise UsageError(f"{file} is not a run record: {problem}")
    return RunRecord(**content)


def current_record(path: Path) -> RunRecord:
    """Read a record as :func:`read_record` does; the status of a running run without a process is ``interrupted``.

    Raises:
        UsageError: in the cases of :func:`read_record`.
    """
    record = read_record(path)
    if record.status == "running" and not is_held((path if path.is_dir() else path.parent) / LOCK):
        record.status = "interrupted"
    return record


def finished_record(folder: Path, digest: str) -> RunRecord | None:
    """Return the record in ``folder`` of the run with this digest, or ``None`` if the run still needs work.

    Raises:
        UsageError: if the folder holds the record of another run, or a record that cannot be read.
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
    """Convert a record of schema 1: it calls baselines floors, identifies own models by modules, and has no digest."""
    content = {("baselines" if name == "floors" else name): value for name, value in content.items()}
    if isinstance(content.get("model"), dict):
        renamed = {("source" if name == "structure" else name): value for name, value in content["model"].items()}
        content["model"] = {"version": None if renamed.get("source") else 1, **renamed}
    return {"digest": "", **content, "schema": SCHEMA}


_TABLES = {"curve": 0, "slices": 1, "further_slices": 2}
"""Fields that hold tables, each with the number of dictionaries around a table."""


def _convert_tables(content: dict[str, Any], convert: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the record ``content`` with each table converted."""

    def converted(value: Any, depth: int) -> Any:
        if depth and isinstance(value, dict):
            return {name: converted(entry, depth - 1) for name, entry in value.items()}
        return convert(value)

    return {name: converted(value, _TABLES[name]) if name in _TABLES else value for name, value in content.items()}


def _to_columns(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return a table's columns by name; a value that a row lacks becomes ``None``."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _to_rows(columns: Any) -> Any:
    """Return the rows of a table; return a value that is not a dictionary of equally long columns unchanged."""
    if not isinstance(columns, dict) or not all(isinstance(column, list) for column in columns.values()):
        return columns
    if len({len(column) for column in columns.values()}) > 1:
        return columns
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def read_records(folder: Path | str) -> tuple[list[tuple[Path, RunRecord]], list[str]]:
    """Read all records below ``folder``, sorted by path; follow links to folders, but read each folder only once.

    A file ``record.json`` stands for its folder. Each record is read by :func:`current_record`.

    Returns:
        ``(folder, record)`` pairs, and one line for each file or folder that could not be read.

    Raises:
        UsageError: if the folder does not exist.
    """
    folder = Path(folder)
    if not folder.exists():
        raise UsageError(f"no results folder at {folder}")
    found: list[tuple[Path, RunRecord]] = []
    problems: list[str] = []
    for file in [folder] if folder.name == FILE and folder.is_file() else sorted(_files(folder, problems)):
        try:
            found.append((file.parent, current_record(file)))
        except UsageError as error:
            problems.append(str(error))
    return found, problems


def score_name(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of the score in the rows of a slice, which has at least one row."""
    return next(name for name in rows[0] if name not in ("label", "elements"))


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_NUMBER = int | float | None
_NUMBERS = {None: _NUMBER}
_SLICES: dict[Any, Any] = {None: [{"label": str | int | float, **_NUMBERS}]}
_FORMS: dict[str, Any] = {
    **dict.fromkeys(("command", "preset", "digest", "status"), str),
    **dict.fromkeys(("seed", "schema"), int),
    **dict.fromkeys(("generalisation_length", "steps_to_solve"), int | None),
    "environment": dict,
    "selection": {"by": str, "values": {None: list}, "chosen": bool},
    "diagnostics": {None: dict},
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
"""Types that the readers of records require in each field; ``None`` stands for all entries without their own type."""


def _load(file: Path) -> Any:
    """Return the JSON in ``file``, with ``None`` for numbers that are not finite or larger than :data:`MAX_NUMBER`."""
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):  # reading a pipe or a device may block or never end
            raise UsageError(f"{file} is not a regular file")
        if found.st_size > MAX_BYTES:
            raise UsageError(f"{file} is too large for a run record: {found.st_size:,} bytes, at most {MAX_BYTES:,}")
        text = file.read_text(encoding="utf-8")
        content = json.loads(text, **_BOUNDED)
        if _SURROGATE.search(text):
            json.dumps(content, ensure_ascii=False).encode()  # fails for a lone surrogate, which is not valid text
        return content
    except OSError as error:
        raise UsageError(f"no run record at {file} ({error.strerror})") from None
    except UsageError:
        raise
    except (ValueError, RecursionError) as error:  # numbers with thousands of digits and deep nesting, too
        raise UsageError(f"{file} is damaged and cannot be read as JSON: {error}") from None


def _files(folder: Path, problems: list[str]) -> Iterator[Path]:
    """Yield the record files below ``folder``; add a line to ``problems`` for each folder that cannot be read."""
    seen = set()

    def note(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):  # a file, or a folder that is now removed
            problems.append(f"the folder {error.filename} cannot be read ({error.strerror})")

    for place, below, files in os.walk(folder, onerror=note, followlinks=True):
        found = Path(place).stat()
        identity = (found.st_dev, found.st_ino)
        if identity in seen:  # several links lead to this folder, or a link leads back to it
            below.clear()
            continue
        seen.add(identity)
        below.sort()
        if FILE in files:
            yield Path(place) / FILE


def _problem(content: dict[str, Any]) -> str | None:
    """Return the reason why ``content`` is not a valid record, or ``None`` if it is valid."""
    fields = {field.name: field for field in dataclasses.fields(RunRecord)}
    for name in (name for name in content if name not in fields):
        return f"{name!r} does not belong there"
    required = [name for name, field in fields.items() if field.default is field.default_factory or name == "status"]
    form = {name: _FORMS[name] for name in [*required, *content]}
    # ``cost`` is empty if the run was not timed, ``selection`` if no settings were selected
    form |= {name: dict for name in ("cost", "selection") if not content.get(name)}
    if problem := mismatch({"cost": {}, "selection": {}, **content}, form):
        return f"it{problem}" if problem[0] == " " else problem[1:]
    version = content.get("environment", {}).get("lrtasks")
    if not isinstance(version, str | None):
        return f"environment.lrtasks must be str, found {version!r}"
    for slices in (content.get("slices", {}), *content.get("further_slices", {}).values()):
        if any(row.keys() <= {"label", "elements"} for rows in slices.values() for row in rows):
            return "slices has a row without a score"
    if content["status"] not in STATUSES:
        return f"'status' must be one of {', '.join(STATUSES)}, found {content['status']!r}"
    return None


def mismatch(value: Any, form: Any) -> str | None:
    """Return where and why a value does not match a form (such as :data:`_FORMS`), or ``None`` if it matches."""
    if not isinstance(form, dict | list):
        return None if isinstance(value, form) else f" must be {getattr(form, '__name__', form)}, found {value!r}"
    if not isinstance(value, type(form)):
        table = isinstance(form, list) and isinstance(form[0], dict)
        return f" must be {'columns of equal length' if table else type(form).__name__}, found {value!r}"
    for name in form if isinstance(form, dict) else ():
        if name not in value and name is not None:
            return f" lacks {name!r}"
    for name, entry in value.items() if isinstance(value, dict) else enumerate(value):
        wanted = form[0] if isinstance(form, list) else form.get(name, form.get(None, object))
        if wanted is _NUMBER and type(entry) is float:  # a short cut for most values of a record
            continue
        if problem := mismatch(entry, wanted):
            return f".{name}{problem}"
    return None


def _bounded(number: float) -> float | None:
    return number if -MAX_NUMBER < number < MAX_NUMBER else None


_BOUNDED: dict[str, Any] = {
    "parse_float": lambda number: _bounded(float(number)),
    "parse_int": lambda number: _bounded(int(number)),
    "parse_constant": lambda _: None,
}
"""How JSON is read: numbers that are not finite, or larger than :data:`MAX_NUMBER`, become ``None``."""
