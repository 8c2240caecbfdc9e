"""Run configs: merged presets, assigned settings, and digests that identify runs."""

from __future__ import annotations

import importlib
import re
import shlex
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

import lrtasks
from lrtasks import generators, models
from lrtasks.budget import DEFAULTS, Budget
from lrtasks.check import problems_of
from lrtasks.check.task import check_task
from lrtasks.config import parse_assignment
from lrtasks.errors import UsageError
from lrtasks.generators.tasks.recall import Recall
from lrtasks.registry import file_digest
from lrtasks.run_config import RunConfig
from lrtasks.suite.run import run_suite

PRESETS = [
    *((task, None, preset) for task in generators.names() for preset in generators.registry.get(task).presets),
    *(
        (preset.partition("/")[2] or "shift", model, preset.partition("/")[0])
        for model in models.names()
        for preset in models.registry.get(model).presets
    ),
]


class Mixer(nn.Module):
    def __init__(self, d_model: int, window: int = 2) -> None:
        super().__init__()
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x)


class Lengthy(Mixer):
    def __init__(self, d_model: int, length: int = 2) -> None:
        super().__init__(d_model)


def test_later_presets_win() -> None:
    config = RunConfig.make(
        "listops", "dlr", preset="paper", settings={"steps": 7000, "model.dt_min": 0.5, "dt_max": 0.6}
    )
    assert config.budget.steps == 7000, "the user's"
    assert config.budget.batch_size == 32, "the task's"
    assert config.budget.lr == 8e-4, "the model's for this task"
    assert RunConfig.make("sort", "gru").budget.lr == 3e-3, "the task's, not the 1e-3 of the model"
    assert config.model.parameters["d_state"] == 1024, "the model's for this task"
    assert config.model.parameters["dt_min"] == 0.5
    assert RunConfig.make("shift", "dlr").budget == Budget(**DEFAULTS["small"], lr=1e-3)


def test_a_model_may_have_settings_for_one_preset_of_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = {
        task: RunConfig.make(task, "longvq").model.parameters["window"]
        for task in ("word-problem@a5", "word-problem@s3")
    }
    assert windows == {"word-problem@a5": 8, "word-problem@s3": 32}
    assert RunConfig.make("word-problem@a5", "longvq", settings={"window": 6}).model.parameters["window"] == 6
    presets = {**models.registry.get("longvq").presets, "small/word-problem": {"window": 16}}
    monkeypatch.setattr(models.registry.get("longvq"), "presets", presets)
    assert RunConfig.make("word-problem@a5", "longvq").model.parameters["window"] == 8


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, 100), ({"steps": 300}, 100), ({"steps": 50}, 50), ({"steps": 50, "warmup_steps": 7}, 7)],
)
def test_a_run_that_is_shorter_than_the_warm_up_of_its_preset_is_all_warm_up(
    settings: dict[str, int], expected: int
) -> None:
    assert RunConfig.make("shift", "gru", settings=settings).budget.warmup_steps == expected
    with pytest.raises(UsageError, match="warmup_steps must be at most steps"):
        RunConfig.make("shift", "gru", settings={"steps": 50, "warmup_steps": 60})


@pytest.mark.parametrize(("task", "model", "preset"), PRESETS)
def test_every_preset_is_valid(task: str, model: str | None, preset: str) -> None:
    RunConfig.make(task, model or Mixer, preset=preset)


@pytest.mark.parametrize("preset", ["small", "paper"])
def test_everything_of_ours_has_both_presets(preset: str) -> None:
    registries: list[Any] = [generators.registry, models.registry]
    assert [
        name for registry in registries for name in registry.built_in() if preset not in registry.get(name).presets
    ] == []


@pytest.mark.parametrize(
    ("setting", "listed"),
    [
        ("lenght", {"length"}),
        ("kernl", {"d_state"}),
        ("stpes", {"batch_size"}),
        ("foo", {"length", "d_state"}),
    ],
)
def test_only_the_parameters_of_the_likely_owner_are_listed(setting: str, listed: set[str]) -> None:
    with pytest.raises(UsageError, match=f"called '{setting}'") as caught:
        RunConfig.make("cumsum", "dlr", settings={setting: 8})
    words = re.findall(r"\w+", str(caught.value).partition("(")[2])
    assert listed == {"length", "d_state", "batch_size"}.intersection(words)


@pytest.mark.parametrize(
    ("task", "model", "arguments", "message"),
    [
        ("shift@smal", "dlr", {}, "unknown preset of shift: 'smal'; did you mean 'small'"),
        ("listops", "dlr", {"preset": "paper/listops"}, "unknown preset 'paper/listops'"),
        ("shift", Lengthy, {"settings": {"length": 8}}, r"task and model: write task\.length or model\.length"),
        ("shift", "dlr", {"settings": {"model": 8}}, "no task or model or budget parameter is called 'model'"),
        ("shift", "dlr", {"settings": {"steps": 8, "budget.steps": 9}}, "steps is given twice: 8 and 9"),
        ("shift", Mixer, {"settings": {"windw": 8}}, "called 'windw'; did you mean 'window'"),
        ("shift", Mixer, {"settings": {"model.windw": 8}}, "'windw'; did you mean 'window'"),
        ("shift", Mixer, {"settings": {"Mixr.window": 8}}, "'Mixr.window'; did you mean 'Mixer.window'"),
        ("shift", "dlr", {"settings": {"drl.d_state": 8}}, "'drl.d_state'; did you mean 'dlr.d_state'"),
        ("shift", "dlr", {"settings": {"stop_at": 1.5}}, "budget: stop_at must be at most 1, found 1.5"),
        (
            "shift",
            "dlr",
            {"settings": {"test_lengths": "64,128,64"}},
            r"test_lengths must be different lengths, found \[64, 128, 64\]",
        ),
        ("dyck", "dlr", {"settings": {"class_weights": "1,2"}}, "per class: found 2, but dyck has [0-9]+ classes"),
        ("shift", "dlr", {"settings": {"class_weights": "1,2"}}, "found 2, but shift has real values and no classes"),
        (3, "dlr", {}, "task must be a name or a task"),
        ("shift", 3, {}, "a model must be a name, a class, a function or a module, found int"),
    ],
)
def test_what_a_user_can_mistake_is_told(task: Any, model: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RunConfig.make(task, model, **arguments).build()


def test_the_digest_tells_runs_apart() -> None:
    base = RunConfig.make("shift", "dlr")
    assert base.digest == RunConfig.make("shift", "dlr", settings={"length": np.int64(256)}).digest
    changes = {"accumulate": 2, "checkpoint_blocks": True, "stop_at": 0.5, "clip": 0.5}
    others = [
        *(RunConfig.make("shift", "dlr", settings={name: value}) for name, value in changes.items()),
        RunConfig.make("shift", "dlr", seed=1),
        RunConfig.make("shift", "dlr", settings={"length": 128}),
        RunConfig.make("shift", "dlr", settings={"d_state": 4}),
        RunConfig.make("shift", "dlr", settings={"lr": 0.1}),
        RunConfig.make("cumsum", "dlr"),
        RunConfig.make("shift", "dss"),
        replace(base, data_digest="digest of a dataset"),
        *(replace(base, test_digests={"own": digest}) for digest in ("digest of a dataset", "digest of another")),
    ]
    assert len({config.digest for config in (base, *others)}) == 1 + len(others)
    settings = {"window": 3, "layers": 1}
    ways = [
        RunConfig.make("shift", Mixer, settings=dict(sorted(settings.items(), reverse=back))) for back in (False, True)
    ]
    assert ways[0].digest == ways[1].digest, "the order of settings has no meaning"


def test_a_task_that_was_made_before_an_edit_is_the_earlier_task(tmp_path: Path) -> None:
    file = tmp_path / "delays.py"
    file.write_text("from lrtasks.generators.tasks.shift import Shift\n\n\nclass Delay(Shift):\n    pass\n")
    address = f"{file}:Delay"
    before, digest = lrtasks.make(address), file_digest(file)
    file.write_text(file.read_text() + "    version = 2\n")
    config = RunConfig.make(before, "dlr")
    assert config.identity()["task_source"] == config.record().task["source"] == digest
    after = RunConfig.make(lrtasks.make(address), "dlr")
    assert after.identity()["task_source"] == file_digest(file)
    assert (config.record().task["version"], after.record().task["version"]) == (1, 2)


def test_an_imported_file_counts_as_it_was_at_its_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While Python still runs the earlier code of an edited helper, a run is the earlier run."""
    mixer, helper = tmp_path / "mixer_with_helper.py", tmp_path / "helper_of_mixer.py"
    mixer.write_text(
        "from helper_of_mixer import Linear\n\n\ndef mixer(d_model):\n    return Linear(d_model, d_model)\n"
    )
    helper.write_text("from torch.nn import Linear\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("mixer_with_helper")
    before = RunConfig.make("shift", module.mixer).digest
    helper.write_text("from torch.nn import Bilinear as Linear\n")
    assert RunConfig.make("shift", importlib.reload(module).mixer).digest == before
    importlib.reload(sys.modules["helper_of_mixer"])
    assert RunConfig.make("shift", importlib.reload(module).mixer).digest != before


def test_another_version_of_a_model_is_another_run(monkeypatch: pytest.MonkeyPatch) -> None:
    before = RunConfig.make("shift", "dlr").digest
    monkeypatch.setattr(models.registry.get("dlr"), "version", 99)
    assert RunConfig.make("shift", "dlr").digest != before


@pytest.mark.parametrize("task", ["word-problem@a5", lrtasks.make("word-problem", length=12)])
def test_the_command_makes_the_same_run(tmp_path: Path, task: Any) -> None:
    """The names of a model's settings may have the model's name in front, with dashes or underscores."""
    settings = {"gated-deltanet.heads": np.int64(4), "gated_deltanet.gate": False, "lr": 0.5, "schedule": "cosine"}
    seed: Any = np.int64(3)
    config = RunConfig.make(task, "gated-deltanet", seed=seed, preset="paper", settings=settings)
    words = shlex.split(config.command_text())
    named = {word[2:]: value for word, value in pairwise(words) if word.startswith("--")}
    given = dict(parse_assignment(value) for word, value in pairwise(words) if word == "--set")
    arguments: dict[str, Any] = {"preset": named["preset"], "seed": int(named["seed"]), "settings": given}
    again = RunConfig.make(named["task"], named["model"], **arguments)
    assert again.digest == config.digest
    assert config.folder(tmp_path).parent == tmp_path / "word-problem"


def test_the_command_of_a_python_model_is_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {"window": 3, "length": 16, "betas": [0.5, 0.5], "steps": 2, "test_batches": 1, "batch_size": 2}
    config = RunConfig.make("shift", Mixer, seed=3, settings=settings)
    assert config.command_text().startswith("lrtasks.evaluate(Mixer, 'shift', ")
    assert eval(config.command_text(), {"lrtasks": lrtasks, "Mixer": Mixer}).digest == config.digest


def test_a_command_or_call_names_the_stored_dataset_and_the_preset() -> None:
    how: dict[str, Any] = {"data": "my data", "preset": "paper"}
    words = shlex.split(RunConfig.make("shift", "dlr", **how).command_text())
    assert words[-2:] == ["--data", "my data"]
    assert RunConfig.make("shift", Mixer, **how).command_text() == (
        "lrtasks.evaluate(Mixer, 'shift', preset='paper', seed=0, data='my data')"
    )


def test_a_task_that_is_made_takes_no_parameters() -> None:
    task = lrtasks.make("shift", length=16)
    assert RunConfig.make(task, "dlr", preset="paper").task is task
    with pytest.raises(UsageError, match="this task is made already"):
        RunConfig.make(task, "dlr", settings={"length": 8})


def test_a_loss_or_metric_that_the_target_cannot_have_is_refused_before_training() -> None:
    class Mixed(Recall):
        loss = "mse"

    with pytest.raises(UsageError, match="loss of a token target must be 'cross-entropy'"):
        RunConfig.make(Mixed(), "dlr")


@pytest.mark.parametrize("name", ["../elsewhere", "a/b", "", "bell\a", "two words", 3])
def test_an_own_task_needs_a_name_for_its_folder(name: Any) -> None:
    named = type("Named", (Recall,), {"name": name})
    with pytest.raises(UsageError, match=r"cannot be the name of a task: use letters") as found:
        RunConfig.make(named(), "dlr")
    assert repr(name) in str(found.value) and str(found.value).isprintable()
    assert any("cannot be the name of a task" in problem for problem in problems_of(check_task, named()))
    mine = type("_Mine", (Recall,), {"name": "_Mine"})
    assert RunConfig.make(mine(), "dlr").folder(Path("out")).parent == Path("out/_Mine")


def test_a_label_is_printable() -> None:
    assert RunConfig.make("shift", Mixer, name="λ, no bias").title() == "λ, no bias on shift seed 0"
    with pytest.raises(UsageError, match=r"'bell\\x07' cannot be the name of a model: use printable characters"):
        RunConfig.make("shift", Mixer, name="bell\a")


@pytest.mark.parametrize("name", ["up/../../down", "a b", "λ" * 300])
def test_any_label_gives_a_folder_below_that_of_the_task(tmp_path: Path, name: str) -> None:
    folder = RunConfig.make("shift", Mixer, name=name).folder(tmp_path)
    folder.mkdir(parents=True)
    assert folder.resolve().parent == tmp_path / "shift"
    assert len(folder.name) <= 150 and set("/ ").isdisjoint(folder.name)


def test_a_title_names_the_instance() -> None:
    tasks, settings = ("word-problem@s3", "word-problem@a5"), {"task.length": 9}
    configs = [RunConfig.make(task, "dlr", settings=settings) for task in tasks]
    titles = {config.title() for config in configs}
    assert titles == {"dlr on word-problem@s3 length=9 seed 0", "dlr on word-problem@a5 length=9 seed 0"}
    assert [config.task.parameters()["group"] for config in configs] == ["S3", "A5"]


def test_a_title_shows_settings_as_a_command_takes_them() -> None:
    config = RunConfig.make("shift", "dlr", settings={"test_lengths": (512, 1024), "kernel": "prod"})
    assert config.title() == "dlr on shift kernel=prod test_lengths=512,1024 seed 0"


@pytest.mark.parametrize("preset", [7, ["small"], None])
def test_a_preset_that_is_no_text_is_refused(preset: Any) -> None:
    with pytest.raises(UsageError, match=r"^unknown preset .*Allowed: .*small"):
        RunConfig.make("shift", "dlr", preset=preset)
    if preset is not None:
        with pytest.raises(UsageError, match=r"^unknown preset of shift .*Allowed: .*small"):
            generators.make("shift", preset=preset)


def test_classes_without_a_file_are_never_taken_for_others() -> None:
    """A notebook defines classes without a file; their content cannot be compared."""

    def defined() -> type[Recall]:
        scope = {"Recall": Recall, "__name__": "notebook"}
        exec("class Mine(Recall):\n    name = 'recall'\n    causal = False\n", scope)
        return scope["Mine"]  # type: ignore[return-value]

    first, second = defined(), defined()
    digests = [RunConfig.make(kind(length=16), "gru").digest for kind in (first, first, second, Recall)]
    assert digests[0] == digests[1] and len(set(digests)) == 3


def test_a_parameter_that_is_given_twice_is_refused() -> None:
    for named in ({"gru.d_model": 8, "model.d_model": 16}, {"model.d_model": 16, "gru.d_model": 8}):
        with pytest.raises(UsageError, match="d_model of gru is given twice"):
            RunConfig.make("cumsum", "gru", settings=named)
    assert (
        RunConfig.make("cumsum", "gru", settings={"gru.d_model": 8, "model.d_model": 8}).model.parameters["d_model"]
        == 8
    )


def test_the_same_value_may_be_given_twice() -> None:
    assert RunConfig.make("cumsum", "gru", settings={"steps": 8, "budget.steps": 8}).budget.steps == 8


def test_a_renamed_model_is_repeated_by_a_call(tmp_path: Path) -> None:
    address = f"{__name__}:Mixer"
    config = RunConfig.make("cumsum", address, name="ours")
    assert "name='ours'" in config.command_text() and config.command_text().startswith("lrtasks.evaluate(")
    assert RunConfig.make("cumsum", address).command_text().startswith("lrtasks eval")
    with pytest.raises(UsageError, match="ours has an own name"):
        run_suite([config], tmp_path)
