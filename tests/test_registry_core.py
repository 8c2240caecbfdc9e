"""The registry: built-in entries, entry points of other packages, presets, and their errors."""

from __future__ import annotations

import contextlib
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from plugin_packages import WAVE, importable, write_files, write_package

from lrtasks.config import Config, parameter
from lrtasks.errors import UsageError
from lrtasks.generators import Task
from lrtasks.generators.base import registry as tasks
from lrtasks.models import registry as models
from lrtasks.models.factory import model_factory
from lrtasks.registry import (
    Registry,
    file_digest,
    file_of,
    load_object,
    own_source,
    registered_only,
    source_digest,
)

Install = Callable[..., Registry[Task]]


def make_registry(base: str) -> Registry[Task]:
    """Return a registry of the built-in tasks whose entry points are read anew."""
    return Registry("task", base, "lrtasks.generators.tasks")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function that puts modules and distributions on the path and returns a registry that sees them."""

    def run(files: dict[str, str], **distributions: dict[str, str]) -> Registry[Task]:
        write_package(tmp_path, "files", files)
        for distribution, points in distributions.items():
            write_package(tmp_path, distribution, {}, tasks=points)
        return make_registry("lrtasks.generators:Task")

    with importable(tmp_path, monkeypatch):
        yield run


def test_entry_points_add_tasks(install: Install) -> None:
    files = {"waves.py": WAVE, "lrtasks_waves.py": WAVE}
    registry = install(files, waves={"wave": "waves:Wave", "more": "lrtasks_waves:Wave"})
    assert {"shift", "wave"} <= set(registry.names())
    assert "wave" not in registry.built_in()
    assert "waves" not in sys.modules, "listing imports nothing"
    cls = registry.get("wave")
    assert cls.name == "wave"
    assert cls.make(length=5).batch([0]).x.shape == (1, 5, 1)
    assert registry.get("wave") is cls
    assert own_source(registry.get("more")), "the name of a package may begin as the name of this one"


def test_an_address_serves_as_a_name(tmp_path: Path) -> None:
    registry = make_registry("lrtasks.generators:Task")
    (tmp_path / "waves.py").write_text(WAVE)
    cls = registry.get(f"{tmp_path / 'waves.py'}:Wave")
    assert cls.name == "Wave"
    assert cls.make(length=5).batch([0]).x.shape == (1, 5, 1)
    with registered_only(), pytest.raises(UsageError, match="code that a record names is not imported"):
        registry.get(f"{tmp_path / 'waves.py'}:Wave")
    assert registry.get(f"{tmp_path / 'waves.py'}:Wave") is cls
    assert registry.get("lrtasks.generators.tasks.shift:Shift").name == "shift"
    with pytest.raises(UsageError, match=r"must be a subclass of lrtasks\.generators\.Task, found 3"):
        registry.get(f"{tmp_path / 'waves.py'}:number")


@pytest.mark.parametrize("end", ["", "raise ValueError"])
def test_an_import_leaves_the_search_path_as_it_was(end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a file is imported, the path has the file's folder and the current one."""
    (tmp_path / "own").mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here_for_search.py").write_text("")
    (tmp_path / "own" / "beside_for_search.py").write_text("")
    (tmp_path / "own" / "mine.py").write_text(f"import here_for_search, beside_for_search\nWave = 3\n{end}\n")
    before = list(sys.path)
    for place in ("own/mine.py", "here_for_search", "no_such_module"):
        with contextlib.suppress(UsageError):
            load_object(f"{place}:Wave", "task")
        assert sys.path == before
    assert {"here_for_search", "beside_for_search"} <= set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path / "own")
    before = list(sys.path)
    (tmp_path / "own" / "mine.py").write_text("Wave = 4")
    assert load_object("own/mine.py:Wave", "task") == 4
    assert sys.path == before, "a folder that was on the path stays there"


def test_a_file_whose_import_fails_fails_again(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("Wave = 3\nraise ValueError('half')\n")
    for _ in range(2):
        with pytest.raises(UsageError, match=r"cannot be imported: ValueError: half \(line 2 of mine\.py\)"):
            load_object(f"{tmp_path / 'mine.py'}:Wave", "task")


def test_the_source_of_a_decorated_class_is_its_own_file(tmp_path: Path) -> None:
    decorator = """
import functools

def counted(target):
    @functools.wraps(target)
    def make(*args):
        return target(*args)
    return make
"""
    decorated = """
import functools
from decorators_for_source import counted

@counted
@counted
class Layer:
    pass

@counted
def layer():
    pass

part = functools.partial(layer)
"""
    (tmp_path / "decorators_for_source.py").write_text(decorator)
    (tmp_path / "mine.py").write_text(decorated)
    for name in ("Layer", "layer", "part"):
        found = load_object(f"{tmp_path / 'mine.py'}:{name}", "model")
        assert source_digest(found) == file_digest(tmp_path / "mine.py"), name


@pytest.mark.parametrize(
    "line",
    [
        "import helper",
        "from helper import a",
        "from .helper import a",
        "from . import helper",
        "from own import helper",
        "from own.helper import *",
        "from .deep import helper",
        "import deep.helper",
        "from own.deep.helper import a",
        "from ..beside import helper",
        "from lab.beside.helper import a",
        "from ..exported import a",
        "from .. import beside",
    ],
)
def test_the_digest_of_a_file_covers_the_files_of_its_folder_or_package_that_it_imports(
    line: str, tmp_path: Path
) -> None:
    files = {
        "exported/__init__.py": "from .inner import a",
        "exported/inner.py": "from lab.own import further",
        **dict.fromkeys(("own/helper.py", "own/deep/helper.py", "beside/helper.py"), "from lab.own.further import a"),
        "beside/__init__.py": "from . import helper",
        "own/main.py": f"{line}\nimport torch, outside",
        "own/further.py": "a = 1",
        "own/other.py": "a = 1",
        "../outside.py": "a = 1",
        "__init__.py": "",
        "own/__init__.py": "",
    }
    write_files(tmp_path / "lab", files)
    main, other, outside = (tmp_path / "lab" / name for name in ("own/main.py", "own/other.py", "../outside.py"))
    before = file_digest(main)
    for unused in (other, outside):
        unused.write_text("a = 2")
        assert file_digest(main) == before
    (tmp_path / "lab" / "own" / "further.py").write_text("a = 2")
    assert file_digest(main) != before


@pytest.mark.parametrize("inits", [("shop/__init__.py", "shop/deep/__init__.py"), ()], ids=["package", "namespace"])
def test_an_edit_of_a_package_is_seen_by_the_next_import(inits: tuple[str, ...], tmp_path: Path) -> None:
    files = {
        **dict.fromkeys(inits, ""),
        "shop/deep/helper.py": "a = 1",
        "mine.py": "from shop.deep import helper\nclass Layer:\n    a = helper.a\n",
    }
    write_files(tmp_path, files)
    address = f"{tmp_path / 'mine.py'}:Layer"
    first = load_object(address, "model")
    before = source_digest(first)
    (tmp_path / "shop" / "deep" / "helper.py").write_text("a = 23")
    assert source_digest(first) == before
    second = load_object(address, "model")
    assert (first.a, second.a) == (1, 23)
    assert source_digest(second) == file_digest(tmp_path / "mine.py") != before


LAYER = """
from functools import partial
from torch import nn
from hunted import n

class Layer(nn.Module):
    size = n
    def __init__(self, d_model):
        super().__init__()

Partial = partial(Layer)
"""


def test_the_digest_covers_the_packages_of_an_imported_module(tmp_path: Path) -> None:
    files = {
        "shop/__init__.py": "width = 1",
        "shop/deep/__init__.py": "",
        "shop/deep/helper.py": "",
        "lab/__init__.py": "from .new import gate",
        "lab/gate.py": "gate = 1",
        "lab/new.py": "gate = 2",
        "mine.py": "import shop.deep.helper\nfrom lab import gate\n",
    }
    write_files(tmp_path, files)
    for name in ("shop/__init__.py", "shop/deep/__init__.py", "lab/__init__.py", "lab/new.py"):
        before = file_digest(tmp_path / "mine.py")
        (tmp_path / name).write_text(f"{files[name]}\nmore = 1")
        assert file_digest(tmp_path / "mine.py") != before, name


@pytest.mark.parametrize("name", ["Layer", "Partial"])
def test_an_edit_that_is_taken_back_gives_the_first_digest(name: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(LAYER)
    found = []
    for number in (1, 22, 1):
        (tmp_path / "hunted.py").write_text(f"n = {number}")
        address = f"{tmp_path / 'mine.py'}:{name}"
        layer = load_object(address, "model")
        found.append((getattr(layer, "func", layer).size, model_factory(address).source))
    assert [size for size, _ in found] == [1, 22, 1]
    assert found[0] == found[2] != found[1]


def test_each_file_imports_the_files_of_its_own_folder(tmp_path: Path) -> None:
    for folder, number in (("one", 1), ("two", 22)):
        # the file with the name of a module of Python must not replace that module
        write_files(tmp_path / folder, {"mine.py": LAYER, "hunted.py": f"n = {number}", "functools.py": ""})
    layers = [load_object(f"{tmp_path / folder / 'mine.py'}:Layer", "model") for folder in ("one", "two", "one")]
    assert [layer.size for layer in layers] == [1, 22, 1]
    assert [source_digest(layer) for layer in layers[:2]] == [
        file_digest(tmp_path / folder / "mine.py") for folder in ("one", "two")
    ]


def test_the_folder_of_a_file_comes_before_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_files(tmp_path, {"hunted.py": "n = 22", "models/mine.py": LAYER, "models/hunted.py": "n = 1"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "models")])
    assert load_object("models/mine.py:Layer", "model").size == 1


def test_a_link_to_a_file_has_the_digest_of_its_target(tmp_path: Path) -> None:
    write_files(tmp_path / "real", {"mine.py": LAYER, "hunted.py": "n = 1"})
    (tmp_path / "mine.py").symlink_to(tmp_path / "real" / "mine.py")
    digests = [model_factory(f"{folder / 'mine.py'}:Partial").source for folder in (tmp_path, tmp_path / "real")]
    assert digests[0] == digests[1]


def test_a_partial_of_a_module_keeps_the_digest_of_the_code_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "moded.py").write_text(LAYER.replace("from hunted import n", "n = 1"))
    before = model_factory("moded:Partial").source
    (tmp_path / "moded.py").write_text(LAYER.replace("from hunted import n", "n = 22"))
    assert model_factory("moded:Partial").source == before


def test_the_digest_of_an_installed_file_covers_its_folder_only(tmp_path: Path) -> None:
    """A package like torch has thousands of files."""
    package = tmp_path / "site-packages" / "large"
    write_files(package, dict.fromkeys(("__init__.py", "nn/__init__.py", "nn/near.py", "core.py"), ""))
    main = package / "nn" / "main.py"
    main.write_text("from large import core\nfrom .near import a\nfrom large.nn import near")
    before = file_digest(main)
    (package / "core.py").write_text("a = 1")
    assert file_digest(main) == before
    (package / "nn" / "near.py").write_text("a = 1")
    assert file_digest(main) != before


def test_the_digest_covers_a_package_without_init_files(tmp_path: Path) -> None:
    main, helper = tmp_path / "lab" / "own" / "main.py", tmp_path / "lab" / "beside" / "helper.py"
    write_files(tmp_path / "lab", {"own/main.py": "from lab.beside.helper import a", "beside/helper.py": "a = 1"})
    before = file_digest(main)
    helper.write_text("a = 2")
    assert file_digest(main) != before


@pytest.mark.parametrize("length", [8, 9])
def test_two_files_of_one_name_are_two_modules(length: int, tmp_path: Path) -> None:
    """Also if their content is the same."""
    files = [tmp_path / folder / "waves.py" for folder in ("one", "two")]
    write_files(tmp_path, {"one/waves.py": WAVE, "two/waves.py": WAVE.replace("parameter(8,", f"parameter({length},")})
    registry = make_registry("lrtasks.generators:Task")
    first, second = (registry.get(f"{file}:Wave") for file in files)
    assert first is not second
    assert [file_of(first), file_of(second)] == files
    assert (first.make().parameters(), second.make().parameters()) == ({"length": 8}, {"length": length})
    assert [type(pickle.loads(pickle.dumps(cls.make()))) for cls in (first, second)] == [first, second]
    assert registry.get(f"{files[0]}:Wave") is first


def test_names_are_selected_by_list_or_text_or_all() -> None:
    registry = make_registry("lrtasks.generators:Task")
    assert registry.select(["shift"]) == ["shift"]
    assert "shift" in registry.select("all")
    assert registry.select("mine.py:Mine,all") == ["mine.py:Mine", *registry.select("all")]
    assert registry.select("shift, mine.py:Mine") == registry.select("shift,mine.py:Mine")
    assert registry.select("shift,mine.py:Mine") == ["shift", "mine.py:Mine"]
    with pytest.raises(UsageError, match="unknown task 'shfit'; did you mean 'shift'"):
        registry.select("shfit")
    with pytest.raises(UsageError, match="no task is chosen"):
        registry.select([])


def test_two_packages_with_one_name_are_both_named(install: Install) -> None:
    registry = install({"waves.py": WAVE}, one={"wave": "waves:Wave"}, two={"wave": "other:Wave"})
    assert registry.names().count("wave") == 1
    with pytest.raises(
        UsageError, match=r"two tasks are called 'wave': .*; rename one of them or uninstall it$"
    ) as found:
        registry.get("wave")
    assert all(origin in str(found.value) for origin in ("waves:Wave (package one)", "other:Wave (package two)"))


def test_a_package_cannot_take_a_built_in_name(install: Install) -> None:
    registry = install({"waves.py": WAVE}, one={"shift": "waves:Wave", "wave": "waves:Wave"})
    with pytest.raises(
        UsageError, match=r"two tasks are called 'shift': lrtasks\.generators\.tasks\.shift:Shift and waves:"
    ):
        registry.get("shift")
    assert registry.get("wave").name == "wave"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("waves:number", "(package it) must be a subclass of lrtasks.generators.Task, found 3"),
        (
            "lrtasks.models.dlr:DLR",
            "must be a subclass of lrtasks.generators.Task, found <class 'lrtasks.models.dlr.DLR'>",
        ),
        ("waves", "must be a subclass of lrtasks.generators.Task, found <module 'waves'"),
        ("waves:Gone", "cannot be imported: AttributeError: module 'waves' has no attribute 'Gone'"),
        ("waves Wave", "from waves Wave (package it) cannot be imported: AttributeError: "),
        ("exits:Wave", "cannot be imported: SystemExit: 3"),
        ("spelt:Wave", "cannot be imported: SyntaxError: "),
        ("lines:Wave", "cannot be imported: ValueError: one two"),
        (
            "bare:Bare",
            "(package it): put @dataclass(frozen=True) on top of class Bare, and a type after each name, to make ",
        ),
        ("plain:Plain", "parameter length has no description; write length: TYPE = parameter(DEFAULT, 'what it is')"),
        ("needy:Needy", "parameter length has no default; write length: TYPE = parameter(DEFAULT, 'what it is')"),
        ("odd:Odd", "it cannot be made with its defaults: TypeError: a parameter cannot be declared as dict"),
        ("rows:Rows", "it cannot be made with its defaults: ValueError: three four"),
    ],
)
def test_entry_points_must_name_a_task(install: Install, value: str, message: str) -> None:
    start = "from dataclasses import dataclass\nfrom lrtasks.generators import Task\n"
    start += "from lrtasks.config import parameter\n"
    files = {
        "waves.py": WAVE,
        "exits.py": "raise SystemExit(3)\n",
        "spelt.py": "class Wave(:\n",
        "lines.py": "raise ValueError('one\\n  two')\n",
        "bare.py": f"{start}class Bare(Task):\n    length: int = parameter(8, 'values')\n",
        "plain.py": f"{start}@dataclass(frozen=True)\nclass Plain(Task):\n    length: int = 8\n",
        "needy.py": f"{start}@dataclass(frozen=True)\nclass Needy(Task):\n    length: int\n",
        "odd.py": f"{start}@dataclass(frozen=True)\nclass Odd(Task):\n    length: dict = parameter(None, 'values')\n",
        "rows.py": f"{start}@dataclass(frozen=True)\nclass Rows(Task):\n"
        "    def check(self):\n        raise ValueError('three\\n  four')\n",
    }
    registry = install(files, it={"it": value}, waves={"wave": "waves:Wave"})
    for _ in range(2):  # the second time as the first
        with pytest.raises(UsageError, match=re.escape(message)):
            registry.get("it")
    assert list(registry.problems()) == ["it"]
    assert message in registry.problems()["it"]
    assert "it" not in registry.usable() and {"shift", "wave"} <= set(registry.usable())


def test_a_class_of_another_kind_keeps_its_name(install: Install) -> None:
    registry = install({}, it={"it": "lrtasks.models.dlr:DLR"})
    with pytest.raises(UsageError, match="must be a subclass of"):
        registry.get("it")
    with pytest.raises(UsageError, match=r"^dlr has no parameter"):
        models.get("dlr").make(no_such=1)


def test_a_task_may_refuse_its_defaults(install: Install) -> None:
    check = "\n    def check(self):\n        if self.length < 9: raise UsageError('too short')\n"
    text = f"from lrtasks.errors import UsageError\n{WAVE.replace('number = 3', '')}{check}"
    registry = install({"waves.py": text}, waves={"wave": "waves:Wave"})
    assert registry.problems() == {}
    assert registry.get("wave").make(length=9).batch([0]).x.shape == (1, 9, 1)


def test_an_entry_point_must_use_the_name_of_its_class(install: Install) -> None:
    named = WAVE.replace("length: int", 'name: ClassVar[str] = "surf"\n    length: int', 1)
    files = {"waves.py": WAVE, "surfs.py": f"from typing import ClassVar\n{named}"}
    registry = install(files, waves={"wave": "waves:Wave", "ripple": "waves:Wave"}, surfs={"foam": "surfs:Wave"})
    registry.get("wave")
    # samples depend on the name, and a second process knows only the one in the class
    for name, own in {"ripple": "wave", "foam": "surf"}.items():
        with pytest.raises(UsageError, match=f"entry point '{name}' = .* names a class called '{own}'"):
            registry.get(name)
    assert registry.get("wave").name == "wave"


def test_tasks_named_by_an_entry_point_reach_other_processes(install: Install) -> None:
    install({"waves.py": WAVE})
    import waves  # type: ignore[import-not-found]

    task = tasks.register("wave")(waves.Wave).make(length=3)
    del tasks._classes["wave"]  # as in a process that has not used it yet
    code = "import pickle, sys; sys.path[:], task = pickle.load(sys.stdin.buffer); task = pickle.loads(task)\n"
    code += "print(task.name, task.batch([5]).x.tolist())"
    payload = pickle.dumps((sys.path, pickle.dumps(task)))
    second = subprocess.run([sys.executable, "-c", code], input=payload, capture_output=True, check=True)
    assert second.stdout.decode().strip() == f"wave {task.batch([5]).x.tolist()}"


@dataclass(frozen=True)
class Mine(Config):
    """A class made by hand."""

    size: int = parameter(1, "a size")


def by_hand() -> Registry[Mine]:
    """Return a registry for any class with parameters."""
    return make_registry("lrtasks.config:Config")  # type: ignore[return-value]


def test_one_name_has_one_class() -> None:
    registry = by_hand()
    assert registry.register("mine")(Mine) is registry.get("mine") is Mine
    assert "mine" in registry.names()
    again = type("Mine", (Config,), {"__module__": __name__, "__qualname__": "Mine"})
    assert registry.register("mine")(again) is again, "a notebook cell may be run twice"
    assert registry.get("mine") is again

    class Other(Mine):
        pass

    with pytest.raises(UsageError, match=f"two tasks are called 'mine': {__name__}:Mine and {__name__}:"):
        registry.register("mine")(Other)
    with pytest.raises(
        UsageError, match=rf"two tasks are called 'shift': lrtasks\.generators\.tasks\.shift:Shift and {__name__}"
    ):
        registry.register("shift")(Mine)
    assert Mine.name == "mine"  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [3, None, ["shift"]])
def test_names_are_strings(install: Install, name: object) -> None:
    with pytest.raises(UsageError, match="the name of a task must be a string, found "):
        install({}).get(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "a,b", "-a", "all", "a" * 101, "<b>"])
def test_names_that_could_be_no_folders_or_options_are_refused(install: Install, name: str) -> None:
    registry = install({"waves.py": WAVE}, waves={"wave": "waves:Wave"})
    wave = registry.get("wave")
    with pytest.raises(UsageError, match="cannot be the name of a task: use letters, digits") as caught:
        registry.register(name)(wave)
    assert repr(name) in str(caught.value)


def test_a_package_with_such_a_name_is_told_of_and_the_rest_works(install: Install) -> None:
    registry = install({"waves.py": WAVE}, waves={"..": "waves:Wave"})
    assert "'..' cannot be the name of a task" in registry.problems()[".."]
    assert ".." not in registry.usable() and "shift" in registry.usable()


@pytest.mark.parametrize("name", ["λ-wave", "wave_2.1", "2d"])
def test_letters_of_any_language_and_digits_make_a_name(install: Install, name: str) -> None:
    assert install({"waves.py": WAVE}, waves={name: "waves:Wave"}).get(name).name == name
