"""Two processes under torchrun do what one does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

LRTASKS = [sys.executable, "-m", "lrtasks"]
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
BUDGET = {"steps": 30, "batch_size": 8, "eval_every": 10, "lr": 0.01, "val_batches": 2, "test_batches": 3}
QUICK = [word for name, value in BUDGET.items() for word in ("--set", f"{name}={value}")]


def call(launcher: list[str], out: Path, *more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    words = [*launcher, *EVAL, *QUICK, "--out", str(out), *more]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=300)


def records(launcher: list[str], out: Path, *more: str) -> list[dict[str, Any]]:
    ended = call(launcher, out, *more)
    assert ended.returncode == 0, ended.stderr
    found: list[dict[str, Any]] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize("settings", [("--seeds", "2"), ("--train-samples", "24", "--schedule", "cosine")])
def test_two_processes_end_with_the_figures_of_one(tmp_path: Path, settings: tuple[str, ...]) -> None:
    alone, together = (
        records(launcher, tmp_path / str(number), *settings) for number, launcher in enumerate((LRTASKS, TORCHRUN))
    )
    assert len(alone) == len(together)
    for one, two in zip(alone, together, strict=True):
        assert one["status"] == two["status"] == "done"
        assert one["baselines"] == two["baselines"]
        for split, scores in one["scores"].items():
            assert two["scores"][split] == pytest.approx(scores, abs=1e-4)
        for point, other in zip(one["curve"], two["curve"], strict=True):
            assert other == pytest.approx(point, abs=1e-4)


def test_a_run_of_two_processes_goes_on_as_one(tmp_path: Path) -> None:
    """A checkpoint does not know how many processes wrote it."""
    whole = records(LRTASKS, tmp_path / "alone")
    interrupt(tmp_path)
    (resumed,) = records(LRTASKS, tmp_path / "both")
    assert resumed["scores"]["test"] == pytest.approx(whole[0]["scores"]["test"], abs=1e-4)


def test_processes_go_on_from_one_folder_though_their_models_differ(tmp_path: Path) -> None:
    """What a model keeps beside its weights is part of the folder's name, and may hold the number of the process."""
    model = ("--model", "toys:Ranked")
    whole = records(LRTASKS, tmp_path / "alone", *model)
    interrupt(tmp_path, *model)
    (resumed,) = records(TORCHRUN, tmp_path / "both", *model)
    assert resumed["scores"]["test"] == pytest.approx(whole[0]["scores"]["test"], abs=1e-4)


def interrupt(tmp_path: Path, *more: str) -> None:
    """Leave what a kill half-way leaves in the folder ``both``: a checkpoint after 20 steps of two processes."""
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
    (tmp_path / "interrupted.py").write_text(script)
    launcher = [*TORCHRUN[:-2], str(tmp_path / "interrupted.py")]
    assert call(launcher, tmp_path / "both", *more).returncode == 1
    (checkpoint,) = (tmp_path / "both").rglob("checkpoint.pt")
    assert checkpoint.exists()


@pytest.mark.parametrize("kept", ["", "cycle = [dist.group.WORLD]\ncycle.append(cycle)\ndel cycle\n"])
def test_a_process_whose_group_is_still_at_work_ends_well(tmp_path: Path, kept: str) -> None:
    """A thread of the group that waits to free a tensor when Python is taken apart aborts the process."""
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
        f"{kept}"
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
