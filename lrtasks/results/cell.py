"""One cell of a table: the seeds of one task, budget and model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lrtasks.record import RunRecord
from lrtasks.results.reported import Figure, reported_figure
from lrtasks.results.statistics import Estimate, estimate


@dataclass(frozen=True)
class Cell:
    """All seeds of one task, budget and model."""

    records: tuple[RunRecord, ...]

    @property
    def metric(self) -> str:
        """Name of the headline score."""
        return str(self.records[0].task["metric"])

    @property
    def seeds(self) -> list[int]:
        """Seeds of the runs; one that is there twice has two different outcomes (on two machines, say)."""
        return [record.seed for record in self.records]

    @property
    def score(self) -> Estimate | None:
        """The headline score with its interval over seeds."""
        return estimate(self.values(self.metric))

    def values(self, score: str) -> list[float]:
        """One test score of each seed that has it; a seed that is there twice counts once, with the mean of both."""
        by_seed: dict[int, list[float]] = {}
        for record in self.records:
            value = record.score(score)
            if value is not None:
                by_seed.setdefault(record.seed, []).append(value)
        return [float(np.mean(values)) for values in by_seed.values()]

    @property
    def floor(self) -> tuple[str, float] | None:
        """Name and headline score of the best trivial predictor, from the first seed that has one."""
        floors = next((record.baselines for record in self.records if record.baselines), {})
        scored = [(name, scores[self.metric]) for name, scores in floors.items() if scores.get(self.metric) is not None]
        return max(scored, key=lambda item: item[1], default=None)

    @property
    def paper(self) -> Figure | None:
        """The paper's figure."""
        return reported_figure(self.records[0])

    @property
    def parameter_count(self) -> int | None:
        """Number of trained values; ``None`` if no run came as far as building the model."""
        return next((record.model["count"] for record in self.records if record.model["count"] is not None), None)

    @property
    def state_bytes(self) -> int | None:
        """Bytes of streaming state; ``None`` without a streaming form."""
        found = (record.model["state_bytes"] for record in self.records)
        return next((value for value in found if value is not None), None)

    @property
    def step_seconds(self) -> list[float]:
        """Seconds per training step of each seed that was timed."""
        found = (record.cost.get("seconds_per_step") for record in self.records)
        return [seconds for seconds in found if seconds is not None]

    @property
    def devices(self) -> list[str]:
        """The devices on which the runs were timed."""
        return sorted({record.cost["device"] for record in self.records if record.cost})

    def row(self) -> dict[str, Any]:
        """The cell as one flat entry, for CSV and JSON."""
        first, score, paper, floor = self.records[0], self.score, self.paper, self.floor
        values = self.values(self.metric)
        interval = score.interval if score else None
        return {
            "task": first.task["name"],
            "task_version": first.task["version"],
            "task_parameters": first.task["parameters"],
            "model": first.model["name"],
            "model_parameters": first.model["parameters"],
            "preset": first.preset,
            "budget": first.budget,
            "metric": self.metric,
            "score": score.mean if score else None,
            "score_low": interval[0] if interval else None,
            "score_high": interval[1] if interval else None,
            "score_std": float(np.std(values, ddof=1)) if len(values) > 1 else None,
            "batch_mean": _mean(self.values(f"{self.metric}_batch_mean")),
            "batch_std": _mean(self.values(f"{self.metric}_batch_std")),
            "seeds": self.seeds,
            "statuses": [record.status for record in self.records],
            "floor": floor[1] if floor else None,
            "floor_name": floor[0] if floor else None,
            "paper": paper.value if paper else None,
            "paper_source": paper.source if paper else None,
            "paper_where": paper.where if paper else None,
            "parameter_count": self.parameter_count,
            "state_bytes": self.state_bytes,
            # a mean over different machines would be the time of none of them
            "seconds_per_step": _mean(self.step_seconds) if len(self.devices) == 1 else None,
            "devices": self.devices,
        }

    def shown(self) -> str:
        """The cell's score as a reader wants it."""
        score = self.score
        outcomes = [record.outcome() for record in self.records]
        if score is None:
            return "/".join(sorted(set(outcomes)))
        spread = "" if score.half_width is None else f" ±{score.half_width:z.3f}"
        others = Counter(outcome for outcome in outcomes if outcome != "done")
        remarks = [f"{count} {outcome}" for outcome, count in sorted(others.items())]
        remarks += [f"seed {seed} {count} times" for seed, count in Counter(self.seeds).items() if count > 1]
        return f"{score.mean:z.3f}{spread}" + (f" ({', '.join(remarks)})" if remarks else "")


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
