"""Suites as TOML files."""

from __future__ import annotations

from pathlib import Path

import pytest

from lrtasks import generators, models
from lrtasks.errors import UsageError
from lrtasks.suite.expand import Suite, read_suite


def read(folder: Path, text: str, **settings: object) -> Suite:
    (folder / "suite.toml").write_text(text)
    return read_suite(folder / "suite.toml", settings)


def what(suite: Suite) -> list[tuple[str, str, str, int]]:
    return [(run.model.name, run.task.name, run.preset, run.seed) for run in suite.runs]


def test_combinations(tmp_path: Path) -> None:
    suite = read(
        tmp_path,
        """
        models = ["dlr", "hyena"]
        tasks = "shift,pathfinder"
        preset = "paper"
        seeds = 2
        settings = { steps = 5, "task.length" = 32 }
        time_limit = 60
        unequal_budgets = true
        """,
    )
    assert what(suite) == [(model, "shift", "paper", seed) for model in ("dlr", "hyena") for seed in (0, 1)]
    assert all(run.settings == {"task.length": 32, "budget.steps": 5} for run in suite.runs)
    assert [(model, task) for model, task, _ in suite.skipped] == [("dlr", "pathfinder"), ("hyena", "pathfinder")]
    assert (suite.time_limit, suite.unequal_budgets) == (60, True)


def test_values_with_commas_vary(tmp_path: Path) -> None:
    suite = read(tmp_path, 'models = ["dlr"]\ntasks = ["shift"]\nsettings = { length = "32,64", lr = "0.1,0.2" }')
    assert [(run.task.input.length, run.budget.lr) for run in suite.runs] == [
        (32, 0.1),
        (32, 0.2),
        (64, 0.1),
        (64, 0.2),
    ]
    assert suite.varied == ("length", "lr")
    suite = read(tmp_path, 'models = "dlr"\ntasks = "shift"\nsettings = { length = "32, 64", kernel = "prod, real" }')
    assert [(run.task.input.length, run.model.parameters["kernel"]) for run in suite.runs] == [
        (32, "prod"),
        (32, "real"),
        (64, "prod"),
        (64, "real"),
    ]


def test_settings_with_their_owner_need_no_quotes(tmp_path: Path) -> None:
    suite = read(
        tmp_path,
        'models = ["dlr"]\ntasks = ["shift"]\n[settings]\nmodel.kernel = "prod"\nmodel.layers = 2\ntask.length = 32',
    )
    assert [run.settings for run in suite.runs] == [{"task.length": 32, "model.kernel": "prod", "model.layers": 2}]


def test_the_nearer_setting_wins_whichever_of_two_names_its_owner(tmp_path: Path) -> None:
    text = """
        models = ["dlr"]
        tasks = ["shift"]
        settings = { budget.steps = 5, length = 32 }
        [[runs]]
        model = "dlr"
        task = "cumsum"
        settings = { task.length = 16, lr = 0.1 }
        """
    combined, single = read(tmp_path, text).runs
    assert combined.settings == {"task.length": 32, "budget.steps": 5}
    assert single.settings == {"task.length": 16, "budget.steps": 5, "budget.lr": 0.1}
    combined, single = read(tmp_path, text, **{"steps": 6, "budget.lr": 0.2}).runs
    assert combined.settings == {"task.length": 32, "budget.steps": 6, "budget.lr": 0.2}
    assert single.settings == {"task.length": 16, "budget.steps": 6, "budget.lr": 0.2}


def test_defaults_are_everything_once_at_the_small_preset(tmp_path: Path) -> None:
    suite = read(tmp_path, 'models = ["dlr"]')
    assert {run.task.name for run in suite.runs} | {task for _, task, _ in suite.skipped} == set(generators.names())
    assert (suite.time_limit, suite.unequal_budgets) == (None, False)
    suite = read(tmp_path, 'tasks = ["shift"]')
    assert what(suite) == [(model, "shift", "small", 0) for model in models.names()]


def test_single_runs(tmp_path: Path) -> None:
    text = """
preset = "paper"
settings = { steps = 5, length = 32 }
[[runs]]
model = "dlr"
task = "shift"
[[runs]]
model = "dlr"
task = "cumsum"
preset = "small"
seed = 7
settings = { kernel = "prod", steps = 6 }
"""
    expected = [("dlr", "shift", "paper", 0), ("dlr", "cumsum", "small", 7)]
    suite = read(tmp_path, text)
    assert what(suite) == expected
    assert suite.runs[1].settings == {"task.length": 32, "model.kernel": "prod", "budget.steps": 6}
    assert read(tmp_path, text, steps=9).runs[1].budget.steps == 9
    both = read(tmp_path, 'models = ["dss"]\ntasks = ["mips"]\n' + text)
    assert what(both) == [("dss", "mips", "paper", 0), *expected]


def test_a_setting_of_one_model_does_not_reach_the_runs_of_others(tmp_path: Path) -> None:
    text = 'tasks = ["shift"]\nmodels = ["dlr"]\nsettings = { "dlr.d_state" = 8, "s4d.d_state" = "8,16" }\n'
    single = '[[runs]]\nmodel = "{}"\ntask = "cumsum"\n'
    suite = read(tmp_path, text + single.format("s4d") + single.format("attention"), **{"s4d.start": "lin"})
    assert [(run.model.name, {**run.settings}) for run in suite.runs] == [
        ("dlr", {"model.d_state": 8}),
        *(("s4d", {"model.d_state": size, "model.start": "lin"}) for size in (8, 16)),
        ("attention", {}),
    ]
    with pytest.raises(UsageError, match=r"run 1: s4d has no parameter 'dlr.d_state'"):  # its own setting is a mistake
        read(tmp_path, text + single.format("s4d") + 'settings = { "dlr.d_state" = 8 }')


def test_a_grid_reaches_single_runs(tmp_path: Path) -> None:
    text = 'models = ["dss"]\ntasks = ["shift"]\n[[runs]]\nmodel = "dlr"\ntask = "cumsum"\nseed = 7\n'
    suite = read(tmp_path, text, length="16,32", lr=0.1)
    assert [(*what(suite)[number][:2], run.task.length) for number, run in enumerate(suite.runs)] == [
        ("dss", "shift", 16),
        ("dss", "shift", 32),
        ("dlr", "cumsum", 16),
        ("dlr", "cumsum", 32),
    ]
    assert suite.varied == ("length",)
    suite = read(tmp_path, text + 'settings = { kernel = "real,prod", length = 16 }')
    assert [run.model.parameters["kernel"] for run in suite.runs[1:]] == ["real", "prod"]
    assert suite.varied == ("kernel",)
    with pytest.raises(UsageError, match="run 1: shift: length must be a whole number, found 'x'"):
        read(tmp_path, '[[runs]]\nmodel = "dlr"\ntask = "shift"', length="16,x")


def test_tasks_alone_make_combinations_beside_single_runs(tmp_path: Path) -> None:
    suite = read(tmp_path, 'tasks = ["mips"]\n[[runs]]\nmodel = "dlr"\ntask = "shift"')
    assert {run.model.name for run in suite.runs if run.task.name == "mips"} == set(models.names())
    assert what(suite)[-1] == ("dlr", "shift", "small", 0)


def test_too_many_runs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lrtasks.suite.expand.MAX_RUNS", 7)
    combined = 'models = "dlr,gru"\ntasks = "shift,sort"\nseeds = 2'
    single = '[[runs]]\nmodel = "dlr"\ntask = "shift"\nsettings = { steps = "1,2,3,4,5,6,7,8" }'
    for text in (combined, single):
        with pytest.raises(UsageError, match="the suite has 8 runs; at most 7 are allowed"):
            read(tmp_path, text)
    assert len(read(tmp_path, single.replace(",8", "")).runs) == 7


def test_each_point_of_the_grid_of_a_single_run_must_be_possible(tmp_path: Path) -> None:
    text = '[[runs]]\nmodel = "hyena"\ntask = "shift"\n'
    with pytest.raises(UsageError, match="run 1: hyena: batch norm is not causal in training"):
        read(tmp_path, text, norm="layer,batch")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the suite is empty"),
        ("models = [", "suite.toml is not valid TOML"),
        ('model = ["dlr"]', r"unknown key 'model'; did you mean 'models'"),
        ("models = 3", "suite: models must be a string or a list whose entries are each a string, found 3"),
        ("models = []", "no model is chosen"),
        ('tasks = ["shfit"]', "unknown task 'shfit'; did you mean 'shift'"),
        ("seeds = 1000000000", "suite: seeds must be at least 1 and at most 100,000, found 1000000000"),
        ("time_limit = 0", "suite: time_limit must be above 0, found 0"),
        ("unequal_budgets = 1", "suite: unequal_budgets must be true or false, found 1"),
        ("settings = 3", "settings must be a table such as"),
        ('models = ["dlr"]\nsettings = { stpes = 3 }', "is called 'stpes'; did you mean 'steps'"),
        ("runs = 3", r"runs must be tables, each under a heading \[\[runs\]\], found 3"),
        ("runs = [3]", r"runs must be tables, each under a heading \[\[runs\]\], found \[3\]"),
        ('seeds = 3\n[[runs]]\nmodel = "dlr"\ntask = "shift"', "seeds belong to models and tasks"),
        ('[[runs]]\nmodel = "dlr"', "run 1: task is missing"),
        ('[[runs]]\nmodel = "dlr"\ntask = "shift"\nseeds = 3', "run 1: unknown key 'seeds'; did you mean 'seed'"),
        ('[[runs]]\nmodels = "dlr"', "Allowed: model, preset, seed, settings, task$"),
        ('[[runs]]\nmodel = "dlr"\ntask = "shift"\nseed = -1', "run 1: run: seed must be at least 0, found -1"),
        ('[[runs]]\nmodel = 5\ntask = "shift"', "run 1: run: model must be a string, found 5"),
        ('[[runs]]\nmodel = "dlr"\ntask = "shift"\nsettings = 5', "run 1: settings must be a table"),
        ('[[runs]]\nmodel = "dlr"\ntask = "shfit"', "run 1: unknown task 'shfit'"),
        ('[[runs]]\nmodel = "dlr"\ntask = "shift"\npreset = "papre"', "run 1: unknown preset 'papre'"),
        ('[[runs]]\nmodel = "dlr"\ntask = "shift"\nsettings = { model.kernl = "prod" }', "run 1: dlr has no parameter"),
        ('[[runs]]\nmodel = "hyena"\ntask = "pathfinder"', "run 1: hyena is a causal model"),
    ],
)
def test_a_bad_file_is_refused_in_a_line_that_names_the_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read(tmp_path, text)
    assert "suite.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the suite .*none.toml: No such file"):
        read_suite(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="is not valid TOML"):
        read_suite(tmp_path / "bytes.toml")
