"""Which run of one set belongs to which run of another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lrtasks.errors import UsageError, unknown
from lrtasks.record import RunRecord
from lrtasks.results.settings import bare, differing, key, model_settings, run_name, shared_budget, task_settings
from lrtasks.results.table import make_table

Pair = tuple[RunRecord, RunRecord]


@dataclass(frozen=True)
class Side:
    """One of the two sets of runs.

    Attributes:
        name: what the reader calls it.
        records: its runs.
    """

    name: str
    records: Sequence[RunRecord]


def model_side(name: str, records: Sequence[RunRecord]) -> Side:
    """The runs of one model among ``records``, named as a table names its column: ``dlr`` or ``dlr (kernel=prod)``.

    Raises:
        UsageError: if there is no such model, or several columns have this name.
    """
    table = make_table(records, unequal_budgets=True)
    columns = dict(enumerate(table.column_labels))
    matching = [number for number, label in columns.items() if label == name]
    if not matching:
        matching = [number for number in columns if table.column(number)[0].records[0].model["name"] == name]
    if not matching:
        raise unknown("model", name, columns.values())
    if len(matching) > 1:
        raise UsageError(
            f"model {name!r} has several settings; name one of: {', '.join(columns[number] for number in matching)}"
        )
    chosen = [record for cell in table.column(matching[0]) for record in cell.records]
    return Side(columns[matching[0]], chosen)


def pair_runs(a: Side, b: Side) -> tuple[list[Pair], list[str]]:
    """Pair the runs that have the same task, parameters, version, data, shared budget and seed.

    Where each side holds one model, the two are paired whatever their names; otherwise a run's partner is of the same
    model. Copies of a record count once.

    Returns:
        The pairs whose runs both have a headline score, and why other runs are in none, one line per reason.

    Raises:
        UsageError: if there are no pairs, a run has two partners, or both sides are the same runs.
    """
    by_model = more_than_one_model(a, b)
    of_a, of_b = (_by_partner(side, by_model) for side in (a, b))
    if of_a == of_b:
        raise UsageError(f"{a.name} and {b.name} are the same runs")
    both = [(record, of_b[partner]) for partner, record in of_a.items() if partner in of_b]
    if not both:
        raise UsageError(_nothing_in_common(a, b))
    pairs = [pair for pair in both if all(record.headline() is not None for record in pair)]
    left_out = [
        f"{run_name(record)} on {record.task['name']}: {record.outcome()}"
        for pair in both
        for record in pair
        if record.headline() is None
    ]
    for side, own, others in ((a, of_a, of_b), (b, of_b, of_a)):
        alone = Counter(record.task["name"] for partner, record in own.items() if partner not in others)
        left_out += [f"without a partner: {count} of {side.name} on {task}" for task, count in sorted(alone.items())]
    if not pairs:
        raise UsageError(f"no pair of {a.name} and {b.name} has two scores: {'; '.join(left_out)}")
    return pairs, left_out


def more_than_one_model(a: Side, b: Side) -> bool:
    """Whether a side holds several models, so that partners must be of the same one."""
    return any(len({record.model["name"] for record in side.records}) > 1 for side in (a, b))


def _common(record: RunRecord) -> dict[str, Any]:
    """What two partners share, whatever their models."""
    return {**task_settings(record), **shared_budget(record), "seed": record.seed}


def _by_partner(side: Side, by_model: bool) -> dict[tuple[str, str], RunRecord]:
    """The runs by what their partner must share with them, ordered."""
    found: dict[tuple[str, str], RunRecord] = {}
    for record in side.records:
        place = (record.model["name"] if by_model else "", key(_common(record)))
        other = found.setdefault(place, record)
        if other.to_json() != record.to_json():
            names = differing([model_settings(other), model_settings(record)])
            differ = f"differ in {', '.join(map(bare, names))}" if names else "have the same settings"
            raise UsageError(
                f"{side.name} holds two runs of {run_name(record)} on {record.task['name']}, which {differ}; "
                "one run can have one partner only"
            )
    return dict(sorted(found.items()))


def _nothing_in_common(a: Side, b: Side) -> str:
    """The message for sides without a pair, with the two runs that come nearest."""
    message = f"no run of {a.name} has a partner in {b.name} with the same task, parameters, budget and seed"
    of_a, of_b = ({key(_common(record)): record for record in side.records}.values() for side in (a, b))
    candidates = [
        (differing([_common(one), _common(other)]), one, other)
        for one in of_a
        for other in of_b
        if one.task["name"] == other.task["name"]
    ]
    if not candidates:
        return f"{message}: they share no task"
    names, one, other = min(candidates, key=lambda candidate: len(candidate[0]))
    if not names:
        return f"{message}: they share no model"
    values = [f"{bare(name)} ({_common(one).get(name)} and {_common(other).get(name)})" for name in names]
    return f"{message}; {run_name(one)} and {run_name(other)} on {one.task['name']} differ in {', '.join(values)}"
