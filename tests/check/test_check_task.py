"""check_task: says nothing about a good task, and names what is wrong with a bad one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import broken_tasks
import numpy as np
import pytest
from broken_tasks import BROKEN, Parity

import lrtasks
from lrtasks.check import problems_of
from lrtasks.check.task import check_task
from lrtasks.config import parameter
from lrtasks.data import generate
from lrtasks.errors import UsageError
from lrtasks.generators import Batch, Task
from lrtasks.spec import Spec


@pytest.fixture(autouse=True)
def imports() -> Iterator[None]:
    """What a broken task leaves among the imported modules goes with its test."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) & {"torch", "tensorflow", "jax"} - before:
        del sys.modules[name]


def test_a_good_task_passes() -> None:
    lrtasks.check_task(Parity())
    assert problems_of(check_task, Parity()) == []


@pytest.mark.usefixtures("one_process")
def test_a_pooled_target_may_be_longer_than_the_input_and_have_padding_on_either_side() -> None:
    members: dict[str, Any] = {
        "target": Spec("token", 13, 2, pooled=True),
        "sample": broken_tasks.samples_of(lambda s: s._replace(y=np.resize(s.x, 13))),
        "slices": Task.slices,
    }
    check_task(broken_tasks.variant("PooledParity", **members))


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_is_named(name: str) -> None:
    _, message = BROKEN[name]
    task = getattr(broken_tasks, name)()
    with pytest.raises(UsageError, match=f"task 'test-{name.lower()}' breaks the contract: .*{message}") as caught:
        lrtasks.check_task(task)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrong", ["train", "test"])
def test_a_wrong_label_in_a_few_samples_is_found(wrong: str) -> None:
    def late(batch: Batch, indices: tuple[int, ...], split: str, *_: Any) -> Batch:
        at = (np.array(indices) == 40) & (split == wrong)
        return batch._replace(y=np.where(at[:, None], 7, batch.y))

    task = broken_tasks.variant("RareLabel", batch=broken_tasks.batch_of(late))
    with pytest.raises(UsageError, match=rf"split '{wrong}': y holds 7; allowed: 0\.\.1"):
        check_task(task)


def test_labels_of_samples_are_no_labels_of_positions_if_there_are_as_many() -> None:
    task = broken_tasks.variant("OneLabelPerSample", slices=lambda _, batch: {"odd": np.zeros(len(batch.y))})
    with pytest.raises(UsageError, match=r"slice 'odd' must broadcast to y, \(13, 12\), found \(13,\)"):
        check_task(task, samples=task.target.length)


def test_nothing_is_said_beside_what_is_wrong() -> None:
    one_each = ("WrongDtype", "ScoredPadding", "OtherBatch", "BaselineClass", "SliceShape", "WrongText")
    for name, count in (*((name, 1) for name in one_each), ("OneStream", 2)):  # val and test
        assert len(problems_of(check_task, getattr(broken_tasks, name)())) == count, name


def test_all_that_is_wrong_is_named() -> None:
    task = broken_tasks.variant("Twice", **{**BROKEN["WrongText"][0], **BROKEN["SliceShape"][0]})
    first, second = problems_of(check_task, task)[:2]
    assert first.startswith("slice 'odd'") and second.startswith("text()")


class Unnamed(Task):
    """Registered nowhere."""

    @property
    def input(self) -> Spec:
        return Spec("real", 4, 1)

    target = input


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


def test_a_task_without_a_name_is_told_how_to_get_one(tmp_path: Path) -> None:
    task = Unnamed()
    uses: list[Callable[[], object]] = [
        lambda: lrtasks.check_task(task),
        lambda: task.batch(range(2)),
        lambda: task.torch_dataset(samples=2),
        lambda: lrtasks.evaluate("dlr", task, out=tmp_path),
        lambda: generate(task, tmp_path / "data", samples=2, workers=1),
    ]
    for use in uses:
        with pytest.raises(UsageError, match="Unnamed has no name; register the class with"):
            use()


def test_interactive_classes_are_checked_but_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Parity()
    monkeypatch.setattr(Parity, "__module__", "__main__")
    with pytest.warns(UserWarning, match="Parity is defined in __main__"):
        lrtasks.check_task(task)


def test_classes_and_names_are_checked_at_their_defaults() -> None:
    lrtasks.check_task(Parity)
    lrtasks.check_task("test-parity-by-name")
    with pytest.raises(UsageError, match="task Undecorated: put @dataclass"):
        lrtasks.check_task(Undecorated)


@lrtasks.generators.registry.register("test-parity-by-name")
class Named(Parity):
    """A task that is known by its name."""


class Undecorated(Parity):
    """A field that became no parameter."""

    name = "test-undecorated"
    width: int = parameter(3, "forgotten")


@pytest.mark.parametrize("wrong", [3, None, int])
def test_other_things_are_refused(wrong: Any) -> None:
    with pytest.raises(UsageError, match="check_task takes a task, a subclass"):
        lrtasks.check_task(wrong)


def test_one_sample_is_too_few() -> None:
    with pytest.raises(UsageError, match="samples must be at least 2, found 1"):
        lrtasks.check_task(Parity(), samples=1)


def test_the_second_process_has_another_hash_seed_whatever_the_first_one_has() -> None:
    code = "from lrtasks import check_task; from broken_tasks import Hashing; check_task(Hashing())"
    for seed in ("0", "1"):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        how: dict[str, Any] = {"cwd": Path(__file__).parent, "env": env, "capture_output": True, "check": False}
        done = subprocess.run([sys.executable, "-c", code], **how)
        assert b"a second process gives other samples" in done.stderr


def test_a_second_process_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(UsageError, match="a second process cannot make a batch"):
        lrtasks.check_task(Parity())
