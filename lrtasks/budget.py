"""The training budget: how a run trains, evaluates and tests a model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from lrtasks.config import Config, parameter
from lrtasks.errors import UsageError

MAX_STEPS = 10**9
"""Largest number of steps, batches or samples of a run; a larger number is rejected as a mistake."""


@dataclass(frozen=True)
class Budget(Config):
    """Settings of training and scoring. Compare only runs with equal steps, batches, samples, stops and precision."""

    name: ClassVar[str] = "budget"

    steps: int = parameter(2000, "optimiser steps", at_least=1, at_most=MAX_STEPS)
    batch_size: int = parameter(16, "samples per step, over all processes", at_least=1, at_most=2**20)
    lr: float = parameter(
        1e-3, "learning rate of all parameters for which the model sets no other", above=0, at_most=1e6
    )
    weight_decay: float = parameter(0.0, "decoupled weight decay (AdamW)", at_least=0)
    betas: tuple[float, float] = parameter((0.9, 0.999), "both decay rates of AdamW, below 1", at_least=0)
    schedule: Literal["constant", "linear", "cosine"] = parameter(
        "constant", "learning rate after the warm-up: constant, or decay to 0, linear or along a half cosine"
    )
    warmup_steps: int = parameter(0, "steps of linear warm-up from 0", at_least=0, at_most=MAX_STEPS)
    clip: float = parameter(0.0, "largest gradient norm; 0 switches clipping off", at_least=0)
    precision: Literal["32", "bf16"] = parameter("32", "arithmetic: float32, or bfloat16 autocast")
    train_samples: int | None = parameter(
        None,
        "size of a fixed training set, used repeatedly; none: fresh samples in every batch",
        at_least=1,
        at_most=MAX_STEPS,
    )
    eval_every: int = parameter(500, "steps between evaluations on validation data", at_least=1, at_most=MAX_STEPS)
    val_batches: int = parameter(10, "batches of the fixed validation stream", at_least=1, at_most=MAX_STEPS)
    test_batches: int = parameter(50, "batches of the fixed test stream", at_least=1, at_most=MAX_STEPS)
    test_lengths: tuple[int, ...] | None = parameter(
        None,
        "lengths of further tests of the trained model; none: the further tests of the task",
        at_least=1,
        at_most=2**24,
    )
    test_data: tuple[str, ...] | None = parameter(
        None,
        "stored datasets for further tests, with the same input and target widths; their test samples are used",
        later=True,
    )
    stop_solved: bool = parameter(
        False, "stop when the scaled validation score is at least 0.99 at two evaluations in a row"
    )
    stop_at: float | None = parameter(None, "stop when the validation score reaches this; none: never", at_most=1)
    class_weights: tuple[float, ...] | None = parameter(
        None,
        "fixed weights of the classes in the cross-entropy, one per class; none: the weights of the task's loss",
        above=0,
        later=True,
    )
    accumulate: int = parameter(
        1, "number of parts of each batch, computed one after the other to save memory", at_least=1, later=True
    )
    checkpoint_blocks: bool = parameter(
        False, "save memory: keep the input of each block only and recompute the rest in the backward pass", later=True
    )

    def check(self) -> None:
        if max(self.betas) >= 1:
            raise UsageError(f"budget: betas must be below 1, found {list(self.betas)}")
        if self.batch_size % self.accumulate:
            raise UsageError(f"budget: accumulate must divide batch_size ({self.batch_size}), found {self.accumulate}")
        lengths = self.test_lengths or ()
        if len(set(lengths)) < len(lengths):
            raise UsageError(f"budget: test_lengths must be different lengths, found {list(lengths)}")
        if self.warmup_steps > self.steps:
            raise UsageError(f"budget: warmup_steps must be at most steps ({self.steps}), found {self.warmup_steps}")

    def rate(self, step: int) -> float:
        """Return the factor on every learning rate at ``step`` in 0..steps-1: linear warm-up, then ``schedule``.

        >>> [Budget(steps=100, warmup_steps=20, schedule=name).rate(40) for name in ("constant", "linear")]
        [1.0, 0.75]
        """
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return 1.0
        done = (step - self.warmup_steps) / (self.steps - self.warmup_steps)
        if self.schedule == "linear":
            return 1.0 - done
        return 0.5 * (1 + math.cos(math.pi * done))


DEFAULTS: dict[str, dict[str, Any]] = {
    "small": {"eval_every": 100, "val_batches": 5, "test_batches": 20, "stop_solved": True},
    "paper": {"steps": 43_200, "lr": 1e-4, "eval_every": 3_600, "val_batches": 40, "test_batches": 400},
}
"""Budget of each preset; models and tasks can override values.

``paper`` is the budget of the DLR paper's atomic tasks (arXiv:2212.00768, section 3.3 and appendix A.6).
"""

MOST_SEEDS = 100_000
"""Largest number of seeds of one command."""
SHARED_BUDGET = (
    *("steps", "batch_size", "train_samples", "val_batches", "test_batches"),
    *("stop_at", "stop_solved", "precision"),
)
"""Budget fields that must be equal for compared models; the others (learning rate, ...) are tuned per model."""
