"""A user's own models, mixers and tasks in the commands that take a name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import equal, zeros

from lrtasks import load_model
from lrtasks.bench.measure import Case, Settings, cost
from lrtasks.bench.run import identity, make_cases
from lrtasks.errors import UsageError
from lrtasks.models.factory import model_parameter_names
from lrtasks.registry import file_digest, load_object
from lrtasks.run_config import RunConfig
from lrtasks.suite.expand import make_suite

Command = Callable[..., Any]
MINE = "mine.py:MyLayer"
CODE = '''
from dataclasses import dataclass

import numpy as np
from torch import nn

from lrtasks.config import parameter
from lrtasks.generators import Sample, Spec, Task


class MyLayer(nn.Module):
    """A map."""

    def __init__(self, d_model, window: int = 4, act=nn.GELU, sizes: list[int] = ()):
        super().__init__()
        self.net = nn.Sequential(*(nn.Linear(d_model, d_model) for _ in range(window)), act())

    def forward(self, x):
        return self.net(x)


class Whole(nn.Module):
    def __init__(self, input, target, **anything):
        super().__init__()


class Huge(nn.Module):
    def __init__(self, input, target):
        super().__init__()
        self.out = nn.Linear(10**7, 10**7)


class Bare(nn.Module):
    def forward(self, x):
        return x


class Talks(MyLayer):
    def forward(self, x):
        print("called")
        return super().forward(x)


class Odd(MyLayer):
    def diagnostics(self):
        return {"rate": float("nan")}


class Leaves(MyLayer):
    def forward(self, x):
        raise SystemExit(0)


class Asserts(MyLayer):
    def __init__(self, d_model):
        super().__init__(d_model)
        assert d_model % 3 == 0, "d_model must be a multiple of 3"


class Rates(MyLayer):
    def __init__(self, d_model):
        super().__init__(d_model)
        self.rate = nn.Linear(1, 1).bias.item()


class Misfits(MyLayer):
    def forward(self, x):
        return self.net(x[..., :3])  # raises inside torch


class Backwards(MyLayer):
    def forward(self, x):
        y = self.net(x)
        if y.requires_grad:
            y.register_hook(self.gradient)
        return y

    def gradient(self, slope):
        raise ValueError("no slope")


class Steps(MyLayer):
    """Its ``step`` and ``initial_state`` are not a streaming form."""

    def initial_state(self):
        return None

    def step(self):
        return None


made = MyLayer(8)


class Neither(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()


@dataclass(frozen=True)
class Copy(Task):
    """The input again."""

    length: int = parameter(32, "sequence length", at_least=2)

    @property
    def input(self):
        return Spec("real", self.length, width=1)

    target = input

    def sample(self, rng):
        x = rng.standard_normal((self.length, 1)).astype(np.float32)
        return Sample(x, x)


class Doubled(Copy):
    """The target is twice the input; its test is another class of this file."""

    name = "doubled"

    def sample(self, rng):
        x = super().sample(rng).x
        return Sample(x, 2 * x)

    def tests(self):
        return {"other": Plain(self.length)}


@dataclass(frozen=True)
class Plain(Task):
    length: int = parameter(32, "sequence length", at_least=2)
    input = Copy.input
    target = Copy.target
    sample = Copy.sample


class Named(Copy):
    name = "named"

    def tests(self):
        return {"val": Copy(8)}


class Wider(Copy):
    name = "wider"

    @property
    def input(self):
        return Spec("real", self.length, width=2)

    def tests(self):
        return {"narrow": Copy(self.length)}


class Rare(Copy):
    """A sample in a hundred is wrong."""

    name = "rare"

    def sample(self, rng):
        x, y = super().sample(rng)[:2]
        return Sample(x, y if rng.random() > 0.01 else y * np.nan)


class Pair(Copy):
    name = "pair"

    def sample(self, rng):
        return tuple(super().sample(rng)[:2])


class Nothing(Copy):
    name = "nothing"
    input = Task.input


class Sliced(Copy):
    name = "sliced"

    def slices(self, batch):
        return {"part": np.zeros(5)}


class Guessed(Copy):
    name = "guessed"

    def baselines(self):
        return {"three": 3}
'''


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)


def test_an_own_layer_is_described_with_its_arguments_and_the_stacks(command: Command) -> None:
    found = json.loads(command("describe", MINE, "--json").out)
    entries = {entry["name"]: entry for entry in found["parameters"]}
    assert (found["kind"], found["summary"]) == ("model", "A map.")
    assert (entries["window"]["default"], entries["window"]["type"], entries["act"]["default"]) == (4, "int", "GELU")
    assert entries["sizes"]["type"] == "list[int]"
    assert entries["layers"]["at_least"] == 1
    assert found["small"]["parameters"] > 0 and found["small"]["state_bytes"] is None
    assert "list[int]" in command("describe", MINE).out
    assert json.loads(command("describe", "torch.nn:GRU", "--json").out)["parameters"] == []


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("describe", "mine.py:Neither"), "(d_in, d_out)"),
        (("check", "mine.py:Neither"), "(d_in, d_out)"),
        (("eval", "--task", "shift", "--model", "torch.nn:GRU"), "GRU(*args, **kwargs)"),
        (("describe", "mine.py:Bare"), "found arguments: none, as it has no __init__"),
    ],
)
def test_what_is_no_model_is_refused_in_one_line(command: Command, words: tuple[str, ...], found: str) -> None:
    said = command(*words)
    assert said.code == 2 and len(said.err.splitlines()) == 1
    assert "MIXER(d_model, ...) or MODEL(input, target, ...)" in said.err and found in said.err


def test_check_takes_settings_by_the_label(command: Command) -> None:
    assert command("check", MINE, "--set", "MyLayer.window=2").code == 0
    said = command("check", MINE, "--set", "task.window=2")
    assert said.code == 1 and "task.window" in said.out


def test_check_says_in_one_line_what_does_not_fit_into_memory(command: Command) -> None:
    said = command("check", "mine.py:Huge")
    reason, found, *_ = said.out.splitlines()
    assert reason.endswith(": not enough memory to build Huge; choose a smaller model")
    assert (said.code, found) == (1, "model mine.py:Huge: 1 problem found")


def test_a_built_module_has_no_address(command: Command) -> None:
    said = command("eval", "--model", "mine.py:made", *SHORT)
    assert said.code == 2
    assert "a model must be the address of a class or a function, found an object of type MyLayer" in said.err
    said = command("eval", "--model", "mine.py:nn", *SHORT)
    assert said.code == 2 and "found an object of type module" in said.err


def test_methods_that_are_no_streaming_form_do_not_stop_a_run(command: Command) -> None:
    said = command("eval", "--model", "mine.py:Steps", *SHORT, "--json")
    assert [record["model"]["state_bytes"] for record in json.loads(said.out)] == [None]
    assert "step fails at position 0: TypeError" in command("check", "mine.py:Steps").out


SHORT = ("--task", "shift", "--length", 8, "--steps", 2, "--test-batches", 1)


def test_a_problem_of_several_layers_names_each_case_once(command: Command) -> None:
    (problem,) = json.loads(command("check", "mine.py:Odd", "--json").out)["problems"]
    assert problem.startswith("every case: ")


def test_what_a_layer_prints_does_not_mix_with_json(command: Command) -> None:
    said = command("eval", "--model", "mine.py:Talks", *SHORT, "--json")
    assert [record["model"]["name"] for record in json.loads(said.out)] == ["Talks"]
    assert "called" in said.err
    assert json.loads(command("check", "mine.py:Talks", "--json").out)["kind"] == "model"
    shown = command("table", "runs", "--models", "mine.py:Talks")
    assert shown.code == 0 and "Talks" in shown.out


@pytest.mark.parametrize("words", [("check",), ("eval", *SHORT, "--model"), ("eval", *SHORT, "--dry-run", "--model")])
def test_a_layer_that_leaves_the_program_does_not_pass_for_success(command: Command, words: tuple[str, ...]) -> None:
    said = command(*words, "mine.py:Leaves")
    assert said.code == 1 and "called sys.exit" in said.err


def line_of(text: str) -> str:
    """Return the place of the line of CODE that has ``text``, as messages name it."""
    return f"(line {next(n for n, line in enumerate(CODE.splitlines(), 1) if text in line)} of mine.py)"


def test_a_layer_that_cannot_be_made_is_refused(command: Command) -> None:
    said = command("eval", "--model", "mine.py:Asserts", *SHORT)
    assert said.code == 2 and not Path("runs").exists()
    problem = f"AssertionError: d_model must be a multiple of 3 {line_of('d_model % 3')}"
    assert said.err == f"lrtasks: Asserts raised {problem}\n"
    suite = make_suite({"models": ["mine.py:Asserts"], "tasks": ["shift"]}, {})
    assert suite.runs and not suite.skipped, "a suite does not leave it out silently"
    said = command("check", "mine.py:Asserts")
    assert said.code == 1 and problem in said.out
    assert command("check", "mine.py:Asserts", "--d-model", 3).code == 0


@pytest.mark.parametrize(
    ("name", "line"), [("Misfits", line_of("raises inside torch")), ("Backwards", line_of("no slope"))]
)
def test_an_error_of_a_layer_names_its_line(command: Command, name: str, line: str) -> None:
    said = command("eval", "--model", f"mine.py:{name}", *SHORT)
    assert said.code == 1 and line in said.err and len(said.err.splitlines()) == 1
    (record,) = Path("runs").rglob("record.json")
    assert line in json.loads(record.read_text())["notes"][0]
    assert line in command("check", f"mine.py:{name}").out


def test_the_class_of_a_moved_file_is_passed_to_load_its_weights(command: Command) -> None:
    assert command("eval", "--model", MINE, *SHORT).code == 0
    folder = next(Path("runs").rglob("record.json")).parent
    Path("mine.py").rename("moved.py")
    with pytest.raises(UsageError, match=r"there is no file .*mine\.py; .*load_model\(folder, model="):
        load_model(folder)
    moved = load_object("moved.py:MyLayer", "model")
    assert load_model(folder, model=moved)(zeros(1, 8, 3)).shape == (1, 8, 8)
    with pytest.raises(UsageError) as found:
        load_model(folder, model="no.py:MyLayer")
    assert "model=" not in str(found.value)


def test_the_class_of_a_moved_task_is_passed_to_load_a_model(command: Command) -> None:
    Path("mine.py").rename("task.py")
    assert command("eval", "--model", "dlr", "--task", "task.py:Copy", *SHORT[2:]).code == 0
    folder = next(Path("runs").rglob("record.json")).parent
    trained = load_model(folder)
    Path("task.py").rename("moved.py")
    with pytest.raises(UsageError, match=r"there is no file .*task\.py; .*load_model\(folder, task=CLASS\)"):
        load_model(folder)
    for task in ("moved.py:Copy", load_object("moved.py:Copy", "task")):
        found = load_model(folder, task=task).state_dict()
        assert all(equal(value, found[name]) for name, value in trained.state_dict().items())
    with pytest.raises(UsageError) as refused:
        load_model(folder, task="no.py:Copy")
    assert "task=" not in str(refused.value)


def test_an_address_below_a_file_names_no_file(command: Command) -> None:
    said = command("check", "mine.py/layer.py:MyLayer")
    assert said.code == 2 and "there is no file" in said.err and len(said.err.splitlines()) == 1


def test_a_problem_of_every_preset_is_reported_once(command: Command) -> None:
    presets = "presets = {'small': {'length': 8}, 'paper': {'length': 9}, 'broken': {'length': -1}}"
    text = (
        Path("mine.py")
        .read_text()
        .replace("class Copy(Task):\n", f"class Copy(Task):\n    name = 'a b'\n    {presets}\n")
    )
    Path("mine.py").write_text(text)
    said = command("check", "mine.py:Copy")
    assert said.code == 1 and said.out.count("cannot be the name of a task") == 1
    assert "- preset broken: " in said.out and "preset paper" not in said.out


def test_an_own_task_without_preset_small_is_previewed_with_its_defaults(command: Command) -> None:
    text = Path("mine.py").read_text()
    Path("mine.py").write_text(
        text.replace("class Copy(Task):\n", "class Copy(Task):\n    presets = {'big': {'length': 9}}\n")
    )
    assert command("preview", "mine.py:Copy").code == 0
    assert "unknown preset" in command("preview", "mine.py:Copy", "--preset", "bigger").err


def test_an_own_task_is_described_drawn_and_stored(command: Command, tmp_path: Path) -> None:
    assert json.loads(command("describe", "mine.py:Copy", "--json").out)["kind"] == "task"
    said = [command("describe", name).out for name in ("shift", "mine.py:Plain")]
    assert ["preset small" in " ".join(text.split()) for text in said] == [True, False]
    assert command("preview", "mine.py:Copy", "--length", "8").code == 0
    assert (tmp_path / "Copy.png").exists()
    assert command("generate", "mine.py:Copy", "--samples", 4, "--split", "0.5,0.25,0.25", "--workers", 1).code == 0
    assert (tmp_path / "data" / "Copy-4-seed0" / "manifest.json").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Named", "a test cannot be called 'val'"),
        ("Wider", "test narrow of wider needs another model"),
        ("Rare", "rare: in its samples y holds values that are not finite"),
        ("Pair", "sample() must return lrtasks.generators.Sample(x, y), found tuple"),
        ("Nothing", "input is missing: write a property that returns a lrtasks.generators.Spec"),
        ("Sliced", "slice 'part' must broadcast to y, (16, 8, 1), found (5,)"),
        ("Guessed", "baseline three must have the methods fit and predict, found 3"),
    ],
)
def test_mistakes_of_an_own_task_are_named_before_training(command: Command, name: str, message: str) -> None:
    said = command("eval", "--model", "mine.py:MyLayer", "--task", f"mine.py:{name}", *SHORT[2:])
    assert said.code == 2 and message in said.err
    assert not list(Path("runs").rglob("record.json"))
    assert name != "Named" or message in command("check", "mine.py:Named").out


def test_a_test_may_be_another_class_of_the_file(command: Command) -> None:
    said = command("eval", "--model", "mine.py:MyLayer", "--task", "mine.py:Doubled", *SHORT[2:], "--json")
    (record,) = json.loads(said.out)
    assert record["scores"]["other"]["r2"] is not None and not record["notes"]


def test_runs_are_chosen_by_the_address_of_a_task(command: Command) -> None:
    for task in ("mine.py:Copy", "shift"):
        assert command("eval", "--model", MINE, "--task", task, *SHORT[2:]).code == 0
    assert [row["task"] for row in json.loads(command("table", "--tasks", "mine.py:Copy", "--json").out)] == ["Copy"]
    said = command("table", "--tasks", "mine.py:Plain")
    assert (said.code, said.err) == (2, "lrtasks: unknown task 'Plain'. Allowed: Copy, shift\n")


def test_an_edited_task_is_another_run(command: Command) -> None:
    words = ("eval", "--model", "dlr", "--d-model", 4, "--d-state", 4, "--task", "mine.py:Copy", *SHORT[2:], "--json")
    before = json.loads(command(*words).out)[0]
    Path("mine.py").write_text(CODE.replace("return Sample(x, x)", "return Sample(x, -x)"))
    after = json.loads(command(*words).out)[0]
    assert before["digest"] != after["digest"]
    assert before["scores"]["test"] != after["scores"]["test"]
    assert json.loads(command(*words).out)[0] == after, "the same source is the same run"


def test_the_budget_is_described(command: Command) -> None:
    found = json.loads(command("describe", "budget", "--json").out)
    assert {"steps", "lr", "test_lengths"} <= {entry["name"] for entry in found["parameters"]}
    assert found["presets"]["paper"]["steps"] == 43_200


def test_own_arguments_need_no_owner() -> None:
    """``--d-model`` and ``--window`` of an own layer are known by their names, as those of a registered model are."""
    made = RunConfig.make("shift", MINE, settings={"d_model": 8, "window": 2, "MyLayer.layers": 3})
    assert made.model.parameters == {"d_model": 8, "window": 2, "layers": 3}
    assert made.settings == {"model.d_model": 8, "model.window": 2, "model.layers": 3}
    with pytest.raises(UsageError, match="did you mean 'window'") as caught:
        RunConfig.make("shift", MINE, settings={"windw": 2})
    assert "model has: layers, d_model" in str(caught.value)
    assert model_parameter_names("mine.py:Whole") == ["**anything"]


def test_a_setting_of_one_model_of_a_suite() -> None:
    content = {"models": [MINE, "dlr"], "tasks": ["shift"]}
    suite = make_suite(content, {"MyLayer.window": "2,3", "dlr.d_state": 16})
    found = [
        (run.model.name, run.model.parameters.get("window"), run.model.parameters.get("d_state")) for run in suite.runs
    ]
    assert found == [("MyLayer", 2, None), ("dlr", None, 16), ("MyLayer", 3, None)]
    assert not suite.skipped
    for setting, name in (("MyLayr.window", "MyLayr.window"), ("MyLayer.windw", "windw")):
        with pytest.raises(UsageError, match=f"no run is possible .* unexpected keyword argument '{name}'"):
            make_suite(content, {setting: 2})


def test_a_misspelt_label_is_no_argument_of_a_model_that_takes_any() -> None:
    run = RunConfig.make("shift", "mine.py:Whole", settings={"Whle.window": 2})
    with pytest.raises(UsageError, match=r"Whole cannot have an argument 'Whle\.window'"):
        run.build()


def test_a_setting_of_two_models_with_one_label_applies_to_both() -> None:
    Path("other.py").write_text(CODE)
    suite = make_suite({"models": [MINE, "other.py:MyLayer", "dlr"], "tasks": ["shift"]}, {"MyLayer.window": 2})
    assert [run.model.parameters.get("window") for run in suite.runs] == [2, 2, None]


def test_bench_builds_an_own_layer_at_the_shared_width() -> None:
    cases = make_cases([MINE], [16], Settings(d_model=8, layers=1), hyper={"model": {"window": 2}})
    mine = cases[1]
    assert identity(mine)["model"] == "MyLayer"
    assert identity(mine)["hyper"] == {"d_model": 8, "layers": 1, "window": 2}
    assert [type(layer).__name__ for layer in mine.build().blocks[0].mixer.mixer.net] == ["Linear", "Linear", "GELU"]  # type: ignore[union-attr, index]
    before = identity(mine)["module"]
    Path("mine.py").write_text(CODE + "\n# edited\n")
    assert identity(Case(MINE, 16, Settings(d_model=8, layers=1)))["module"] != before
    for hyper, message in (({"MyLayer": {"windw": 2}}, "windw"), ({"MyLayr": {"window": 2}}, "did you mean 'MyLayer'")):
        with pytest.raises(UsageError, match=message):
            make_cases([MINE], [16], Settings(d_model=8, layers=1), hyper=hyper)


def test_bench_measures_a_layer_whose_constructor_needs_values() -> None:
    case = make_cases(["mine.py:Rates"], [16], Settings(d_model=8, layers=1, repeats=1))[1]
    assert cost(case, "inference", False)["cpu_seconds"]


def test_tasks_of_two_files_with_one_name_stay_apart(command: Command) -> None:
    """Both runs have the same parameters and seed; a task in a table or a profile is the one of its file."""
    for name in ("one", "two"):
        Path(f"{name}.py").write_text(f"{CODE}\n# {name}\n")
    tasks = ["one.py:Copy", "two.py:Copy"]
    scores = {}
    for task, score in zip(tasks, (0.9, 0.2), strict=True):
        config = RunConfig.make(task, "dlr", settings={"lr": 1e-3})
        record = config.record("done")
        metric = record.task["metric"]
        record.scores, record.baselines = {"test": {metric: score}}, {"guess": {metric: 0.0}}
        record.model["count"], record.cost = 1, {"seconds_per_step": 0.01, "seconds": 1.0, "device": "cpu"}
        folder = config.folder(Path("runs"))
        folder.mkdir(parents=True)
        record.write(folder)
        scores[task] = score
    for task, score in scores.items():
        found = json.loads(command("table", "--tasks", task, "--json").out)
        assert [cell["score"] for cell in found] == [score]
    both = json.loads(command("table", "--tasks", "Copy", "--json").out)
    assert {cell["row"] for cell in both} == {f"Copy (source={file_digest(Path(task[:6]))[:8]})" for task in tasks}
    profile = ("profile", "--model", "dlr", "--tasks", ",".join(tasks), "--lr", "1e-3", "--seeds", "1", "--json")
    groups = json.loads(command(*profile).out)[0]["groups"].values()
    assert {cell["instance"]: cell["scaled"] for group in groups for cell in group["cells"]} == scores
    Path("one.py").write_text(f"{CODE}\n# edited\n")
    assert len(json.loads(command("table", "--tasks", "one.py:Copy", "--json").out)) == 2  # no run of its content
