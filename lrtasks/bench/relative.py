"""One measurement against another of the same length."""

from __future__ import annotations

from lrtasks.bench.case import BASELINE
from lrtasks.bench.measure import Phase
from lrtasks.bench.record import Measurement

QUANTITIES = ("training_speed", "inference_speed", "training_memory", "inference_memory", "state", "parameters")
"""Speeds: how many times faster. The others: share of what the other needs."""


def relative(one: Measurement, other: Measurement) -> dict[str, float | None]:
    """Each of :data:`QUANTITIES`; None where either lacks a figure."""
    return {
        "training_speed": _speed(one, other, "training"),
        "inference_speed": _speed(one, other, "inference"),
        "training_memory": _share(one.peak_bytes("training"), other.peak_bytes("training")),
        "inference_memory": _share(one.peak_bytes("inference"), other.peak_bytes("inference")),
        "state": _share(one.state_bytes, other.state_bytes),
        "parameters": _share(one.parameters, other.parameters),
    }


def _speed(one: Measurement, other: Measurement, phase: Phase) -> float | None:
    """Both were timed in turn with a Transformer; that one is the common measure."""
    if other.model == BASELINE:
        return one.speed(phase)
    return _share(one.speed(phase), other.speed(phase))


def _share(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other
