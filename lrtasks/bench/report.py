"""Measurements as tables: costs, the same against the Transformer, growth, and the papers' ratios."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from lrtasks.bench.case import BASELINE, CLASSES, OWN, UNFUSED, VOCABULARY
from lrtasks.bench.growth import Growth, growth
from lrtasks.bench.measure import PHASES
from lrtasks.bench.papers import Comparison, compare
from lrtasks.bench.record import Measurement
from lrtasks.bench.relative import QUANTITIES, relative
from lrtasks.results.formats import TextTable, number

COSTS: dict[str, Callable[[Measurement], float | None]] = {
    "training_seconds": lambda found: found.seconds("training"),
    "inference_seconds": lambda found: found.seconds("inference"),
    "training_bytes": lambda found: found.peak_bytes("training"),
    "inference_bytes": lambda found: found.peak_bytes("inference"),
    "state_bytes": lambda found: found.state_bytes,
    "parameters": lambda found: found.parameters,
}
"""What a measurement says a model costs."""


class Report:
    """What a bench found.

    Args:
        measurements: of one bench: all of the same settings.
    """

    def __init__(self, measurements: Sequence[Measurement]) -> None:
        self._found = list(measurements)
        self._models = list(dict.fromkeys(entry.model for entry in self._found))
        self._compared = compare(self._found)

    def rows(self) -> list[dict[str, Any]]:
        """One flat entry per measurement."""
        return [
            {
                "model": entry.model,
                "length": entry.length,
                **{name: cost(entry) for name, cost in COSTS.items()},
                **{f"relative_{name}": value for name, value in self._against(entry, BASELINE).items()},
                "reasons": entry.reasons(),
            }
            for entry in self._found
        ]

    def content(self) -> dict[str, Any]:
        """Everything, JSON-ready."""
        first = self._found[0]
        return {
            "settings": first.identity["settings"],
            "device": first.identity["device_name"],
            "environment": dict(first.environment),
            "rows": self.rows(),
            "growth": [
                {"model": model, "cost": name, **asdict(found)} for model, name, found in self._grown() if found
            ],
            "papers": [
                {
                    **asdict(entry.ratio),
                    "our_length": entry.length,
                    "ours": entry.ours,
                    "against_unfused": entry.unfused,
                }
                for entry in self._compared
            ],
            "notes": self.notes(),
        }

    def tables(self) -> list[TextTable]:
        """Costs, costs against the Transformer, growth, and the papers' ratios, as far as there are any."""
        tables = [self._costs(), self._relative(), self._growth(), self._papers()]
        return [sheet for sheet in tables if sheet.lines]

    def notes(self) -> list[str]:
        """What was measured and how, and what is missing."""
        first = self._found[0]
        shared = first.identity["settings"]
        clock = "CPU time" if first.identity["device"] == "cpu" else "elapsed time"
        form = "bidirectional" if shared["bidirectional"] else "causal"
        notes = [
            f"{VOCABULARY} tokens in, one of {CLASSES} classes per sequence out; {form} models, d_model"
            f" {shared['d_model']}, {shared['layers']} layers, other settings below (none: see lrtasks describe); batch"
            f" {shared['batch']}, float32, {first.identity['device_name']}, threads {shared['threads']}",
            f"training: forward, loss, backward, AdamW step; ms: shortest repeat, {clock}; MB (10^6 bytes): peak above"
            " the process before the model was built; kB: streaming state of one sequence at its end",
            "faster: Transformer's time over the model's, timed in turn in one process (the Transformer's own row shows"
            " the error of this); memory, state, parameters: shares of the Transformer's",
            "growth: exponent of the length, least squares over all lengths, and between the two longest;"
            " a fixed cost at short lengths lowers it",
        ]
        if any(entry.model == UNFUSED for entry in self._found):
            notes.append(
                f"{UNFUSED}: the weights of attention are an array, as in the papers' Transformer; the other models'"
                " multi-head attention runs in torch's fused kernel"
            )
        notes += [f"{entry.model} at {entry.length:,}: {line}" for entry in self._found for line in _missing(entry)]
        notes += [f"{model}: {_settings(entry)}" for model, entry in self._by_model() if entry.length == first.length]
        return notes + [
            f"{model} at {entry.length:,}: {', '.join(f'{rate:.2f}' for rate in rates)} of the positions active"
            for model, entry in self._by_model()
            if (rates := _activation_rates(entry))
        ]

    def _against(self, entry: Measurement, name: str) -> dict[str, float | None]:
        for other in self._found:
            if other.model == name and other.length == entry.length:
                return relative(entry, other)
        return dict.fromkeys(QUANTITIES)

    def _costs(self) -> TextTable:
        header = [
            "model",
            "length",
            "training ms",
            "inference ms",
            "training MB",
            "inference MB",
            "state kB",
            "parameters",
        ]
        units = (1e-3, 1e-3, 1e6, 1e6, 1e3)
        lines = []
        for model, entry in self._by_model():
            *costs, parameters = [cost(entry) for cost in COSTS.values()]
            shown = [_number(None if cost is None else cost / unit) for cost, unit in zip(costs, units, strict=True)]
            lines.append([model, f"{entry.length:,}", *shown, "" if parameters is None else f"{parameters:,}"])
        return TextTable(header, lines)

    def _relative(self) -> TextTable:
        names = ["training faster", "inference faster", "training memory", "inference memory", "state", "parameters"]
        lines = []
        for model, entry in self._by_model():
            values = self._against(entry, BASELINE)
            lines.append([model, f"{entry.length:,}", *(_times(values[name]) for name in QUANTITIES)])
        return TextTable([f"against {BASELINE}", "length", *names], lines)

    def _growth(self) -> TextTable:
        names = ["training time", "inference time", "training memory", "inference memory", "state"]
        found = {(model, name): growth for model, name, growth in self._grown()}
        lengths = len({entry.length for entry in self._found})
        lines = []
        for model in self._models:
            cells = [found[model, name] for name in list(COSTS)[: len(names)]]
            if any(cells):
                lines.append([model, *(_exponents(cell, lengths) for cell in cells)])
        return TextTable([f"growth over {lengths} lengths, last two", *names], lines)

    def _papers(self) -> TextTable:
        header = [
            "paper",
            "task",
            "model",
            "against",
            "quantity",
            "paper's",
            "ours",
            f"ours against {UNFUSED}",
            "at length",
        ]
        return TextTable(header, [_comparison_line(entry) for entry in self._compared])

    def _by_model(self) -> Iterator[tuple[str, Measurement]]:
        for model in self._models:
            for entry in self._found:
                if entry.model == model:
                    yield model, entry

    def _grown(self) -> Iterator[tuple[str, str, Growth | None]]:
        for model in self._models:
            entries = [entry for entry in self._found if entry.model == model]
            for name, cost in COSTS.items():
                points = [(entry.length, value) for entry in entries if (value := cost(entry)) is not None]
                yield model, name, growth(points)


def _exponents(found: Growth | None, lengths: int) -> str:
    if found is None:
        return ""
    return f"{found.slope:.2f}, {found.last:.2f}" + (f" (of {found.points})" if found.points < lengths else "")


def _settings(entry: Measurement) -> str:
    """Hyper-parameters, without those that all models share and options that are off."""
    shown = {name: value for name, value in entry.identity["hyper"].items() if name not in OWN and value is not False}
    return ", ".join(f"{name} {'none' if value is None else value}" for name, value in shown.items())


def _activation_rates(entry: Measurement) -> list[float]:
    """Share of positions at which each module of a sparse model ran in training, on which its cost depends."""
    found = entry.training.get("diagnostics", {}).values()
    return [report["activation_rate"] for report in found if report.get("activation_rate", 1) < 1]


def _missing(entry: Measurement) -> Iterator[str]:
    reasons = entry.reasons()
    for reason in dict.fromkeys(reasons.values()):
        parts = [name for name, found in reasons.items() if found == reason]
        yield f"no {' nor '.join(parts)}: {reason}"
    for phase in PHASES:
        if phase not in reasons and entry.speed(phase) is None:
            yield f"{phase} was timed without the Transformer, beside which it failed"


def _comparison_line(entry: Comparison) -> list[str]:
    ratio = entry.ratio
    phase, _, kind = ratio.quantity.partition("_")
    length = f"{entry.length:,}" + (f" (paper: {ratio.length:,})" if ratio.length != entry.length else "")
    return [
        ratio.source,
        ratio.where,
        ratio.model,
        ratio.against,
        f"{phase} {'faster' if kind == 'speed' else kind}",
        _times(ratio.value),
        _times(entry.ours),
        _times(entry.unfused),
        length,
    ]


def _number(value: float | None) -> str:
    return "" if value is None else number(value)


def _times(value: float | None) -> str:
    return "" if value is None else f"{_number(value)}×"
