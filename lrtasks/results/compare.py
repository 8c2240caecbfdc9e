"""Comparison of two sets of runs by matched pairs.

On each task, Student's paired test is applied to the differences of the matched runs; the seeds are its sample. Over
all tasks, Wilcoxon's signed-rank test and the sign test are applied to the mean differences; the tasks are their
sample. Intervals come from a bootstrap over seeds and test samples. Runs with unequal budgets never match. A run whose
settings were selected on validation never matches a run whose settings were not.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lrtasks.budget import SHARED_BUDGET
from lrtasks.errors import UsageError, unknown
from lrtasks.record import NOT_COMPARABLE
from lrtasks.registry import file_digest
from lrtasks.results.formats import TextTable, number
from lrtasks.results.frame import OUTCOME
from lrtasks.results.settings import Settings, any_object, as_given, bare, distinguishing, labels, owned, settings_in
from lrtasks.results.statistics import bootstrap, holm, paired_t, sign_test, signed_rank
from lrtasks.results.table import Row, arrange, plain_rows, run_name, versions_note

DIGITS = 12
"""Differences are rounded to this number of digits, since rounding errors would make equal differences unequal."""
ENOUGH_TASKS = 6
"""Smallest number of tasks with unequal scores at which a test over tasks can give a p-value below 0.05."""
AHEAD = 0.05
"""One side is ahead if the corrected p-value is below this value and the interval of the difference excludes 0."""
NAMED = 3
"""Largest number of settings that a message on unequal runs names."""
NO_TASK = "they share no task"
"""End of the message for two models without a common task."""

Pair = tuple[Row, Row]
Matches = dict[tuple[str, str, int, str], Row]


@dataclass(frozen=True)
class Comparison:
    """Differences of the scores of two sets of runs (the sides A and B) where they match.

    Attributes:
        differences: one flat entry per task, parameters and budget, and also per model where runs of the same model are
            matched. It has the scores ``a`` and ``b`` by seed, and their mean ``difference``. ``difference_low`` and
            ``difference_high`` are its 95 % interval over seeds and test samples. ``p`` is the p-value of the paired
            test (``None`` for fewer than two pairs, or equal differences); ``p_holm`` is p, corrected for several
            tests. ``not_causal`` names the sides, ``a`` or ``b``, that are not causal although the task is; such an
            entry gets no verdict.
        left_out: reasons why runs are in no pair, one line each.
    """

    a: str
    b: str
    differences: Sequence[dict[str, Any]]
    left_out: Sequence[str]
    cautions: Sequence[str]

    def __post_init__(self) -> None:
        for entry, p in zip(self.differences, holm([entry["p"] for entry in self.differences]), strict=True):
            entry["p_holm"] = p

    @property
    def comparable(self) -> list[dict[str, Any]]:
        """The differences between models that are causal wherever the task is."""
        return [entry for entry in self.differences if not entry["not_causal"]]

    def by_task(self) -> dict[str, float]:
        """Return the mean difference of each task; several parameters or models of one task are averaged."""
        found: dict[str, list[float]] = {}
        for entry in self.comparable:
            found.setdefault(entry["task"], []).append(entry["difference"])
        return {task: round(sum(means) / len(means), DIGITS) for task, means in found.items()}

    def overall(self) -> dict[str, Any]:
        """Return the number of tasks on which each side is better, and the p-values of the tests over tasks."""
        differences = list(self.by_task().values())
        # differences of different metrics are comparable in sign, but not in size, so they cannot be ranked
        alike = len({entry["metric"] for entry in self.comparable}) == 1
        return {
            "tasks": len(differences),
            "a_better": sum(value > 0 for value in differences),
            "b_better": sum(value < 0 for value in differences),
            "p_signed_rank": signed_rank(differences) if alike else None,
            "p_sign": sign_test(differences),
        }

    @property
    def _single(self) -> bool:
        """Whether all differences are against one model, so that a test over tasks has a meaning."""
        return len({entry["model"] for entry in self.comparable}) == 1

    def content(self) -> dict[str, Any]:
        """Return the comparison as plain data, for JSON; ``overall`` is ``None`` if it has several models."""
        found = {"a": self.a, "b": self.b, "differences": list(self.differences)}
        return {**found, "overall": self.overall() if self._single else None, "left_out": list(self.left_out)}

    def table(self) -> TextTable:
        """Return a table with one line per difference; it names the model where runs of the same model are matched."""
        named = any(entry["model"] for entry in self.differences)
        header = ["task", *["model"] * named, "metric", "A", "B", "A - B", "95 % interval", "pairs", "p", "p (Holm)"]
        lines = []
        for entry in self.differences:
            count, interval = len(entry["seeds"]), (entry["difference_low"], entry["difference_high"])
            line = [entry["label"], *[entry["model"]] * named, entry["metric"]]
            line += [number(sum(entry[side]) / count, 3) for side in "ab"]
            line.append(number(entry["difference"], 3, signed=True))
            line.append("" if None in interval else " to ".join(number(end, 3, signed=True) for end in interval))
            no_test = "too few pairs" if count < 2 else "equal differences"
            line += [str(count), no_test if entry["p"] is None else f"{entry['p']:.2g}"]
            lines.append([*line, "" if entry["p_holm"] is None else f"{entry['p_holm']:.2g}"])
        return TextTable(header, lines)

    def notes(self) -> list[str]:
        """Return the notes below the table: the two sides, the overall result and the caveats."""
        notes = [f"A: {self.a}; B: {self.b}", *([self._over_tasks()] if self._single else []), *self.verdicts()]
        notes.append("95 % interval: bootstrap over seeds and test samples; too narrow for few seeds")
        if any(entry["p"] is not None for entry in self.differences):
            notes.append("p: Student's paired test over seeds, two-sided; Holm: corrected for several tests")
        for entry in self.differences:
            model = f"{entry['model']}: " if entry["model"] else ""
            notes += [f"{NOT_COMPARABLE}: {model}{side.upper()} on {entry['label']}" for side in entry["not_causal"]]
        return [*notes, *self.cautions, *(f"left out: {reason}" for reason in self.left_out)]

    def verdicts(self) -> list[str]:
        """Return in words on which tasks each side is ahead (:data:`AHEAD`), for each model."""
        found: dict[str, dict[str, list[str]]] = {}
        for entry in self.differences:
            sure = _differs(entry) and not entry["not_causal"]
            side = ("A" if entry["difference"] > 0 else "B") if sure else ""
            found.setdefault(entry["model"] or "", {}).setdefault(side, []).append(entry["label"])
        lines, open_ = [], []
        for model, sides in found.items():
            neither = len(sides.pop("", []))
            said = [f"{side} is ahead on {', '.join(tasks)}" for side, tasks in sorted(sides.items())]
            if not said:
                open_.append(model)
                continue
            said += [f"no verdict on {neither} task{'s' * (neither > 1)}"] if neither else []
            lines.append((f"{model}: " if model else "") + f"{'; '.join(said)} (p (Holm) < {AHEAD:g})")
        against = f" on any task against {', '.join(open_)}" if any(open_) else ""
        reason = f"no p (Holm) is below {AHEAD:g} with an interval that excludes 0"
        return [*lines, *([f"no verdict{against}: {reason}"] if open_ else [])]

    def _over_tasks(self) -> str:
        overall = self.overall()
        count, a, b = (overall[name] for name in ("tasks", "a_better", "b_better"))
        parts = [f"over {count} task{'s' * (count != 1)} A is better on {a}, B on {b}"]
        if overall["p_sign"] is None:
            return f"{parts[0]}; too few tasks for a test"
        if overall["p_signed_rank"] is not None:
            parts.append(f"Wilcoxon's signed-rank test p = {overall['p_signed_rank']:.2g}")
        parts.append(f"sign test p = {overall['p_sign']:.2g}")
        if a + b < ENOUGH_TASKS:
            parts.append(f"with {a + b} tasks that differ, p cannot be below {2 / 2 ** (a + b):.2g}")
        return "; ".join(parts)


def model_runs(name: str, runs: pd.DataFrame) -> tuple[str, pd.DataFrame]:
    """Return label and runs of one model.

    Args:
        name: label of the model's column in a table (``dlr (kernel=prod)``), or the model's name or address. After an
            edit, ``FILE.py:NAME`` means the runs of the file's present content, if there are any.
        runs: rows of :func:`lrtasks.results.frame`.

    Raises:
        UsageError: if no model has this name, or several columns have it.
    """
    found = by_column(runs)
    named = [text for text, own in found.items() if name in set(own[["model", "address"]].iloc[0])]
    matching = [name] if name in found else named
    if not matching:
        raise unknown("model", name, found)
    file = Path(name.rpartition(":")[0])
    if len(matching) > 1 and file.is_file():
        digest = file_digest(file.resolve())
        present = [text for text in matching if json.loads(found[text]["variant"].iloc[0]).get("source") == digest]
        matching = present or matching
    if len(matching) > 1:
        raise UsageError(f"model {name!r} has several settings; name one of: {', '.join(matching)}")
    return matching[0], found[matching[0]]


def by_column(runs: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the runs of each table column by label."""
    arranged = arrange(runs, unequal_budgets=True)
    return {label: own.sort_index() for label, own in arranged.groupby("column", observed=True)}


def compare(a: pd.DataFrame, b: pd.DataFrame, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """Compare the headline test scores of the runs that match.

    Two runs match if they have the same task, parameters, version, data, shared budget and seed, and if the same
    settings of both were selected on validation. If each side holds one model, the two models may differ; otherwise
    only runs of the same model match.

    Args:
        a: rows of :func:`lrtasks.results.frame`, as ``b``.
        names: names of the two sides in the output.

    Raises:
        UsageError: if no runs match, a run matches two others, or each run matches itself.
    """
    by_model = max(a["model"].nunique(), b["model"].nunique()) > 1
    of_a, of_b = sides = [_by_match(side, name, by_model) for side, name in zip((a, b), names, strict=True)]
    both = [(run, of_b[match]) for match, run in of_a.items() if match in of_b]
    if not both:
        raise UsageError(_nothing_in_common(sides, names))
    if all(run_a[name] == run_b[name] for run_a, run_b in both for name in OUTCOME):
        raise UsageError(f"{names[0]} and {names[1]} are the same runs")
    left_out = [
        f"{run_name(run)} on {run['task']}: {run['outcome']}" for pair in both for run in pair if run["score"] is None
    ]
    for side, other_side, name in ((of_a, of_b, names[0]), (of_b, of_a, names[1])):
        alone = Counter(run["task"] for match, run in side.items() if match not in other_side)
        left_out += [f"without a match: {count} of {name} on {task}" for task, count in sorted(alone.items())]
    grouped: dict[tuple[str, str | None], list[Pair]] = {}
    for pair in both:
        if all(run["score"] is not None for run in pair):
            grouped.setdefault((pair[0]["setup"], pair[0]["model"] if by_model else None), []).append(pair)
    if not grouped:
        raise UsageError(f"no pair of {names[0]} and {names[1]} has two scores: {'; '.join(left_out)}")
    setups = {setup: json.loads(setup) for setup, _ in grouped}
    label_of = dict(zip(setups, labels(list(setups.values())), strict=True))
    entries = [
        _difference(label_of[setup][0], model, setups[setup], grouped[setup, model])
        for setup, model in sorted(grouped, key=lambda group: (label_of[group[0]][1], group[1] or ""))
    ]
    notes = versions_note(run["version"] for pair in both for run in pair)
    notes += [*_mixed(grouped.values(), names), *_unequal_searches(grouped.values(), names)]
    return Comparison(*names, entries, left_out, notes)


def compare_with_each(runs: pd.DataFrame, others: pd.DataFrame, names: tuple[str, str]) -> Comparison:
    """Compare one model with each model of ``others``; the p-values are corrected for all these tests together.

    Args:
        runs: runs of one model.
        others: runs of any models. A model with the same runs as ``runs``, or without a match, is listed as left out.
            Of runs of one model that match each other (a cell that was run again), the first one counts.
        names: names of the two sides in the output.

    Raises:
        UsageError: if no model of ``others`` has a match.
    """
    found: list[Comparison] = []
    reasons: dict[str, str] = {}
    repeated: list[str] = []
    for label, own in by_column(others).items():
        once = own[~own.duplicated(["setup", "seed"])]
        repeated += [label] if len(once) < len(own) else []
        try:
            found.append(compare(runs, once, (names[0], label)))
        except UsageError as error:
            reasons[label] = str(error)
    if not found:
        reason = min(reasons.values(), key=lambda reason: reason.endswith(NO_TASK))  # others say which settings differ
        raise UsageError(f"no model of {names[1]} can be compared with {names[0]}: {reason}")
    entries = [{**entry, "model": one.b} for one in found for entry in one.differences]
    same = [label for label, reason in reasons.items() if reason.endswith(" are the same runs")]
    unmatched = [label for label in reasons if label not in same]
    said = (
        ("the same runs: ", same),
        ("no matching run of ", unmatched),
        ("repeated runs except the first: ", repeated),
    )
    left_out = [words + ", ".join(found) for words, found in said if found]
    cautions = dict.fromkeys(note for one in found for note in one.cautions)
    return Comparison(*names, entries, left_out, list(cautions))


def _difference(label: str, model: str | None, setup: Settings, pairs: Sequence[Pair]) -> dict[str, Any]:
    """Return the entry of matched runs on one task; ``pairs`` are ordered by seed."""
    sides = dict(zip("ab", zip(*pairs, strict=True), strict=True))
    a, b = ([run["score"] for run in side] for side in sides.values())
    differences = [round(score_a - score_b, DIGITS) for score_a, score_b in zip(a, b, strict=True)]
    # the sum of independent errors: too large if both models fail on the same samples, too small if on different ones
    each = [[run["score_error"] for run in pair] for pair in pairs]
    errors = [math.hypot(*pair) for pair in each if None not in pair]
    low, high = bootstrap(differences, errors, centre=np.mean) or (None, None)
    return {
        "label": label,
        "task": setup["name"],
        "task_parameters": owned("task ", setup),
        "model": model,
        "budget": {name: setup[name] for name in SHARED_BUDGET if name in setup},
        "metric": pairs[0][0]["metric"],
        "seeds": [run["seed"] for run, _ in pairs],
        "not_causal": [name for name, side in sides.items() if any(run["not_causal"] is True for run in side)],
        "a": a,
        "b": b,
        "difference": float(np.mean(differences)),
        "difference_low": low,
        "difference_high": high,
        "p": paired_t(differences),
    }


def _differs(entry: Mapping[str, Any]) -> bool:
    """Return whether a difference is sure: by p (over seeds), and by its interval (over seeds and test samples)."""
    low, high = entry["difference_low"], entry["difference_high"]
    return entry["p_holm"] is not None and entry["p_holm"] < AHEAD and not low <= 0 <= high


def _by_match(runs: pd.DataFrame, name: str, by_model: bool) -> Matches:
    """Return the runs, sorted, by their key. Runs match if they have the same key."""
    found: Matches = {}
    for run in plain_rows(runs):
        match = (
            run["model"] if by_model else "",
            run["setup"],
            run["seed"],
            ",".join(json.loads(run["selected"] or "{}")),
        )
        first = found.setdefault(match, run)
        if first is not run:
            names = distinguishing([settings_in(entry["variant"]) for entry in (first, run)])
            differ = f"differ in {_few(list(map(bare, names)))}" if names else "have the same settings"
            two = f"{name} holds two runs of {run_name(run)} on {run['task']}, which {differ}"
            raise UsageError(f"{two}; a run can match only one run")
    return dict(sorted(found.items(), key=lambda entry: entry[0]))


def _mixed(groups: Iterable[Sequence[Pair]], names: tuple[str, str]) -> list[str]:
    """Return a note for each task on which the seeds of one side differ in the settings of their model."""
    found: dict[str, None] = {}
    for pairs in groups:
        for name, side in zip(names, zip(*pairs, strict=True), strict=True):
            settings = [any_object(settings_in(run["variant"])) for run in side]
            if differ := distinguishing(settings):
                found[f"the seeds of {name} on {side[0]['task']} differ in {_few(list(map(bare, differ)))}"] = None
    return list(found)


def _unequal_searches(groups: Iterable[Sequence[Pair]], names: tuple[str, str]) -> list[str]:
    """Return a note on the tasks for which validation chose from unequal numbers of settings on the two sides.

    The best of more settings scores higher on average, even if no setting is better than another.
    """
    counts = Counter(tuple(run["candidates"] for run in pairs[0]) for pairs in groups)
    return [
        f"validation chose from {a:g} settings of {names[0]} and from {b:g} of {names[1]} on {tasks}"
        f" task{'s' * (tasks != 1)}, which favours the side with more settings"
        for (a, b), tasks in counts.items()
        if a and b and a != b
    ]


def _few(names: Sequence[str]) -> str:
    """Return the first :data:`NAMED` names and the number of the others."""
    more = len(names) - NAMED
    return f"{', '.join(names[:NAMED])} and {more} more" if more > 1 else ", ".join(names)


def _nothing_in_common(sides: Sequence[Matches], names: tuple[str, str]) -> str:
    """Return the error message for sides without a match; it names the differences of two runs of one task."""
    message = f"no run of {names[0]} matches a run of {names[1]} in task, parameters, budget and seed"
    first = [{run["task"]: (run, match[-1]) for match, run in reversed(side.items())} for side in sides]
    shared = [task for task in first[0] if task in first[1]]
    if not shared:
        return f"{message}: {NO_TASK}"
    pair = [runs[shared[-1]] for runs in first]
    settings = [
        {**json.loads(run["setup"]), "seed": run["seed"], "selected": selected or None} for run, selected in pair
    ]
    words = {"selected": "settings selected on validation"}
    values = [
        f"{words.get(name) or bare(name)} ({' and '.join(as_given(side.get(name)) for side in settings)})"
        for name in distinguishing(settings)
    ]
    if not values:
        return f"{message}: they share no model"
    run_a, run_b = (run_name(run) for run, _ in pair)
    return f"{message}; {run_a} and {run_b} on {shared[-1]} differ in {_few(values)}"
