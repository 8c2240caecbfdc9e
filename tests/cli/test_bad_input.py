"""Every mistake ends with code 2 and one line on standard error, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Command = Callable[..., Any]
EVAL = ("eval", "--model", "dlr", "--task", "shift")
SUITE = ("suite", "--models", "dlr", "--tasks", "shift")
SWEEP = ("sweep", "--models", "dlr", "--task", "shift")

MISTAKES = {
    # lengths
    (*EVAL, "--length", "0"): "shift: length must be at least 2 and at most 16,777,216, found 0",
    (*EVAL, "--steps", "many"): "budget: steps must be a whole number, found 'many'",
    (*EVAL, "--lr", "NaN"): "budget: lr must be a number, found nan",
    (*EVAL, "--length", "many"): "shift: length must be a whole number, found 'many'",
    (*EVAL, "--length"): "option --length needs a value: --length VALUE",
    (*EVAL, "--out", ""): "option --out has an empty value; give a value or leave it out",
    (*EVAL, "--select="): "option --select has an empty value",
    ("table", ""): "argument has an empty value",
    (*EVAL, "--stop-solved", "--json"): "option --stop-solved needs a value, found the option --json",
    # names
    ("eval", "--model", "dlr", "--task", "shfit"): "unknown task 'shfit'; did you mean 'shift'? Allowed: ",
    ("eval", "--model", "drl", "--task", "shift"): "unknown model 'drl'; did you mean 'dlr'? Allowed: ",
    ("eval", "--model", "nowhere:net", "--task", "shift"): "nowhere cannot be imported: ModuleNotFoundError",
    (*EVAL, "--preset", "papr"): "unknown preset 'papr'; did you mean 'paper'? Allowed: ",
    (*EVAL, "--device", "gpu"): "unknown device 'gpu'; did you mean 'cpu'? Allowed: auto, cpu, cuda",
    (*EVAL, "--precision", "16"): "budget: precision must be one of '32', 'bf16', found 16",
    ("describe", "shfit"): "unknown task or model 'shfit'; did you mean 'shift'",
    ("preview", "strange"): "unknown task 'strange'. Allowed: FILE.py:NAME, or a name that lrtasks list tasks prints",
    ("describe", "strange"): "'strange'. Allowed: budget, FILE.py:NAME, or a name that lrtasks list prints",
    ("eval", "--model", "dlr", "--task", "strange"): "Allowed: all, fingerprint, FILE.py:NAME, or a name that lrtasks ",
    ("eval", "--model", "hybrid", "--layers", "dlrr:1", "--task", "shift"): "did you mean 'dlr'? Allowed: attention, ",
    ("bench", "--models", "dlr", "--set", "drl.d_state=1"): "'dlr'? Allowed: a name that lrtasks list models prints",
    ("check", "shfit"): "unknown task or model 'shfit'; did you mean 'shift'",
    ("check", "shift", "--preset", "papr"): "unknown preset 'papr'; did you mean 'paper'",
    ("check", "shift", "--lenght", "3"): "has no parameter 'lenght'; did you mean 'length'",
    ("check", "dlr", "--d-sate", "3"): "has no parameter 'd_sate'; did you mean 'd_state'",
    ("preview", "shfit"): "unknown task 'shfit'; did you mean 'shift'",
    ("preview", "shift", "--preset", "papr"): "unknown preset of shift 'papr'; did you mean 'paper'",
    ("preview", "shift@small", "--preset", "paper"): "a preset is given twice: small and paper",
    ("preview", "listops-root", "--setting", "paper"): "setting=paper has no effect on the limits that preset small",
    ("generate", "shift@", "--samples", "10"): "'shift@' names no preset after the @",
    ("suite", "--models", "dlr", "--tasks", "reverse@small,shift@", "--dry-run"): "'shift@' names no preset",
    ("preview", "shift", "--out", "a.pgn"): "a figure is written as .pdf, .png, .svg, found a.pgn",
    ("list", "task"): "unknown kind 'task'; did you mean 'tasks'",
    ("list", "models", "--group", "state"): "--group chooses among tasks; models have no groups",
    ("table", "--json", "--format", "cvs"): "unknown format 'cvs'; did you mean 'csv'",
    ("table", "nowhere"): "no results folder at nowhere",
    ("table", "."): "no run records below .",
    ("table", "a" * 300): f"a name is too long for the file system: {'a' * 100}…",
    ("report", "a" * 300): f"a name is too long for the file system: {'a' * 100}…",
    ("suite", "--models", "dlr", "--tasks", "shift", "--out", "a" * 300): "too long",
    ("evl",): "No such command 'evl'. Did you mean 'eval'?",
    # options
    (*EVAL, "--lenght", "64"): "parameter is called 'lenght'; did you mean 'length'",
    ("eval", "--model", "toys:Net", "--task", "shift", "--d-model", "8"): "called 'd_model'; did you mean 'model'? (",
    (*EVAL, "--sede", "1"): "parameter is called 'sede'; did you mean 'seed'",
    (*EVAL, "--jsno"): "option --jsno needs a value; did you mean 'json'",
    (*EVAL, "--kernel", "rael"): "found 'rael'; did you mean 'real'",
    (*EVAL, "--set", "shifts"): "--set takes NAME=VALUE, found 'shifts'",
    (*EVAL, "--length", "64", "--set", "length=32"): "length is given twice: 64 and 32",
    (*EVAL, "my.toml"): "lrtasks suite --file my.toml",
    (*EVAL, "--shifts", "4", "8"): "found '8' where an option",
    (*EVAL, "--shifts", "4", "--shifts", "8"): "shifts is given twice: 4 and 8",
    (*EVAL, "--seeds", "0"): "--seeds must be a whole number in 1..100,000, found 0",
    ("profile", "--model", "dlr", "--seeds", "0"): "suite: seeds must be at least 1",
    # several values
    ("sweep", "--models", "dlr", "--task", "shift", "--length", "32,abc"): "length must be a whole number, found 'abc'",
    ("suite", "--models", "dlr", "--tasks", "shift", "--lr", "1e-3,"): "lr must be a number, found ''",
    ("sweep", "--models", "dlr", "--task", "shift", "--solved", "nan"): "--solved must be above 0 and at most 1",
    ("profile", "--model", "dlr", "--tasks", "shift,shift", "--dry-run"): "twice",
    ("eval", "--model", "gru", "--task", "pathfinder", "--res", "32", "--dry-run"): "cannot read in both directions",
    ("eval", "--model", "hybrid", "--task", "shift", "--layers", "gla:x"): "with commas, found 'gla:x'\n",
    ("eval", "--model", "hybrid", "--task", "shift", "--layers", "my.py:L"): "found 'my.py:L'; write my.py:L:1\n",
    (*EVAL, "--tracker", "foo", "--dry-run"): "unknown tracker 'foo'",
    (*EVAL, "--workers", "x", "--dry-run"): "workers must be",
    (*EVAL, "--data", "nowhere", "--dry-run"): "there is no folder nowhere",
    (*EVAL, "--test-lengths", "1", "--dry-run"): "length must be at least",
    (*SUITE, "--tracker", "foo", "--dry-run"): "unknown tracker 'foo'",
    (*SUITE, "--test-data", "nowhere", "--dry-run"): "there is no folder nowhere",
    (*SUITE, "--test-lengths", "1", "--dry-run"): "length must be at least",
    ("sweep", "--models", "dlr", "--task", "shift,recall"): "sweep takes one task, found shift,recall",
    ("eval", "--model", "dlr", "--task", "all"): "eval takes one model and one task, found dlr and all",
    ("eval", "--model", "dlr", "-task", "shift"): "unknown option -task; options other than -o and -h have two",
    ("table", "--frame", "a.parquet", "--json"): "--json has no meaning with --frame",
    ("table", "a.csv"): "cannot read a.csv: a frame that is read again must be written as .parquet",
    ("table", "-o", "table.pdf"): "--out writes .txt, .md, .csv, .json, .tex, .html, found table.pdf",
    ("compare", "a", "b", "-o", "c.csv"): "--out writes .txt, .md, .json, .tex, .html, found c.csv",
    ("report", "-o", "page.txt"): "--out writes HTML; its name must end in .html, found page.txt",
    ("eval", "--model", "dlr,gru", "--task", "shift"): "lrtasks suite --models dlr,gru --tasks shift",
    ("eval", "--model", "dlr", "--task", "shift,recall"): "lrtasks suite --models dlr --tasks shift,recall",
    (*EVAL, "--lr", "1e-3,3e-3"): "found '1e-3,3e-3'; --select val chooses one of several values",
    (*EVAL, "--test-lengths", "64,many"): "each a whole number or none, found '64,many'\n",
    (*EVAL, "--lr", "1e-3,3e-3", "--select", "val", "--data", "d"): "--data cannot be combined with --select",
    (*EVAL, "--lr", "1e-3,3e-3", "--select", "val", "--seed", "3"): "--seed cannot be combined with --select",
    (*EVAL, "--lr", "1e-3,3e-3", "--select", "val", "--workers", "2"): "--workers cannot be combined with --select",
    (*EVAL, "--lr", "1e-3,3e-3", "--select", "val", "--overwrite"): "--overwrite cannot be combined with --select",
    (*EVAL, "--seed", "one"): "'one'",  # the rest differs between versions of typer
    (*EVAL, "--lr", "1e-2", "--set", "budget.lr=1e-3"): "budget.lr is given twice: 0.01 and 0.001",
    (*EVAL, "--seed", "-1"): "seed must be a whole number in 0..2^63-1, found -1",
    (*EVAL, "--workers", "99999"): "workers must be 'auto' or a whole number in 0..1024, found 99999",
    (*EVAL, "--workers", "²"): "workers must be 'auto' or a whole number in 0..1024, found '²'",
    ("eval", "--modle", "dlr", "--task", "shift"): "Missing option '--model'. Found --modle; did you mean '--model'?",
    ("eval", "--model", "dlr"): "Missing option '--task'.",
    ("eval", "--task", "--model", "dlr"): "Missing option '--model'.\n",
    ("list", "--lenght", "3"): "--lenght",
    ("preview", "shift", "--sampels", "3"): "'sampels'; did you mean 'samples'",
    ("preview", "shift", "--samples", "0"): "samples must be a whole number in 1..16",
    # suites, sweeps and profiles
    (*SUITE, "--sedes", "3"): "'sedes'; did you mean 'seeds'",
    (*SUITE, "--stpes", "3"): "'stpes'; did you mean 'steps'",
    (*SUITE, "--set", "model.kernl=prod"): "has no parameter 'kernl'; did you mean 'kernel'",
    (*SUITE, "--time-limit", "10m"): "'10m'",
    (*SUITE, "--time-limit", "inf"): "time_limit must be above 0 seconds and finite, found inf",
    (*SUITE, "--address", "auto"): "--address has no meaning with --backend local; it belongs to ray",
    (*SUITE, "--backend", "ray", "--jobs", "2"): "--jobs has no meaning with --backend ray; it belongs to local and sl",
    (*SUITE, "--cpus", "2"): "--cpus has no meaning with --backend local; it belongs to ray and slurm",
    (*SUITE, "--backend", "slurm", "--slurm", "partition"): "--slurm takes NAME=VALUE, found 'partition'",
    (*SUITE, "--backend", "slurm", "--gpus", "0.5"): "gpus must be a whole number or none, found 0.5",
    ("suite", "--models", "dlr,dlr", "--tasks", "shift"): "the suite has dlr on shift seed 0 twice",
    ("suite", "--file", "none.toml"): "cannot read the suite none.toml",
    (*SWEEP, "--solved", "0"): "--solved must be above 0 and at most 1, found 0",
    (*SWEEP, "--length", "16,16"): "length=16 seed 0 twice",
    (*SUITE, "--tasks", "recall", "--distance", "8,16"): "write a single list in brackets: distance=[8,16]",
    (*SWEEP, "--length", "0,1"): "no run is possible with {'length': 0}: dlr on shift",
    ("profile", "--model", "dlr", "-o", "p.txt"): "--out writes .html, .svg, .pdf, .png, found p.txt",
    ("profile", "--model", "dlr", "--published", "nowhere"): "no results folder at nowhere",
    ("profile", "--model", "dlr", "--tasks", "fingerprnt"): "unknown task 'fingerprnt'; did you mean 'fingerprint'?",
    # measurements
    ("bench", "--models", "seqbaot"): "unknown model 'seqbaot'; did you mean 'seqboat'",
    ("bench", "--length", "12,x"): "--length takes whole numbers separated by commas, found 'x'",
    ("bench", "--models", "all,dlr", "--length", "16, 0"): "a length must be a whole number in 1..16,777,216",
    ("bench", "--batch", "0"): "bench: batch must be at least 1",
    ("bench", "--patience", "0"): "bench: patience must be above 0",
    ("bench", "--time-limit", "inf"): "time_limit must be above 0 seconds and finite, found inf",
    ("bench", "--d-model", "7"): "d_model must be a multiple of 2 * heads",
    ("bench", "--set", "window=3"): "--set takes MODEL.NAME=VALUE, found 'window=3'",
    ("bench", "--set", "seqboat.windw=3"): "seqboat has no parameter 'windw'; did you mean 'window'",
    ("bench", "--set", "gla.heads=3", "--set", "gla.heads=4"): "gla.heads is given twice: 3 and 4",
    ("bench", "--format", "cvs"): "unknown format 'cvs'; did you mean 'csv'",
    ("bench", "--show", "--length", "64"): "--length has no meaning with --show, which prints all that the folder",
    ("bench", "--device", "gpu"): "unknown device 'gpu'; did you mean 'cpu'",
    # stored data
    ("generate", "shfit"): "unknown task 'shfit'; did you mean 'shift'",
    ("generate", "shift", "--lenght", "16"): "unknown option or parameter of shift 'lenght'; did you mean 'length'",
    ("generate", "shift", "--sampels", "5"): "unknown option or parameter of shift 'sampels'; did you mean 'samples'",
    ("generate", "shift", "--split", "0.9,x"): "three fractions like 0.96,0.02,0.02, found '0.9,x'",
    ("generate", "shift", "--workers", "many"): "workers must be 'auto' or a whole number in 1..1024, found 'many'",
}


@pytest.mark.parametrize("words", MISTAKES, ids=" ".join)
def test_a_mistake_is_said_in_one_line(command: Command, tmp_path: Path, words: tuple[str, ...]) -> None:
    said = command(*words)
    assert said.code == 2
    assert said.out == ""
    assert said.err.startswith("lrtasks: ") and said.err.count("\n") == 1
    assert MISTAKES[words] in said.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_cuda_without_a_gpu(command: Command, tmp_path: Path) -> None:
    said = command(*EVAL, "--device", "cuda")
    assert (said.code, said.out) == (2, "")
    assert said.err == "lrtasks: device 'cuda' was asked for, but torch finds no GPU here; use --device cpu or auto\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("out", ["file", "file/below", "/proc/runs"])
def test_an_output_folder_that_cannot_be(command: Command, tmp_path: Path, out: str) -> None:
    (tmp_path / "file").write_text("mine")
    said = command(*EVAL, "--device", "cpu", "--out", out)
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert f"the results folder {out}/shift/" in said.err
    assert (tmp_path / "file").read_text() == "mine"


def test_a_wrong_output_shape(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    said = command("eval", "--model", "toys:misshapen", "--task", "shift", "--device", "cpu", "--workers", "0")
    assert (said.code, said.out) == (2, "")
    assert said.err.count("\n") == 1
    assert "output of forward in training must have shape" in said.err
    assert "= (16, 256, 8), found (16, 256, 9) (task shift)" in said.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.e2e
def test_nothing_but_the_line_comes_from_a_process_of_its_own(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "lrtasks", *EVAL, "--length", "0"]
    ended = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=False)
    expected = "lrtasks: shift: length must be at least 2 and at most 16,777,216, found 0\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", expected)


def test_no_command_shows_the_help(command: Command) -> None:
    said = command()
    assert said.code == 2
    assert "eval" in said.out + said.err and "Traceback" not in said.err
