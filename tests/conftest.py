"""Shared fixtures."""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import hypothesis
import pytest

if TYPE_CHECKING:
    from pretend import Pretend

# torch is imported where it is needed: with pytest-xdist, the first process imports this file before it starts others

DATA = Path(__file__).parent / "data"

# the same examples in each run, without a time limit; --hypothesis-profile=search draws other and more examples
hypothesis.settings.register_profile("same", deadline=None, derandomize=True, max_examples=40)
hypothesis.settings.register_profile("search", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("same")

gc.disable()  # collection makes a million objects that stay; see pytest_collection_finish

if "PYTEST_XDIST_WORKER" in os.environ:  # one process per core: more threads would wait for each other
    import torch

    torch.set_num_threads(1)


def pytest_collection_finish() -> None:
    """Leave all modules and tests out of garbage collection, which would visit them again and again."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Seed all generators, so that a test draws the same numbers regardless of the tests that ran before."""
    import numpy as np
    import torch

    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def data() -> Path:
    """Return the folder of the reference arrays. Their outputs and gradients are rounded to 2^-36 (1.5e-11)."""
    return DATA


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``check_task`` start no second process; ``generators/test_registry.py`` starts one for all tasks."""
    from lrtasks.check import task

    monkeypatch.setattr(task, "_STAGES", [stage for stage in task._STAGES if stage != (task._process,)])


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> Pretend:
    """Make all commands of a test use one :class:`Pretend` backend, and return it."""
    from pretend import Pretend

    from lrtasks.suite import backends

    backend = Pretend()
    monkeypatch.setattr(backends, "make_backend", lambda *_, **__: backend)
    return backend


@pytest.fixture(scope="module")
def samples_drawn_once() -> Iterator[None]:
    """Draw the sample pictures of equal tasks only once for all reports of a test file."""
    from lrtasks.results.report import page

    drawn: dict[str, Any] = {}
    draw = page.draw_sample

    def shared(name: str, parameters: dict[str, Any], source: str | None = None) -> Any:
        key = json.dumps([name, parameters, source], default=repr, sort_keys=True)
        if key not in drawn:
            drawn[key] = draw(name, parameters, source)
        return drawn[key]

    with mock.patch.object(page, "draw_sample", shared):
        yield


class Said(NamedTuple):
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


Command = Callable[..., Said]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Return a function: ``command("eval", "--model", ...)`` runs ``lrtasks eval --model ...`` in an empty folder."""
    from lrtasks.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # main() sets its own

    def call(*words: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["lrtasks", *(str(word) for word in words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        assert isinstance(ended.value.code, int)
        return Said(ended.value.code, *capsys.readouterr())

    return call
