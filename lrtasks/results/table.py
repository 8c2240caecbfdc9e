"""Tables of tasks × models from a frame of runs, with scores, floors, costs and the papers' scores.

Runs are aggregated only if they differ in nothing but the seed. Labels of rows show the settings that differ in task
and budget; labels of columns show those that differ in the model's own settings.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import pandas as pd

from lrtasks.errors import UsageError
from lrtasks.metrics import TEST_SOLVED, scaled_score
from lrtasks.record import NOT_COMPARABLE
from lrtasks.results.formats import TextTable, number
from lrtasks.results.settings import any_object, as_given, labels, owned, require_equal_budgets, settings_in
from lrtasks.results.statistics import bootstrap, half_width

Row = Mapping[str, Any]
"""One row of a frame of runs or of cells; missing values are ``None``."""

CELL = ["row", "column"]
COUNTS = ["parameter_count", "state_bytes"]
MEASURED = ["seconds_per_step", "peak_memory_bytes"]
PAPER = ["paper", "paper_source", "paper_where", "paper_differs"]
ENTRY = (
    *("task", "task_version", "task_parameters", "model", "model_parameters", "preset", "budget", "selected", "metric"),
    *("score", "score_low", "score_high", "score_std", "median", "median_low", "median_high", "solved", "scaled_score"),
    *("tests", "generalisation_length", "steps_to_solve", "samples_to_solve", "batch_mean", "batch_std"),
    *("seeds", "statuses", "floor", "floor_name", *PAPER, *COUNTS, "seconds_per_step", "devices", "row", "column"),
)
"""Fields of a cell in CSV and JSON; ``row`` and ``column`` are the labels of task and model in the table."""
REACHED: dict[str, tuple[float, Literal["lower", "higher"]]] = {
    "generalisation_length": (0, "lower"),
    "steps_to_solve": (math.inf, "higher"),
    "samples_to_solve": (math.inf, "higher"),
}
"""Columns that a run with a score may lack, and that a diverged run always lacks. In their median, the first entry
replaces a missing value; the second entry is the middle value to take from an even number of values."""


def arrange(runs: pd.DataFrame, *, unequal_budgets: bool = False) -> pd.DataFrame:
    """Return the runs with two more columns, ``row`` and ``column``: ordered categories of the labels in a table.

    Args:
        runs: at least one row of :func:`lrtasks.results.frame`.
        unequal_budgets: allow runs on one task that differ in the shared part of their budgets
            (:data:`lrtasks.budget.SHARED_BUDGET`); each budget gets its own row.

    Raises:
        UsageError: if there are no runs, or budgets are unequal and ``unequal_budgets`` is false.
    """
    if not len(runs):
        raise UsageError("a table needs at least one run record")
    if not unequal_budgets:
        first = plain_rows(runs.drop_duplicates("setup")[["setup", "model", "seed"]])
        pairs = ((run_name(run), json.loads(run["setup"])) for run in first)
        require_equal_budgets(pairs, "--unequal-budgets allows both in one table")
    places = {"row": by_label(runs["setup"]), "column": by_label(runs["variant"], runs["setup"])}
    return runs.assign(**places).sort_values([*CELL, "seed"], kind="stable")


def by_label(texts: pd.Series, *among: pd.Series) -> pd.Categorical:
    """Return the labels of setups or variants (columns of a frame of runs) as ordered categories.

    A label shows the settings that differ. With columns ``among``, settings are compared only within runs that are
    equal in one of these columns: variants that share no row (preset values per task) may share a label. In all but the
    first column, Python objects without a file count as equal, since their digests differ in every run.
    """
    settings = {text: settings_in(text) for text in texts.unique()}
    groups = [
        [settings[text] if place == 0 else any_object(settings[text]) for text in own.unique()]
        for place, column in enumerate(among)
        for _, own in texts.groupby(column)
    ]
    found = dict(zip(settings, labels(list(settings.values()), groups or None), strict=True))
    order = sorted(dict(found.values()).items(), key=lambda entry: entry[1])
    # pandas' text type refuses invalid Unicode
    named = pd.Series([found[text][0] for text in texts], dtype=object)
    return pd.Categorical(named, pd.Index([text for text, _ in order], dtype=object), ordered=True)


def aggregate(runs: pd.DataFrame, *, mean: bool = False) -> pd.DataFrame:
    """Return one row per table cell, in the table's order, from runs that :func:`arrange` has arranged.

    A row has the values that the runs of a cell share (task, model, metric, floor, counts, the paper's score), and:

    - ``score``, ``scaled_score``, ``batch_mean``, ``batch_std``: means over seeds; ``score_std``: the standard
      deviation over seeds; ``score_low`` and ``score_high``: the 95 % interval of the mean score by Student's t;
    - ``median``: the median score (if seeds fall into two groups, no seed has a score near the mean);
      ``median_low`` and ``median_high``: the interval of this median by bootstrap over seeds and test samples;
      ``scaled_median``: the scaled score of this median; further tests: medians;
    - ``generalisation_length``, ``steps_to_solve``, ``samples_to_solve``: medians, missing if half of the seeds or more
      have none;
    - ``centre`` and ``centre_low``: the shown score and the lower end of its interval. The shown score is the mean,
      with its ``half_width``, if ``mean`` is set, if there is one seed, or if there is no scaled score. Otherwise, it
      is the median;
    - ``scored`` and ``solved``: number of seeds with a score, and of solved seeds (missing without a scaled score);
      ``different_seeds``: number of seeds. ``seeds`` may contain a seed twice, if its two runs have different outcomes;
    - ``seconds_per_step`` and ``peak_memory_bytes``: means over runs, missing if the runs used several devices;
    - ``paper_beside``: the paper's score, missing if the paper's setup differs from that of the runs;
    - ``devices``, ``outcomes``, ``statuses``, ``unscored`` (statuses of the runs without a score), ``not_causal``
      (whether a run is), and ``not_possible``: the further tests on which the model could not run.
    """
    tests = [name for name in runs if name.startswith("test.")]
    names = [name.removeprefix("test.") for name in tests]
    numbers = ["score", "score_error", "scaled_score", "solved", "batch_mean", "batch_std"]
    medians = [*REACHED, *tests]
    own = runs.groupby(CELL, observed=True)
    found = runs[[*numbers, *medians]].astype(float)
    ended = found["scaled_score"].notna() | runs["status"].eq("diverged")
    for name, (never, _) in REACHED.items():
        found[name] = found[name].mask(found[name].isna() & ended, never)
    # a seed with two runs counts once, with the mean of both
    by_seed = found.groupby([runs[name] for name in (*CELL, "seed")], observed=True).mean()
    seeds = by_seed.groupby(CELL, observed=True)
    shared = ["task", "task_version", "setup", "model", "variant", "preset", "metric", *COUNTS, *PAPER]
    shared += ["selected", "selected_at_end", "baseline", *(name for name in runs if name.startswith("budget."))]
    cells = own[shared].first()
    # each seed has its own floor, because baselines are fitted on the training samples of the seed
    floors = runs["floor"].astype(float).groupby([runs["row"], runs["seed"]], observed=True).mean()
    floors = floors.groupby("row", observed=True).median()
    cells["floor"] = floors[cells.index.get_level_values("row")].to_numpy()
    cells["baseline"] = cells["baseline"].fillna(cells["baseline"].groupby("row", observed=True).transform("first"))
    cells[["score", *numbers[2:]]] = seeds[["score", *numbers[2:]]].mean()
    cells[["median", *tests]] = seeds[["score", *tests]].median()
    pairs = zip(cells["median"], cells["floor"], strict=True)
    cells["scaled_median"] = [math.nan if math.isnan(sum(pair)) else scaled_score(*pair) for pair in pairs]
    for name, (never, side) in REACHED.items():
        reached = seeds[name].quantile(0.5, interpolation=side)
        cells[name] = reached.where(reached != never)
    cells["score_std"], cells["scored"] = seeds["score"].std(), seeds["score"].count()
    width = half_width(cells["score_std"], cells["scored"])
    cells["score_low"], cells["score_high"] = cells["score"] - width, cells["score"] + width
    cells[["median_low", "median_high"]] = [
        bootstrap(*(list(found[name].dropna()) for name in ("score", "score_error"))) or (math.nan, math.nan)
        for _, found in seeds
    ]
    cells["solved"] = by_seed["solved"].eq(1).groupby(CELL, observed=True).sum().where(cells["solved"].notna())
    cells["different_seeds"] = seeds.size()
    means = cells["solved"].isna() | (cells["different_seeds"] == 1) | mean
    cells["centre"], cells["half_width"] = cells["score"].where(means, cells["median"]), width.where(means)
    cells["centre_low"] = cells["score_low"].where(means, cells["median_low"]).fillna(cells["centre"])
    cells["shows_mean"] = means
    cells["selected"] = own["selected"].agg(_joined)
    for name, column in (("seeds", "seed"), ("statuses", "status"), ("outcomes", "outcome")):
        cells[name] = own[column].agg(list)
    cells["unscored"] = [list(found["status"][found["score"].isna()]) for _, found in own]
    cells["not_causal"] = [bool(found.eq(True).any()) for _, found in own["not_causal"]]
    cells["not_possible"] = [  # the name of a test may contain a comma
        {name for name in names if any(f",{name}," in f",{text}," for text in set(found.dropna()))}
        for _, found in own["not_possible"]
    ]
    cells["devices"] = [sorted(set(found.dropna())) for _, found in own["device"]]
    cells["paper_beside"] = cells["paper"].where(cells["paper_differs"].fillna("") == "")
    cells[MEASURED] = own[MEASURED].mean().where(cells["devices"].str.len() < 2)
    return cells.reset_index()


def shown(cell: Row) -> str:
    """Return a cell's score as text: the median and the number of solved seeds, or the mean and its interval.

    Remarks in brackets name selected settings, runs without a score, and seeds with several runs.
    """
    if cell["score"] is None:
        return "/".join(sorted(set(cell["outcomes"])))
    remarks = [] if cell["shows_mean"] else [f"{cell['solved']:.0f}/{cell['different_seeds']}"]
    remarks += [f"{name} {as_given(value)}" for name, value in json.loads(cell["selected"] or "{}").items()]
    remarks += unscored(cell, "no score")
    remarks += [f"seed {seed} {count} times" for seed, count in Counter[int](cell["seeds"]).items() if count > 1]
    text = number(cell["centre"], 3) + ("" if cell["half_width"] is None else f" ±{number(cell['half_width'], 3)}")
    return text + (f" ({', '.join(remarks)})" if remarks else "")


def _joined(selected: Iterable[str]) -> str:
    """Return the selected settings of the runs of a cell, as JSON; different values of a setting make one text."""
    found: dict[str, list[Any]] = {}
    for text in dict.fromkeys(filter(None, selected)):
        for name, value in json.loads(text).items():
            if value not in found.setdefault(name, []):
                found[name].append(value)
    settings = {
        name: values[0] if len(values) == 1 else " or ".join(map(as_given, values)) for name, values in found.items()
    }
    return json.dumps(settings) if settings else ""


def unscored(cell: Row, without: str, between: str = " ") -> list[str]:
    """Return the number of runs without a score by status, as texts; ``without`` names finished runs without one."""
    found = Counter(without if status == "done" else status for status in cell["unscored"])
    return [f"{count}{between}{status}" for status, count in sorted(found.items())]


@dataclass(frozen=True)
class Table:
    """Runs as tasks × models; cells may be missing.

    The runs are those of :func:`arrange`. Cells of several seeds show the median and the number of solved seeds, or
    with ``mean`` the mean ± its interval.
    """

    runs: pd.DataFrame
    mean: bool = False

    @cached_property
    def cells(self) -> list[Row]:
        """The cells (:func:`aggregate`), row by row."""
        return plain_rows(aggregate(self.runs, mean=self.mean))

    def labels(self, axis: str) -> list[str]:
        """Return the labels of the rows (``row``) or columns (``column``), in order."""
        return list(self.runs[axis].cat.categories)

    def along(self, axis: str) -> dict[str, list[Row]]:
        """Return the cells of each row (``row``) or column (``column``), by label."""
        return {name: [cell for cell in self.cells if cell[axis] == name] for name in self.labels(axis)}

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat entry per cell, for CSV and JSON."""
        entries = []
        for cell in self.cells:
            entry = {**cell, "budget": owned("budget.", cell), "floor_name": cell["baseline"]}
            entry |= {name: None if cell[name] is None else int(cell[name]) for name in (*COUNTS, "solved")}
            entry["task_parameters"] = owned("task ", json.loads(cell["setup"]))
            entry["model_parameters"] = owned("model ", json.loads(cell["variant"]))
            entry["selected"] = json.loads(cell["selected"] or "{}")
            entry["tests"] = {name: score for name, score in owned("test.", cell).items() if score is not None}
            entries.append({name: entry[name] for name in ENTRY})
        return entries

    def scores(self) -> TextTable:
        """Return the table of scores: task, metric, floor, then each model's score and the paper's score."""
        papers = {cell["column"] for cell in self.cells if cell["paper_beside"] is not None}
        header, joined, best = ["task", "metric", "floor"], set[int](), set[tuple[int, int]]()
        for name in self.labels("column"):
            header.append(name)
            if name in papers:
                joined.add(len(header))
                header.append("paper")
        lines: list[list[str]] = []
        for row, cells in self.along("row").items():
            here = {cell["column"]: cell for cell in cells}
            floor = cells[0]["floor"]
            leading = _best(cells, -math.inf if floor is None else floor)
            line = [row, cells[0]["metric"], f"{number(floor, 3)} {cells[0]['baseline'] or ''}".strip()]
            for name in self.labels("column"):
                cell = here.get(name)
                if name in leading:
                    best.add((len(lines), len(line)))
                line.append(shown(cell) if cell else "")
                if name in papers:
                    line.append(number(cell["paper_beside"]) if cell else "")
            lines.append(line)
        return TextTable(header, lines, frozenset(joined), frozenset(best))

    def costs(self) -> TextTable:
        """Return the table of costs: for each model the range over the rows."""
        lines = []
        for name, cells in self.along("column").items():
            runs = self.runs[self.runs["column"] == name]
            counts, states = (_range(cell[column] for cell in cells) for column in COUNTS)
            speeds, devices = _range(1e3 * runs["seconds_per_step"].dropna()), sorted(set(runs["device"].dropna()))
            lines.append([name, counts, states or ("none" if counts else ""), speeds, "; ".join(devices)])
        return TextTable(["model", "parameters", "state bytes", "ms per step", "device"], lines)

    def by_length(self) -> TextTable | None:
        """Return the median scores on the test and on each further test, one line per task and model.

        The last column has the generalisation length. Without further tests the result is ``None``.
        """
        scored = self.runs.filter(regex=r"^test\.").dropna(axis="columns", how="all")
        names = {name.removeprefix("test.") for name in scored}.union(*(cell["not_possible"] for cell in self.cells))
        # by length, then all others by name
        tests = sorted(names, key=lambda name: (length_of_test(name, 1) or math.inf, name))
        lines = []
        for cell in self.cells:
            impossible, length = cell["not_possible"], cell["generalisation_length"]
            found = [number(cell.get(f"test.{name}"), 3) for name in tests]
            marks = [" (not for every seed)" * (name in impossible) for name in tests]
            scores = [
                score + mark if score else "not possible" * bool(mark) for score, mark in zip(found, marks, strict=True)
            ]
            if any(scores):
                reached = "none" if length is None else f"{length:,.0f}"
                lines.append([cell["row"], cell["column"], number(cell["median"], 3), *scores, reached])
        return TextTable(["task", "model", "test", *tests, "generalisation length"], lines) if lines else None

    def notes(self) -> list[str]:
        """Return the notes below the tables, which explain the scores."""
        scored = [cell for cell in self.cells if cell["scored"]]
        with_mean = [cell for cell in scored if cell["shows_mean"]]
        counts = sorted({cell["scored"] for cell in with_mean})
        means, notes = self.mean or any(cell["solved"] is None for cell in scored), []
        if not self.mean and any(cell["solved"] is not None and cell["different_seeds"] > 1 for cell in scored):
            solved = f"a scaled score of at least {TEST_SOLVED:g}"
            without = "; seeds without a score do not count in the median" if any(c["unscored"] for c in scored) else ""
            notes.append(f"(k/n): the score is the median over n seeds, of which k have {solved}{without}")
        several = [str(count) for count in counts if count > 1]
        if several and means:
            seeds = " to ".join(dict.fromkeys((several[0], several[-1])))
            notes.append(f"±: half the 95 % interval of the mean over {seeds} seeds (Student t), seeds alone")
        if 1 in counts and means:
            notes.append("without ±: a single seed, which has no interval")
        at_end = [cell for cell in scored if cell["selected_at_end"]]
        if at_end:
            names = ", ".join(sorted({name for cell in at_end for name in cell["selected_at_end"].split(",")}))
            unsolved = sum((cell["solved"] or 0) < cell["different_seeds"] for cell in at_end)
            count = f"{len(at_end)} of {sum(bool(cell['selected']) for cell in scored)} cells"
            said = f"{count} chose the lowest or highest {names} that was tried: a value beyond it may be better"
            notes.append(f"{said} ({unsolved} of these cells are not solved by every seed)")
        unfair = [f"{cell['column']} on {cell['row']}" for cell in scored if cell["not_causal"]]
        notes += [f"{NOT_COMPARABLE}: {', '.join(unfair)}"] if unfair else []
        with_paper = [cell for cell in self.cells if cell["scored"] or cell["paper_beside"] is not None]
        return [*notes, *versions_note(self.runs["version"]), *paper_notes(with_paper)]

    def tables(self, *, transpose: bool = False, by_length: bool = False) -> list[TextTable]:
        """Return the table of scores (``transpose``: models as rows), costs, and with ``by_length`` further tests."""
        scores, further = self.scores(), self.by_length() if by_length else None
        return [scores.transposed() if transpose else scores, self.costs(), *([further] if further else [])]


def _best(cells: Sequence[Row], floor: float) -> set[str]:
    """Return the columns of the best score and of all scores within its interval or equal to three decimals.

    All of them are above the floor. The result is empty if fewer than two cells have a score. A model that is not
    causal on a causal task does not count.
    """
    fair = [cell for cell in cells if cell["scored"] and not cell["not_causal"]]
    centres = {cell["column"]: (cell["centre"], cell["centre_low"]) for cell in fair}
    if len(centres) < 2:
        return set()
    top, lowest = max(centres.values(), key=lambda centre: centre[0])
    lowest = min(round(top, 3), lowest)
    return {name for name, (centre, _) in centres.items() if centre > floor and max(centre, round(centre, 3)) >= lowest}


def length_of_test(name: str, trained: int) -> int | None:
    """Return the length of a further test: ``512``, or ``4x`` the trained length; ``None`` for other tests."""
    number = name.removesuffix("x")
    return int(number) * (trained if name.endswith("x") else 1) if number.isdecimal() else None


def make_table(runs: pd.DataFrame, *, unequal_budgets: bool = False, mean: bool = False) -> Table:
    """Arrange a frame of runs as tasks × models; see :func:`arrange`, and :class:`Table` for ``mean``."""
    return Table(arrange(runs, unequal_budgets=unequal_budgets), mean)


def plain_rows(frame: pd.DataFrame) -> list[Row]:
    """Return a frame's rows without the parameters of task and model; missing values are ``None``."""
    plain = frame[[name for name in frame if not name.startswith(("task.", "model."))]].astype(object)
    return plain.where(plain.notna(), None).to_dict("records")


def run_name(run: Row) -> str:
    """Return model and seed of a run, for a message."""
    return f"{run['model']} seed {run['seed']}"


def versions_note(versions: Iterable[str | None]) -> list[str]:
    """Return a note if several versions of lrtasks made the runs; an empty list for one version."""
    known = sorted(filter(None, set(versions)), key=lambda version: [int(part) for part in re.findall(r"\d+", version)])
    return [f"made by lrtasks {' and '.join(known)}, whose models may differ"] if len(known) > 1 else []


def paper_notes(cells: Collection[Row]) -> list[str]:
    """Return notes with the sources of the papers' scores in the table, and with papers' scores of other setups."""
    beside, elsewhere = set[str](), dict[str, dict[str, dict[str, None]]]()
    for cell in cells:
        source = f"{cell['paper_source']} ({cell['paper_where']})"
        if cell["paper_differs"]:
            figures = elsewhere.setdefault(source, {}).setdefault(cell["task"], {})
            figures[f"{cell['model']} {number(cell['paper'])}"] = None
        elif cell["paper"] is not None:
            beside.add(source)
    notes = [f"paper: {'; '.join(sorted(beside))}"] if beside else []
    for source, tasks in sorted(elsewhere.items()):
        said = "; ".join(f"{task}: {', '.join(figures)}" for task, figures in tasks.items())
        notes.append(f"not comparable: {source}: {said}")
    return notes


def _range(values: Iterable[float | None]) -> str:
    """Return the smallest and the largest value as text, or one value if the two look equal."""
    found = [value for value in values if value is not None]
    return " – ".join(dict.fromkeys([number(min(found)), number(max(found))] if found else []))
