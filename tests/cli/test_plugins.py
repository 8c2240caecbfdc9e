"""Tasks and models of other packages on the command line: good ones among broken ones, and ``lrtasks check``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from plugin_packages import IDENTITY, WAVE, importable, write_package

from lrtasks import generators, models
from lrtasks.bench.measure import Settings
from lrtasks.bench.run import all_models, make_cases
from lrtasks.suite.expand import make_suite

Command = Callable[..., Any]
TINY = ("--steps", 2, "--batch-size", 2, "--val-batches", 1, "--test-batches", 1, "--workers", 0, "--device", "cpu")


def with_presets(presets: str) -> str:
    """The model of :data:`IDENTITY` with these presets."""
    return IDENTITY.replace("    def mixer", f"    presets = {presets}\n\n    def mixer")


FILES = {
    "waves.py": WAVE,
    "same.py": with_presets("{'small': {'d_model': 8}}"),
    "broken.py": "print('hello')\nimport no_such_module\n",
    "ripples.py": WAVE.replace("    length: int", "    presets = 3\n    length: int"),
    # a model that reads tokens alone, presets that name what is not there
    "choosy.py": IDENTITY.replace(
        "def mixer(self, length, causal):", "def mixer(self, length, causal):\n        1 / 0"
    ),
    "odd.py": with_presets("{'small': {'width': 8}, 'other/wvae': {'budget.steps': 3}}"),
}


@pytest.fixture
def plugins(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with good entries, one with broken ones, and two that bring one name."""
    folder = tmp_path_factory.mktemp("site")
    write_package(folder, "good", FILES, tasks={"wave": "waves:Wave"}, models={"same": "same:Identity"})
    write_package(
        folder,
        "bad",
        {},
        tasks={"lost": "broken:Lost", "ripple": "ripples:Wave"},
        models={"lost-model": "broken:Model", "choosy": "choosy:Identity", "odd": "odd:Identity"},
    )
    write_package(folder, "one", {}, models={"twin": "same:Identity"})
    write_package(folder, "two", {}, models={"twin": "odd:Identity"})
    with importable(folder, monkeypatch):
        yield


@pytest.mark.usefixtures("plugins")
def test_list_names_what_cannot_be_used_and_why(command: Command) -> None:
    said = command("list")
    assert said.code == 0
    assert {"wave", "same", "shift", "dlr"} <= set(said.out.split())
    assert not {"lost", "ripple", "lost-model", "twin", "hello"} & set(said.out.split())
    lines = [line for line in said.err.splitlines() if line != "hello"]
    reasons = {
        "task 'lost' from broken:Lost (package bad) cannot be imported: ModuleNotFoundError: ": 1,
        "task 'ripple' from ripples:Wave (package bad): presets must map": 1,
        "model 'lost-model' from broken:Model (package bad) cannot be imported: ModuleNotFoundError: ": 1,
        "two models are called 'twin': ": 1,
    }
    assert {reason: sum(line.startswith(f"lrtasks: {reason}") for line in lines) for reason in reasons} == reasons
    assert len(lines) == len(reasons)
    found = json.loads(command("list", "--json").out)
    assert set(generators.names()) - set(found["tasks"]) == {"lost", "ripple"}
    assert set(models.names()) - set(found["models"]) == {"lost-model", "twin"}


@pytest.mark.usefixtures("plugins")
def test_what_is_good_works_among_what_is_broken(command: Command, tmp_path: Path) -> None:
    assert "Each position by itself." in command("describe", "same").out
    said = command("preview", "wave", "--length", 16)
    assert (said.code, said.out) == (0, "wrote wave.png\n")
    (record,) = json.loads(command("eval", "--model", "same", "--task", "wave", *TINY, "--json").out)
    assert record["status"] == "done"
    assert record["model"]["parameters"]["d_model"] == 8
    assert command("eval", "--model", "same", "--task", "shift", "--length", 16, *TINY).code == 0
    said = command("table")
    assert said.code == 0
    assert "wave" in said.out and "same" in said.out
    assert command("analyze", next((tmp_path / "runs" / "wave").iterdir())).code == 0


@pytest.mark.usefixtures("plugins")
def test_a_suite_of_everything_leaves_out_what_is_broken() -> None:
    # all models on one task and one model on all tasks: all on all are many
    suites = [make_suite({"tasks": "wave"}, {"steps": 3}), make_suite({"models": "dlr"}, {"steps": 3})]
    run = {(config.model.name, config.task.name) for suite in suites for config in suite.runs}
    skipped = {(model, task) for suite in suites for model, task, _ in suite.skipped}
    assert {("same", "wave"), ("dlr", "shift"), ("dlr", "wave")} <= run
    assert {("twin", "wave"), ("lost-model", "wave"), ("dlr", "lost"), ("dlr", "ripple")} <= skipped
    assert not {"twin", "lost-model", "lost", "ripple"} & {name for pair in run for name in pair}


@pytest.mark.usefixtures("plugins")
def test_a_bench_of_everything_leaves_out_what_is_broken() -> None:
    found = all_models()
    assert {"same", "dlr"} <= set(found) and not {"twin", "lost-model"} & set(found)
    assert make_cases(found, [16], Settings())


@pytest.mark.usefixtures("plugins")
def test_describe_a_model_that_cannot_be_built_on_shift(command: Command) -> None:
    said = command("describe", "choosy")
    assert said.code == 0
    problem = "choosy raised ZeroDivisionError: division by zero"
    assert f"at preset small on shift it cannot be built: {problem}" in said.out
    assert json.loads(command("describe", "choosy", "--json").out)["small"]["problem"].startswith(problem)


def test_a_package_that_takes_the_name_of_a_task_leaves_models_alone(
    command: Command, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("site")
    write_package(folder, "thief", {"waves.py": WAVE}, tasks={"shift": "waves:Wave"})
    with importable(folder, monkeypatch):
        assert command("describe", "shift").code == 2
        said = command("describe", "attention")
        assert said.code == 0 and "at preset small on shift: " in said.out


def test_check_passes_what_is_sound(command: Command) -> None:
    for words in (("--length", 16), ("--set", "task.length=16")):
        said = command("check", "cumsum", *words)
        assert (said.code, said.out) == (0, "task cumsum: no problems found\n")
    said = command("check", "attention", "--d-model", 8, "--set", "model.heads=2", "--json")
    assert said.code == 0
    assert json.loads(said.out) == {"kind": "model", "name": "attention", "problems": [], "refused": {}}


@pytest.mark.usefixtures("plugins")
def test_check_names_what_is_wrong_with_a_model(command: Command) -> None:
    said = command("check", "choosy")
    assert said.code == 1
    problem = "ZeroDivisionError: division by zero (line "
    assert f"- every case: it cannot be built: {problem}" in said.out
    assert len(said.out.splitlines()) == 2, "the same problem of several cases is told once"
    said = command("check", "odd")
    assert (said.code, said.out) == (2, "")
    assert "unknown parameter in preset small of odd: 'width'" in said.err
    said = command("check", "odd", "--preset", "paper", "--d-model", 8)
    assert said.code == 1
    found = said.out.splitlines()
    assert found[0] == "model odd: 2 problems found"
    assert found[1].startswith("- preset small: unknown parameter in preset small of odd")
    assert found[2].startswith("- preset other: unknown task 'wvae'; did you mean 'wave'")


def test_a_task_with_a_preset_in_a_folder_with_an_at_sign(command: Command, tmp_path: Path) -> None:
    """The preset is behind the last colon; samples of an odd length lack a value."""
    presets = "    presets = {'small': {'length': 4}, 'odd': {'length': 5}}\n    length: int"
    text = WAVE.replace("    length: int", presets).replace("_normal((self.length,", "_normal((self.length & ~1,")
    (tmp_path / "me@home").mkdir()
    (tmp_path / "me@home" / "waves.py").write_text(text)
    task = f"{tmp_path / 'me@home' / 'waves.py'}:Wave"
    for words in ((task,), (f"{task}@odd", "--length", 8)):
        assert command("check", *words).code == 0
    for words in ((f"{task}@odd",), (task, "--preset", "odd")):
        found = json.loads(command("check", *words, "--json").out)
        assert found["kind"] == "task" and any("shape" in problem for problem in found["problems"])
    said = command("check", f"{task}@even")
    assert said.code == 2 and "preset of" in said.err and "'even'" in said.err
    for name in (task, f"{task}@small"):
        assert "1 run" in command("eval", "--model", "lstm", "--task", name, *TINY, "--dry-run").out


def test_check_says_what_was_not_checked(
    command: Command, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("site")
    refusal = "\n        from lrtasks.errors import UsageError\n        if not causal: raise UsageError('one way only')"
    text = IDENTITY.replace("def mixer(self, length, causal):", f"def mixer(self, length, causal):{refusal}")
    write_package(folder, "one", {"oneway.py": text}, models={"one-way": "oneway:Identity"})
    with importable(folder, monkeypatch):
        said = command("check", "one-way")
    assert said.code == 0
    first, second = said.out.splitlines()
    assert first.startswith("not checked (bidirectional on signals; bidirectional on tokens; ")
    assert first.endswith(": one way only")
    assert second == "model one-way: no problems found"
