"""Two processes under torchrun do what one does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lrtasks.evaluation import checkpoint

pytestmark = pytest.mark.e2e

Command = Callable[..., Any]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "lrtasks"]
EVAL = [
    "eval",
    "--model",
    "toys:plain",
    "--task",
    "shift",
    "--length",
    "32",
    "--device",
    "cpu",
    "--workers",
    "1",
    "--json",
]
MARK = 123.0
"""A loss that no run has."""
BUDGET = {"steps": 30, "batch_size": 8, "eval_every": 10, "lr": 0.01, "val_batches": 2, "test_batches": 3}
QUICK = [word for name, value in BUDGET.items() for word in ("--set", f"{name}={value}")]


def call(launcher: list[str], out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    words = [*launcher, *EVAL, *QUICK, "--out", str(out), *more]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=300)


def together(out: Path, *more: str) -> list[dict[str, Any]]:
    """The records of two processes."""
    ended = call(TORCHRUN, out, *more)
    assert ended.returncode == 0, ended.stderr
    found: list[dict[str, Any]] = json.loads(ended.stdout)
    return found


def alone(command: Command, out: Path, *more: str) -> list[dict[str, Any]]:
    """The records of this process."""
    said = command(*EVAL, *QUICK, "--out", out, *more)
    assert said.code == 0, said.err
    found: list[dict[str, Any]] = json.loads(said.out)
    return found


def test_two_processes_end_with_the_figures_of_one(tmp_path: Path, command: Command) -> None:
    settings = ("--seeds", "2", "--train-samples", "24", "--schedule", "cosine")
    one_process, two_processes = alone(command, tmp_path / "1", *settings), together(tmp_path / "2", *settings)
    assert len(one_process) == len(two_processes)
    for one, two in zip(one_process, two_processes, strict=True):
        assert one["status"] == two["status"] == "done"
        assert one["baselines"] == two["baselines"]
        for split, scores in one["scores"].items():
            assert two["scores"][split] == pytest.approx(scores, abs=1e-4)
        assert one["curve"].keys() == two["curve"].keys()
        for name, values in one["curve"].items():
            assert two["curve"][name] == pytest.approx(values, abs=1e-4)


def test_a_run_of_two_processes_goes_on_with_one_or_two(tmp_path: Path, command: Command) -> None:
    """A checkpoint does not know how many processes wrote it.

    What a model keeps beside its weights is part of the folder's name, and may hold the number of the process.
    """
    model = ("--model", "toys:Ranked")
    (whole,) = alone(command, tmp_path / "alone", *model)
    interrupt(tmp_path / "both", *model)
    shutil.copytree(tmp_path / "both", tmp_path / "one")
    for resumed in (*alone(command, tmp_path / "one", *model), *together(tmp_path / "both", *model)):
        assert resumed["scores"]["test"] == pytest.approx(whole["scores"]["test"], abs=1e-4)
        assert resumed["curve"]["loss"][0] == MARK  # so it went on from the checkpoint
        for name, values in whole["curve"].items():
            assert resumed["curve"][name][2] == pytest.approx(values[2], abs=1e-4)


def interrupt(out: Path, *more: str) -> None:
    """Leave what a kill half-way leaves below ``out``: a checkpoint after 20 steps of two processes.

    The first loss in the checkpoint is changed to ``MARK``.
    """
    script = (
        "import sys\nfrom lrtasks.evaluation import loop\n"
        "real = loop._save\n"
        "def save(*arguments):\n"
        "    real(*arguments)\n"
        "    if arguments[3].step == 20:\n"
        "        raise KeyboardInterrupt\n"
        "loop._save = save\n"
        "from lrtasks.cli import main\nmain()\n"
    )
    path = out.with_name("interrupted.py")
    path.write_text(script)
    assert call([*TORCHRUN[:-2], str(path)], out, *more).returncode == 1
    (path,) = out.rglob("checkpoint.pt")
    saved = checkpoint.load(path)
    saved["state"]["curve"][0]["loss"] = MARK
    checkpoint.save(path, saved)


def test_a_process_whose_group_is_still_at_work_ends_well(tmp_path: Path) -> None:
    """A thread of the group that waits to free a tensor when Python is taken apart aborts the process.

    The threads end when the last reference to the group is freed, here one in a cycle.
    """
    script = tmp_path / "leaving.py"
    script.write_text(
        "import atexit\nimport sys\nimport time\n"
        "def hold():\n"  # the interpreter's lock, until the other process has taken part
        "    sys.setswitchinterval(100)\n"
        "    end = time.monotonic() + 2 * rank\n"
        "    while time.monotonic() < end:\n        pass\n"
        "atexit.register(hold)\n"  # the first runs last
        "import torch\nimport torch.distributed as dist\n"
        "from lrtasks.evaluation.environment import make_fabric\n"
        "rank = make_fabric('cpu', '32').global_rank\n"
        "dist.barrier()\n"
        "cycle = [dist.group.WORLD]\ncycle.append(cycle)\ndel cycle\n"
        "time.sleep(1 - rank)\n"
        "dist.all_reduce(torch.ones(4), async_op=True)\n"
    )
    ended = subprocess.run([*TORCHRUN[:-2], str(script)], capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stderr


def test_a_loss_that_one_process_alone_loses_ends_both(tmp_path: Path) -> None:
    """The processes agree that a run diverged, or one of them would wait for ever."""
    ended = call(TORCHRUN, tmp_path, "--model", "toys:exploding_elsewhere")
    assert ended.returncode == 1
    (record,) = json.loads(ended.stdout)
    assert (record["status"], record["notes"][-1]) == ("diverged", "the loss was no longer finite at step 10")


def test_a_parameter_without_gradient_is_reported_in_one_line(tmp_path: Path) -> None:
    ended = call(TORCHRUN, tmp_path, "--model", "toys:Idle")
    assert ended.returncode == 1  # that of torchrun
    assert "lrtasks: with several processes, every parameter must get a gradient" in ended.stderr
    assert "lrtasks: RuntimeError" not in ended.stderr
