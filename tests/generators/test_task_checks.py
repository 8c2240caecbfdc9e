"""check_task: says nothing about a good task, and names what is wrong with a bad one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import broken_tasks
import numpy as np
import pytest
from broken_tasks import BROKEN, Parity

import lrtasks
from lrtasks.errors import UsageError
from lrtasks.generators import Sample, Task
from lrtasks.generators.checks import task_problems
from lrtasks.spec import Spec


@pytest.fixture(autouse=True)
def imports() -> Iterator[None]:
    """What a broken task leaves among the imported modules goes with its test."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) & {"tensorflow"} - before:
        del sys.modules[name]


def test_a_good_task_passes() -> None:
    lrtasks.check_task(Parity())
    assert task_problems(Parity()) == []


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_is_named(name: str) -> None:
    _, message = BROKEN[name]
    task = getattr(broken_tasks, name)()
    with pytest.raises(UsageError, match=f"task 'test-{name.lower()}' breaks the contract: .*{message}") as caught:
        lrtasks.check_task(task)
    assert "\n" not in str(caught.value)


def test_nothing_is_said_beside_what_is_wrong() -> None:
    for name in ("WrongDtype", "ScoredPadding", "GlobalNumpy", "OtherBatch", "FloorClass", "SliceShape", "WrongText"):
        assert len(task_problems(getattr(broken_tasks, name)())) == 1, name


def test_all_that_is_wrong_is_named() -> None:
    task = broken_tasks.variant("Twice", **{**BROKEN["WrongText"][0], **BROKEN["SliceShape"][0]})
    first, second = task_problems(task)[:2]
    assert first.startswith("slice 'odd'") and second.startswith("text()")


class Unnamed(Task):
    """Registered nowhere."""


@dataclass(frozen=True)
class Endless(Task):
    """A signal that is not finite at one place."""

    name = "test-endless"

    @property
    def input(self) -> Spec:
        return Spec("real", 4, 1)

    @property
    def target(self) -> Spec:
        return Spec("real", 4, 1)

    def sample(self, rng: np.random.Generator) -> Sample:
        signal = rng.standard_normal((4, 1)).astype(np.float32)
        broken = signal.copy()
        broken[2] = np.nan
        return Sample(broken, signal)


def test_values_that_are_not_finite_are_found() -> None:
    with pytest.raises(UsageError, match=r"sample 0: x holds values that are not finite, first at x\[2, 0\]$"):
        lrtasks.check_task(Endless())


@dataclass(frozen=True)
class Plain(Parity):
    """Fields that are plain dataclass fields, which ``lrtasks describe`` has nothing to say of."""

    name = "test-plain"
    width: int = 3


def test_a_field_that_is_no_parameter_is_named() -> None:
    with pytest.raises(UsageError, match="parameter width has no description; write width: TYPE = parameter"):
        lrtasks.check_task(Plain())


def test_local_classes_cannot_be_pickled() -> None:
    class Local(Parity):
        name = "test-local"

    with pytest.raises(UsageError, match="cannot be pickled, as background workers need"):
        lrtasks.check_task(Local())


def test_a_task_without_a_name_is_told_how_to_get_one() -> None:
    with pytest.raises(UsageError, match="task 'Unnamed' breaks the contract: it has no name; register the class with"):
        lrtasks.check_task(Unnamed())


def test_interactive_classes_are_checked_but_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Parity()
    monkeypatch.setattr(Parity, "__module__", "__main__")
    with pytest.warns(UserWarning, match="Parity is defined in __main__"):
        lrtasks.check_task(task)


@pytest.mark.parametrize("wrong", ["shift", Parity, None])
def test_only_instances_are_taken(wrong: Any) -> None:
    with pytest.raises(UsageError, match="check_task takes an instance"):
        lrtasks.check_task(wrong)


def test_one_sample_is_too_few() -> None:
    with pytest.raises(UsageError, match="samples must be at least 2, found 1"):
        lrtasks.check_task(Parity(), samples=1)


def test_a_second_process_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(UsageError, match="a second process cannot make a batch"):
        lrtasks.check_task(Parity())
