"""All runs as one pandas data frame, the input of tables, comparisons and charts."""

from __future__ import annotations

import io
import json
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from lrtasks.errors import PACKAGE, UsageError, in_one_line
from lrtasks.files import write_output
from lrtasks.generators.base import SPLITS
from lrtasks.metrics import TEST_SOLVED, scaled_score
from lrtasks.record import NOT_CAUSAL, RunRecord, read_records, split_selected
from lrtasks.results.reported import reported_figure
from lrtasks.results.settings import cell_of, key

COLUMNS = {
    "folder": "the run's folder",
    "command": "the command that repeats the run",
    "status": "done, diverged, failed, running or interrupted",
    "outcome": "the status, with the number of steps if the run has not ended; 'no score' if it is done without one",
    "task": "name of the task; its parameters are in the columns task.NAME",
    "task_version": "version of the task's samples",
    "data": "digest of a stored dataset; none: fresh samples",
    "address": "value for --model; none for a Python object",
    "model": "name of the model; its hyper-parameters are in the columns model.NAME",
    "preset": "the preset that supplied the values that the user did not set",
    "seed": "seed of initialisation and training stream; the budget is in the columns budget.NAME",
    "metric": "name of the headline score",
    "score": "headline score on the test stream; only of runs that are done",
    "score_error": "standard error of the score over test samples, by bootstrap",
    "selected": "JSON of the selected settings and their values; empty without a selection",
    "selected_at_end": "selected settings whose value is the smallest or largest number tried, separated by commas",
    "candidates": "number of settings from which validation chose; none without a selection",
    "generalisation_length": "largest tested length (in input positions) up to which the scaled score is at least 0.9",
    "steps_to_solve": "step of the first of two evaluations in a row with a scaled validation score of at least 0.99",
    "samples_to_solve": "training samples up to that step",
    "val_score": "headline score on the validation stream",
    "batch_mean": "mean of the headline score over test batches",
    "batch_std": "its standard deviation over test batches",
    "baseline": "name of the best trivial baseline on the test stream",
    "floor": "headline score of that baseline",
    "scaled_score": "(score - floor) / (1 - floor): 0 is no better than the baseline, 1 is perfect",
    "solved": "1 if the scaled score is at least 0.95, 0 if not",
    "not_possible": "further tests on which the model could not run; scores of the others: test.NAME, scaled.NAME",
    "not_causal": "whether outputs change with later inputs although the task is causal: the score is not comparable",
    "steps": "training steps up to the last evaluation",
    "seconds": "seconds of training",
    "seconds_per_step": "seconds of one training step",
    "peak_memory_bytes": "peak memory: allocated on the GPU; on a CPU, of the whole process, including the interpreter",
    "device": "device on which the run was timed",
    "parameter_count": "number of trained values; a complex value counts twice",
    "state_bytes": "bytes of streaming state; none without a streaming form",
    "paper": "the paper's score of this task and model, at the nearest length",
    "paper_source": "paper and table",
    "paper_where": "the paper's length, width, number of training samples and averaging",
    "paper_differs": "settings in which the run differs from the paper; empty: the scores are comparable",
    "version": "version of lrtasks that made the run",
    "setup": "JSON of what compared runs share: task, version, data and the shared part of the budget",
    "variant": "JSON of the model, its hyper-parameters and its own part of the budget",
}
"""The columns of :func:`frame`. Missing values are NaN or ``None``."""

OUTCOME = ["setup", "variant", "seed", "status", "score", "val_score", "steps", "seconds", "seconds_per_step"]
"""Records with equal values in these columns are copies of one run."""


def frame(*folders: str | Path) -> pd.DataFrame:
    """Return all runs below ``folders``, one row each: :data:`COLUMNS` and a column per parameter and budget field.

    Copies of a record count as one run. A file that cannot be read as a record is left out with a warning. A file
    written by :func:`write_frame` (``.parquet``) can replace the folders of its runs.

    Raises:
        UsageError: without arguments, for an argument that is no path, for a folder that is missing, or if there is no
            record.
    """
    if not folders:
        raise UsageError("frame takes at least one folder, found none")
    for folder in folders:
        if not isinstance(folder, (str, os.PathLike)):
            raise UsageError(f"frame takes folders, each as a separate argument, found {folder!r}")
    found, problems = read_frame([Path(folder) for folder in folders])
    for problem in problems:
        warnings.warn(f"left out: {problem}", stacklevel=2)
    return found


def read_frame(folders: Sequence[Path]) -> tuple[pd.DataFrame, list[str]]:
    """Return the data frame as :func:`frame` does, and a line for each file that cannot be read as a record."""
    for file in folders:
        if file.suffix == ".csv":
            raise UsageError(f"cannot read {file}: a frame that is read again must be written as .parquet")
    others = [folder for folder in folders if folder.suffix != ".parquet"]
    frames, problems = [_read_written(file) for file in folders if file not in others], list[str]()
    if others or not frames:
        runs, problems = read_runs(others)
        frames.append(make_frame(runs))
    joined = frames[0] if len(frames) == 1 else pd.concat(frames, ignore_index=True)
    if len(frames) > 1:  # columns that a frame lacks
        texts = joined.select_dtypes(object)
        joined = joined.assign(**texts.where(texts.notna(), None)).copy()  # pandas warns of many single columns
    return joined[~joined.duplicated(OUTCOME)], problems


def read_runs(folders: Sequence[Path]) -> tuple[list[tuple[Path, RunRecord]], list[str]]:
    """Return folders and records of all runs, each folder once, and a line for each file that cannot be read.

    Raises:
        UsageError: for a folder that is missing, for a frame in place of a folder, or if there is no record.
    """
    runs: dict[Path, tuple[Path, RunRecord]] = {}
    problems: dict[str, None] = {}
    for folder in folders:
        if folder.suffix == ".parquet" and folder.is_file():
            raise UsageError(f"{folder} is a frame, which lacks the records; here, name the folders of its runs")
        found, unreadable = read_records(folder)
        problems.update(dict.fromkeys(unreadable))
        for path, record in found:
            runs.setdefault(path.resolve(), (path, record))
    if not runs:
        unread = f" that can be read; {len(problems)} cannot: {next(iter(problems))}" if problems else ""
        raise UsageError(f"no run records below {', '.join(map(str, folders))}{unread}")
    return list(runs.values()), list(problems)


def published() -> Path:
    """Return the path of the frame of the published runs, in an installed package or in a checkout.

    Raises:
        UsageError: if there are none.
    """
    for file in (PACKAGE / "published.parquet", PACKAGE.parent / "results" / "published.parquet"):
        if file.is_file():
            return file
    raise UsageError("this installation has no published runs; name a folder of runs with --published")


def write_frame(runs: pd.DataFrame, file: Path) -> None:
    """Write a frame as ``.parquet``, with the descriptions of :data:`COLUMNS`, or ``.csv``.

    In a column of lists, of values of several types, or with an integer of more than 64 bits, each value is JSON.

    Raises:
        UsageError: for another file suffix, or if the file cannot be written.
    """
    columns, texts, buffer = {name: runs[name].tolist() for name in runs}, set[str](), io.BytesIO()
    for name, values in columns.items():
        if name == "folder":  # a name that is not UTF-8
            columns[name] = [value and os.fsencode(value).decode(errors="backslashreplace") for value in values]
        kinds = {type(value) for value in values if value is not None}
        large = any(isinstance(value, int) and not -(2**63) <= value < 2**63 for value in values)
        if large or (runs[name].dtype == object and (len(kinds) > 1 or kinds & {tuple, dict, list})):
            columns[name] = [None if value is None else json.dumps(value) for value in values]
            texts.add(name)
    if file.suffix == ".csv":
        pd.DataFrame(columns, dtype=object).to_csv(buffer, index=False)
    elif file.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.table(columns)
        described = []
        for field in table.schema:
            said = {"description": COLUMNS.get(field.name) or ": ".join(field.name.split(".", 1))}
            described.append(field.with_metadata(said | ({"json": "true"} if field.name in texts else {})))
        schema = pa.schema(described)
        pq.write_table(table.cast(schema), buffer, compression="zstd", write_statistics=False)
    else:
        raise UsageError(f"a frame is written as .parquet or .csv, found {file}")
    write_output(file, buffer.getvalue())


def _read_written(file: Path) -> pd.DataFrame:
    """Read a frame that :func:`write_frame` wrote."""
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(file)
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the frame {file}: {in_one_line(error)}") from None
    columns = {}
    for field, values in zip(table.schema, table.columns, strict=True):
        found = values.to_pylist()
        if b"json" in (field.metadata or {}):
            try:
                found = [None if value is None else json.loads(value) for value in found]
            except (ValueError, TypeError, RecursionError):
                raise UsageError(f"cannot read the frame {file}: the column {field.name!r} is damaged") from None
        elif str(field.type) == "double":
            found = [math.nan if value is None else value for value in found]
        columns[field.name] = _column(found)
    for name in (*OUTCOME, "metric"):
        if name not in columns:
            raise UsageError(f"{file} is not a frame of runs: it has no column {name!r}")
    later = {name: None for name in COLUMNS if name not in columns}  # an earlier version may have written the file
    return pd.DataFrame({**columns, **later})


def make_frame(runs: Sequence[tuple[Path | None, RunRecord]]) -> pd.DataFrame:
    """Return the data frame of :func:`frame` from folders and records; the index is the run's position in ``runs``."""
    plain, rows = {cell_of(record) for _, record in runs if not record.selection}, dict[int, dict[str, Any]]()
    for place, (folder, found) in enumerate(runs):
        rejected = not found.selection.get("chosen", True)
        record = replace(found, selection={}) if rejected else found
        # a run that a selection rejected is a result only if runs without a selection have the same settings
        if not rejected or cell_of(record) in plain:
            rows[place] = _row(folder, record)
    names = dict.fromkeys([*COLUMNS, *(name for row in rows.values() for name in row)])
    # a run without a further test has no score on it; with None, the column would not hold numbers
    lacking = {name: math.nan for name in names if name.startswith(("test.", "scaled."))}
    made = pd.DataFrame({name: _column([row.get(name, lacking.get(name)) for row in rows.values()]) for name in names})
    made.index = pd.Index(list(rows), dtype=int)
    return made[~made.duplicated(OUTCOME)]


def _column(values: list[Any]) -> pd.Series:
    """Return a numeric or boolean column, or one of type ``object``: pandas' text type refuses invalid Unicode.

    A list becomes a tuple, which can be hashed.
    """
    values = [tuple(value) if isinstance(value, list) else value for value in values]
    kinds = set(map(type, values))
    return pd.Series(values, dtype=None if kinds <= {int, float} or kinds == {bool} else object)


def _row(folder: Path | None, record: RunRecord) -> dict[str, Any]:
    task, model, cost, metric = record.task, record.model, record.cost, record.task["metric"]
    score, baseline, figure = record.headline(), record.best_baseline(), reported_figure(record)
    scaled = None if score is None or baseline is None else scaled_score(score, baseline[1])
    setup, variant = cell_of(record)
    tests = [name for name in record.scores if name not in SPLITS] if record.status == "done" else []
    tried = record.selection.get("values", {})
    left_out = record.selection.get("defaults", {})
    selected, _ = split_selected({**left_out, **record.budget, **model["parameters"]}, tried)
    steps = None if score is None else record.steps_to_solve  # a run that failed after its test has no result
    batch = record.budget.get("batch_size")
    samples = None if steps is None or batch is None else steps * batch
    numbers = {
        "score": score,
        "val_score": record.headline("val"),
        "batch_mean": record.score(f"{metric}_batch_mean"),
        "batch_std": record.score(f"{metric}_batch_std"),
        "floor": baseline[1] if baseline else None,
        "score_error": None if score is None else record.errors.get("test"),
        "scaled_score": scaled,
        "solved": None if scaled is None else scaled >= TEST_SOLVED,
        **{name: cost.get(name) for name in ("seconds", "seconds_per_step", "peak_memory_bytes")},
        "parameter_count": model["count"],
        "generalisation_length": None if score is None else record.generalisation_length,
        "steps_to_solve": steps,
        "samples_to_solve": samples,
        "candidates": math.prod(map(len, tried.values())) if tried else None,
        "state_bytes": model["state_bytes"],
        "paper": figure.get("paper"),
        **{f"test.{name}": record.headline(name) for name in tests},
        **{f"scaled.{name}": record.scaled.get(name) for name in tests},
    }
    owned = {"task": task["parameters"], "model": model["parameters"], "budget": record.budget}
    return {
        "folder": None if folder is None else str(folder),
        **{name: getattr(record, name) for name in ("command", "status", "preset", "seed")},
        "outcome": record.outcome(),
        "task": task["name"],
        "task_version": task["version"],
        "data": task.get("data"),
        "address": model.get("address"),
        "model": model["name"],
        "metric": metric,
        "not_causal": any(note.startswith(NOT_CAUSAL) for note in record.notes),
        "steps": record.steps(),
        "baseline": baseline[0] if baseline else None,
        "device": cost.get("device"),
        **{name: figure.get(name) for name in ("paper_source", "paper_where", "paper_differs")},
        "version": record.environment.get("lrtasks"),
        "selected": key(selected) if record.selection else "",
        "selected_at_end": ",".join(name for name, value in selected.items() if _at_end(value, tried[name])),
        "not_possible": ",".join(name for name in tests if not record.scores[name]),
        "setup": setup,
        "variant": variant,
        **{name: math.nan if value is None else float(value) for name, value in numbers.items()},
        **{f"{owner}.{name}": value for owner, found in owned.items() for name, value in found.items()},
    }


def _at_end(value: Any, tried: Sequence[Any]) -> bool:
    """Return whether a value is the smallest or largest of several numbers that were tried."""
    numbers = len(tried) > 1 and {type(entry) for entry in tried} <= {int, float}
    return numbers and value in (min(tried), max(tried))
