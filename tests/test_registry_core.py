"""The registry: built-in entries, entry points of other packages, presets, and what goes wrong with them."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lrtasks.errors import UsageError
from lrtasks.generators import Task
from lrtasks.generators.base import registry as tasks
from lrtasks.parameters import Parametrised, parameter
from lrtasks.registry import Registry

WAVE = """
from dataclasses import dataclass
import numpy as np
from lrtasks.generators import Sample, Spec, Task
from lrtasks.parameters import parameter

@dataclass(frozen=True)
class Wave(Task):
    '''A wave to copy.'''
    length: int = parameter(8, "number of values", at_least=1)

    @property
    def input(self):
        return Spec("real", self.length, 1)

    target = input

    def sample(self, rng):
        wave = rng.standard_normal((self.length, 1)).astype(np.float32)
        return Sample(wave, wave)

number = 3
"""

Install = Callable[..., Registry[Task]]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put modules and distributions on the path; return a registry that sees them."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def run(files: dict[str, str], **distributions: dict[str, str]) -> Registry[Task]:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        for distribution, points in distributions.items():
            folder = tmp_path / f"{distribution}-1.0.dist-info"
            folder.mkdir()
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
            lines = [f"{name} = {value}" for name, value in points.items()]
            (folder / "entry_points.txt").write_text("\n".join(["[lrtasks.tasks]", *lines, ""]))
        return Registry("task", "lrtasks.generators.tasks", "lrtasks.tasks")

    yield run
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_entry_points_add_tasks(install: Install) -> None:
    registry = install({"waves.py": WAVE}, waves={"wave": "waves:Wave"})
    assert {"shift", "wave"} <= set(registry.names())
    assert "wave" not in registry.built_in()
    assert "waves" not in sys.modules, "listing imports nothing"
    cls = registry.get("wave")
    assert cls.name == "wave"
    assert cls.make(length=5).batch([0]).x.shape == (1, 5, 1)
    assert registry.get("wave") is cls


def test_presets_stand_next_to_the_class(install: Install) -> None:
    small = "[small]\nparameters = { length = 4 }  # ψ\n"
    registry = install(
        {"waves.py": WAVE, "waves.toml": small, "pack/__init__.py": "", "pack/task.py": WAVE, "pack/task.toml": small}
        | {"bare.py": WAVE},
        waves={"wave": "waves:Wave", "packed": "pack.task:Wave", "bare": "bare:Wave"},
    )
    assert registry.presets("wave") == {"small": {"parameters": {"length": 4}}}
    assert registry.presets("packed") == registry.presets("wave")
    assert registry.presets("bare") == {}
    assert registry.presets("shift")["paper"] == {"parameters": {"length": 4096}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[small\n", "presets of task 'wave' are not valid TOML: "),
        ("length = 4\n", "presets of task 'wave' must be tables, found length = 4"),
    ],
)
def test_bad_presets_are_named(install: Install, text: str, message: str) -> None:
    registry = install({"waves.py": WAVE, "waves.toml": text}, waves={"wave": "waves:Wave"})
    with pytest.raises(UsageError, match=message):
        registry.presets("wave")


def test_an_import_that_fails_is_named_and_the_rest_works(install: Install) -> None:
    registry = install(
        {"waves.py": WAVE, "broken.py": "import no_such_module\n"}, waves={"wave": "waves:Wave", "bad": "broken:Bad"}
    )
    assert {"bad", "wave"} <= set(registry.names())
    message = "task 'bad' from broken:Bad cannot be imported: No module named 'no_such_module'"
    with pytest.raises(UsageError, match=message):
        registry.get("bad")
    assert registry.get("wave").name == "wave"


def test_two_packages_with_one_name_are_both_named(install: Install) -> None:
    registry = install({"waves.py": WAVE}, one={"wave": "waves:Wave"}, two={"wave": "other:Wave"})
    assert registry.names().count("wave") == 1
    with pytest.raises(UsageError, match=r"two tasks are called 'wave': (waves:Wave and other|other:Wave and waves):"):
        registry.get("wave")


def test_a_package_cannot_take_a_built_in_name(install: Install) -> None:
    registry = install({"waves.py": WAVE}, one={"shift": "waves:Wave", "wave": "waves:Wave"})
    with pytest.raises(UsageError, match=r"two tasks are called 'shift': lrtasks\.generators\.tasks\.shift and waves:"):
        registry.get("shift")
    assert registry.get("wave").name == "wave"


def test_entry_points_must_name_a_class_with_parameters(install: Install) -> None:
    registry = install({"waves.py": WAVE}, waves={"number": "waves:number", "gone": "waves:Gone"})
    with pytest.raises(UsageError, match="task 'number' must be a class with parameters, found 3"):
        registry.get("number")
    with pytest.raises(UsageError, match=r"task 'gone' from waves:Gone cannot be imported: .*Gone"):
        registry.get("gone")


def test_an_entry_point_must_use_the_name_of_its_class(install: Install) -> None:
    registry = install({"waves.py": WAVE}, waves={"wave": "waves:Wave", "ripple": "waves:Wave"})
    registry.get("wave")
    with pytest.raises(UsageError, match="entry point 'ripple' = waves:Wave brings the task called 'wave'"):
        registry.get("ripple")
    assert registry.get("wave").name == "wave"


def test_tasks_named_by_an_entry_point_reach_other_processes(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install({"waves.py": WAVE})
    import waves  # type: ignore[import-not-found]

    task = tasks.register("wave")(waves.Wave).make(length=3)
    monkeypatch.delitem(tasks._classes, "wave")
    code = "import pickle, sys; sys.path[:], task = pickle.load(sys.stdin.buffer); task = pickle.loads(task)\n"
    code += "print(task.name, task.batch([5]).x.tolist())"
    payload = pickle.dumps((sys.path, pickle.dumps(task)))
    second = subprocess.run([sys.executable, "-c", code], input=payload, capture_output=True, check=True)
    assert second.stdout.decode().strip() == f"wave {task.batch([5]).x.tolist()}"


@dataclass(frozen=True)
class Mine(Parametrised):
    """A class made by hand."""

    size: int = parameter(1, "a size")


def test_classes_are_registered_by_hand(install: Install) -> None:
    registry: Registry[Mine] = install({})  # type: ignore[assignment]
    assert registry.register("mine")(Mine) is Mine
    assert registry.get("mine") is Mine
    assert "mine" in registry.names()
    assert registry.presets("mine") == {}, "no file stands next to this module"


def test_one_name_has_one_class(install: Install) -> None:
    registry: Registry[Mine] = install({})  # type: ignore[assignment]
    registry.register("mine")(Mine)
    again = type("Mine", (Parametrised,), {"__module__": __name__, "__qualname__": "Mine"})
    assert registry.register("mine")(again) is again, "a notebook cell may be run twice"
    assert registry.get("mine") is again

    class Other(Mine):
        pass

    with pytest.raises(UsageError, match=f"two tasks are called 'mine': {__name__} and {__name__}"):
        registry.register("mine")(Other)
    with pytest.raises(
        UsageError, match=rf"two tasks are called 'shift': lrtasks\.generators\.tasks\.shift and {__name__}"
    ):
        registry.register("shift")(Mine)
    assert Mine.name == "mine"  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [3, None, ["shift"]])
def test_names_are_texts(install: Install, name: object) -> None:
    with pytest.raises(UsageError, match="the name of a task must be a text, found "):
        install({}).get(name)  # type: ignore[arg-type]


def test_unknown_names_are_answered_with_the_close_ones(install: Install) -> None:
    registry = install({"waves.py": WAVE}, waves={"wave": "waves:Wave"})
    with pytest.raises(UsageError, match="unknown task 'wvae'; did you mean 'wave'"):
        registry.get("wvae")
    with pytest.raises(UsageError, match="unknown task 'wvae'"):
        registry.presets("wvae")
