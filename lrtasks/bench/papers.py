"""The papers' own ratios, beside ours."""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources

from lrtasks.bench.case import BASELINE, UNFUSED
from lrtasks.bench.record import Measurement
from lrtasks.bench.relative import relative

NEAR = 1.1
"""Lengths that differ by no more than this factor are compared."""


@dataclass(frozen=True)
class Ratio:
    """One figure of a paper.

    Attributes:
        model: what was measured.
        against: what it is relative to.
        quantity: one of :data:`lrtasks.bench.relative.QUANTITIES`.
        value: the figure; a ratio of times is turned into a speed.
        length: positions of the sequence.
        where: task.
        source: paper and table.
    """

    model: str
    against: str
    quantity: str
    value: float
    length: int
    where: str
    source: str


@dataclass(frozen=True)
class Comparison:
    """A paper's ratio, ours at ``length``, and ours against the unfused Transformer where that was measured.

    ``unfused`` is None for ratios that are not against the Transformer.
    """

    ratio: Ratio
    length: int
    ours: float
    unfused: float | None


def compare(measurements: Sequence[Measurement]) -> list[Comparison]:
    """All ratios of which ``measurements`` hold both models near the paper's length, in the order of the file."""
    found = {(entry.model, entry.length): entry for entry in measurements}
    compared = []
    for ratio in _ratios():
        length = _nearest(ratio.length, [entry.length for entry in measurements])
        one, other = found.get((ratio.model, length)), found.get((ratio.against, length))
        ours = relative(one, other)[ratio.quantity] if one and other else None
        if one is None or ours is None:
            continue
        plain = found.get((UNFUSED, length)) if ratio.against == BASELINE else None
        compared.append(Comparison(ratio, length, ours, relative(one, plain)[ratio.quantity] if plain else None))
    return compared


def _nearest(length: int, lengths: Sequence[int]) -> int:
    """The measured length nearest to the paper's; 0 if none is near."""
    nearest = min(lengths, key=lambda candidate: abs(math.log(candidate / length)), default=0)
    return nearest if nearest and abs(math.log(nearest / length)) <= math.log(NEAR) else 0


@functools.cache
def _ratios() -> tuple[Ratio, ...]:
    text = (resources.files("lrtasks.bench") / "papers.toml").read_text()
    return tuple(ratio for entry in tomllib.loads(text)["ratios"] for ratio in _ratios_of(entry))


def _ratios_of(entry: dict[str, dict[str, dict[str, float]]]) -> Iterator[Ratio]:
    shared = {name: entry[name] for name in ("against", "length", "where", "source")}
    for phase in ("training", "inference"):
        for name, values in entry.get(phase, {}).items():
            for model, value in values.items():
                quantity = f"{phase}_{'memory' if name == 'memory' else 'speed'}"
                yield Ratio(model, quantity=quantity, value=1 / value if name == "time" else value, **shared)  # type: ignore[arg-type]
