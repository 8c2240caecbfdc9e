"""What each command prints, and where."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lrtasks import generators, models
from lrtasks.cli.options import complete_models, complete_names, parse_settings

Command = Callable[..., Any]
QUICK = ("--length", 16, "--steps", 6, "--batch-size", 4, "--test-batches", 2, "--val-batches", 1, "--device", "cpu")
SMALL = ("--d-model", 8, "--d-state", 4, "--workers", 0)
EVAL = ("eval", "--model", "dlr", "--task", "shift", *QUICK, *SMALL)


def test_list(command: Command) -> None:
    said = command("list")
    assert said.code == 0
    listed = {line.split()[0] for line in said.out.splitlines() if line.startswith("  ")}
    assert listed == {*generators.names(), *models.names()}
    assert json.loads(command("list", "--json").out) == {"tasks": generators.names(), "models": models.names()}
    assert json.loads(command("list", "models", "--json").out) == {"models": models.names()}
    assert json.loads(command("list", "--group", "state", "--json").out) == {"tasks": generators.names("state")}


def test_a_list_fits_the_terminal(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    lines = command("list").out.splitlines()
    assert max(map(len, lines)) == 40 and any(line.endswith("…") for line in lines)


def test_debug_shows_the_traceback(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generators.registry, "problems", partial(json.loads, "{"))  # an error in no file of the user's
    said = command("list")
    assert (said.code, said.out, said.err.count("\n")) == (1, "", 1)
    assert "JSONDecodeError" in said.err and "(decoder.py, line " in said.err and "--debug" in said.err
    for words in (("--debug", "list"), ("list", "--debug")):
        said = command(*words)
        assert said.code == 1 and said.err.startswith("Traceback")
        last = said.err.splitlines()[-1]
        assert last.startswith("lrtasks: JSONDecodeError") and "--debug" not in last


def test_names_are_completed_after_a_comma() -> None:
    assert complete_models("dlr,s4") == ["dlr,s4d"]
    assert {"shift", "sgconv"} <= {*complete_names("s")}


def test_a_shell_completes_words_without_a_message(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)  # the program's name is that of its file
    monkeypatch.setenv("_LRTASKS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "lrtasks preview sh")
    monkeypatch.setenv("COMP_CWORD", "2")
    said = command()
    assert (said.code, said.out.split(), said.err) == (0, ["shift"], "")


def test_help_has_whole_lines_and_choices(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    said = command("eval", "--help").out
    assert "or --d-state 64; lrtasks describe NAME lists them." in said
    assert "constant|linear|cosine" in said
    assert all(f"(default: {value})." in said for value in ("2000", "0.9,0.999", "constant", "false"))
    assert "(default: none)" not in said
    assert "batches of the fixed test stream (default: 20)." in said.lower()  # the default preset is small
    assert "which share the processor cores; slurm: 256 (default: 1)." in command("suite", "--help").out


def test_describe_a_task(command: Command) -> None:
    found = json.loads(command("describe", "shift", "--json").out)
    assert (found["kind"], found["name"], found["version"]) == ("task", "shift", 1)
    assert [entry["name"] for entry in found["parameters"]] == ["length", "shifts", "lags_of"]
    assert found["parameters"][0]["at_least"] == 2
    assert found["presets"]["small"] == {"length": 256}
    text = command("describe", "shift").out
    for word in (found["summary"].splitlines()[0], "shifts", "at least 2", "preset paper"):
        assert word in text
    assert "(above" in command("describe", "budget").out


def test_describe_a_partial_class(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "layers.py"
    file.write_text(
        "import functools\nfrom torch import nn\n"
        'class Own(nn.Module):\n    """A layer of mine."""\n    def __init__(self, d_model, size):\n        pass\n'
        "half = functools.partial(Own, size=2)\n"
    )
    assert json.loads(command("describe", f"{file}:half", "--json").out)["summary"] == "A layer of mine."


def test_describe_a_task_at_a_preset(command: Command) -> None:
    found = json.loads(command("describe", "word-problem@a5", "--json").out)
    assert (found["kind"], found["name"], list(found["presets"])) == ("task", "word-problem@a5", ["a5"])
    values = {entry["name"]: entry["default"] for entry in found["parameters"]}
    assert values == generators.make("word-problem", preset="a5").parameters()
    assert "take the defaults" not in command("describe", "word-problem@small").out
    assert "unknown preset of word-problem 'a6'" in command("describe", "word-problem@a6").err


def test_describe_a_model(command: Command) -> None:
    found = json.loads(command("describe", "dlr", "--json").out)
    assert found["kind"] == "model"
    assert {"layers", "d_model", "d_state"} <= {entry["name"] for entry in found["parameters"]}
    assert found["small"]["parameters"] > 0 and found["small"]["state_bytes"] > 0
    assert f"{found['small']['parameters']:,} parameters" in command("describe", "dlr").out


@pytest.mark.parametrize("name", [*generators.names(), *models.names()])
def test_everything_can_be_described(command: Command, name: str) -> None:
    said = command("describe", name)
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(("task ", "model "))


def test_warnings_of_this_package_are_one_line(command: Command) -> None:
    """Without its path and the line of code, as errors are; those of other packages stay as Python shows them."""
    command("list")
    ours, other = Path(models.__file__), Path(pytest.__file__)
    assert (
        warnings.formatwarning(UserWarning("7 bins are used"), UserWarning, str(ours), 1)
        == "lrtasks: 7 bins are used\n"
    )
    assert str(other) in warnings.formatwarning(UserWarning("something"), UserWarning, str(other), 1)
    assert str(ours) in warnings.formatwarning(RuntimeWarning("overflow"), RuntimeWarning, str(ours), 1)


def test_preview(command: Command, tmp_path: Path) -> None:
    said = command("preview", "shift", "--length", 32, "--shifts", 2, "--out", "picture.png")
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[-1] == "wrote picture.png"
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads(command("preview", "shift", "--set", "length=32", "--json").out)
    assert found["task"]["parameters"] == {"length": 32, "shifts": 8}
    assert (tmp_path / found["picture"]).exists()
    task = generators.make("recall", preset="small", length=8)
    found = json.loads(command("preview", "recall", "--length", 8, "--seed", 3, "--json").out)
    assert found["text"] == task.text(task.batch([0], 3), 0)
    assert command("preview", "recall", "--length", 8, "--out", "other.png").code == 0
    assert Path("other.png").read_bytes() != Path(found["picture"]).read_bytes(), "the seed changes the picture"
    found = json.loads(command("preview", "word-problem@a5", "--length", 8, "--json").out)
    assert found["task"]["parameters"].items() >= {"group": "A5", "length": 8}.items()


def test_eval_prints_one_json_document_and_nothing_else(command: Command) -> None:
    said = command(*EVAL, "--seeds", 2, "--seed", 5, "--json")
    assert said.code == 0
    records = json.loads(said.out, parse_constant=lambda word: pytest.fail(word))
    assert [record["seed"] for record in records] == [5, 6]
    first = records[0]
    assert first["status"] == "done"
    assert first["task"]["parameters"] == {"length": 16, "shifts": 8, "lags_of": None}
    assert {first["model"]["parameters"][name] for name in ("d_model", "d_state")} == {8, 4}
    assert {first["budget"][name] for name in ("steps", "batch_size", "test_batches", "val_batches")} == {6, 4, 2, 1}
    assert "6/6" in said.err  # the progress


def test_eval_prints_a_table(command: Command) -> None:
    said = command(*EVAL)
    assert said.out.splitlines()[0].split() == ["task", "metric", "floor", "dlr"]
    assert said.out.splitlines()[1].startswith("shift  r2 ")
    seconds = json.loads(next(Path("runs").rglob("record.json")).read_text())["cost"]["seconds_per_step"]
    assert f"{1000 * seconds:.1f} ms per step" in said.out
    again = command(*EVAL)
    assert again.out == said.out
    assert again.err.startswith("finished earlier: runs/shift/dlr-")


def test_the_options_of_eval_reach_the_run(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr("lrtasks.evaluation.run.run", lambda config, **how: asked.append(how) or config.record())
    command(*EVAL, "--overwrite", "--tracker", "csv", "--workers", 2, "--out", "other", "--json")
    assert asked == [{"device": "cpu", "trackers": ("csv",), "workers": 2, "out": Path("other"), "overwrite": True}]


@pytest.mark.parametrize(
    "words", ["eval --model dlr --task shift", "suite --models dlr --tasks shift", "sweep --models dlr --task shift"]
)
def test_the_options_of_a_command_reach_its_runs(command: Command, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr("lrtasks.cli.runs.execute", lambda wanted, **how: asked.update(how, wanted=wanted) or 0)
    shared = ("--lr", "1e-3,3e-3", "--preset", "paper", "--seeds", 2, "--device", "cpu", "--out", "other")
    where = () if words.startswith("eval") else ("--time-limit", 7, "--jobs", 3)
    command(*words.split(), *shared, *where, "--select", "val", "--tracker", "csv", "--dry-run", "--json")
    assert [(run.preset, run.seed) for run in asked["wanted"].runs] == [("paper", 0), ("paper", 1)] * 2
    expected = {"out": Path("other"), "device": "cpu", "select": "val", "trackers": ("csv",)}
    assert asked.items() >= {**expected, "dry_run": True, "as_json": True}.items()
    assert not where or (asked["time_limit"], asked["backend"].jobs) == (7, 3)


def test_the_command_in_a_record_repeats_the_run(command: Command) -> None:
    import shlex

    (record,) = json.loads(command(*EVAL, "--set", "kernel=prod", "--seed", 3, "--json").out)
    words = shlex.split(record["command"])
    assert words[0] == "lrtasks"
    again = command(*words[1:])
    assert again.err.startswith("finished earlier: ")


def test_every_parameter_is_an_option(command: Command) -> None:
    options = ("--shifts", 2, "--kernel=prod", "--set", "lr=0.5", "--model.glu", "true", "--set", "budget.clip=0.1")
    (record,) = json.loads(command(*EVAL, *options, "--json").out)
    assert record["task"]["parameters"]["shifts"] == 2
    assert (record["model"]["parameters"]["kernel"], record["model"]["parameters"]["glu"]) == ("prod", True)
    assert (record["budget"]["lr"], record["budget"]["clip"]) == (0.5, 0.1)


def test_a_model_from_a_file_in_this_folder(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "homemade.py").write_text(
        "import torch\n\n\ndef net(input, target, causal, width=3):\n"
        "    return torch.nn.Sequential(torch.nn.Linear(input.width, width), torch.nn.Linear(width, target.width))\n"
    )
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    words = ("eval", "--model", "homemade:net", "--task", "shift", *QUICK, "--workers", 0, "--set", "model.width=5")
    said = command(*words, "--json")
    (record,) = json.loads(said.out)
    assert (record["model"]["name"], record["model"]["parameters"]) == ("net", {"width": 5})
    assert record["model"]["count"] == 3 * 5 + 5 + 5 * 8 + 8


def test_a_diverged_run_ends_with_code_one_and_one_line(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    words = ("eval", "--model", "toys:exploding", "--task", "shift", *QUICK, "--workers", 0)
    for extra in ((), ("--json",)):
        said = command(*words, *extra)
        assert said.code == 1
        last = said.err.splitlines()[-1]
        assert last.startswith("lrtasks: lrtasks eval --model toys:exploding --task shift")
        assert last.endswith(": diverged: the loss was no longer finite at step 6")
    assert json.loads(said.out)[0]["status"] == "diverged"


def test_only_the_first_process_speaks(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert command(*EVAL, "--json").out == ""


def test_a_reader_that_goes_away_is_no_error() -> None:
    import subprocess

    words = [sys.executable, "-m", "lrtasks", "list"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        process.wait()


def test_settings_are_numbers_strings_or_lists() -> None:
    arguments = ["--a", "-3", "--b=1e-3", "--c-d", "text", "--e", "[1, 2]", "--f=true", "--g", "x=y"]
    assert parse_settings(arguments, ["h=null", "a=-3"]) == {
        "a": -3,
        "b": 1e-3,
        "c_d": "text",
        "e": [1, 2],
        "f": True,
        "g": "x=y",
        "h": None,
    }


@pytest.mark.e2e
def test_ctrl_c_ends_the_run_and_its_workers_with_one_line(tmp_path: Path) -> None:
    import os
    import signal
    import subprocess
    import time

    words = f"--steps 100000 --length 64 --workers 2 --device cpu --eval-every 20 --out {tmp_path}".split()
    # a shell starts what it puts into the background with Ctrl-C switched off
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import lrtasks.__main__"
    command = [sys.executable, "-c", code, "eval", "--model", "dlr", "--task", "shift", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        while not list(tmp_path.rglob("checkpoint.pt")):
            assert process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal sends it to all
        out, err = process.communicate(timeout=120)  # which waits for the workers too, since they share the pipes
    assert (process.returncode, out) == (1, "")
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("lrtasks: interrupted; give the same command again")
