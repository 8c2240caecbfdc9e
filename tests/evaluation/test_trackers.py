"""Trackers hold what the record holds, once, and change nothing."""

from __future__ import annotations

import csv
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from quick_runs import cut_off, folders, run
from toys import droppy, misshapen, plain

from lrtasks.errors import UsageError
from lrtasks.evaluation import loop, trackers

FILES = ("csv", "tensorboard")


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "csv" / "metrics.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every scalar in every event file."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util import tensor_util

    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted((folder / "tensorboard").glob("events*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    number = float(tensor_util.make_ndarray(value.tensor))
                    found.setdefault(value.tag, []).append((event.step, number))
    return found


def test_trackers_hold_the_curve_and_the_scores(tmp_path: Path) -> None:
    record = run(plain, tmp_path, trackers=FILES, budget={"schedule": "cosine", "warmup_steps": 6})
    (folder,) = folders(tmp_path)
    points = [row for row in rows(folder) if row["val/r2"]]
    (last,) = (row for row in rows(folder) if row["test/r2"])
    assert [int(point["step"]) for point in points] == [4, 8, 12]
    for point, noted in zip(points, record.curve, strict=True):
        assert float(point["train/loss"]) == pytest.approx(noted["loss"])
        assert float(point["val/r2"]) == pytest.approx(noted["r2"])
    # the rates of steps 4, 8 and 12, counted from 1: four sixths of the warm-up, then one and five sixths of the cosine
    rates = [float(point["train/lr"]) / 0.02 for point in points]
    assert rates == pytest.approx([4 / 6, 0.9330127, 0.0669873])
    assert float(last["test/r2"]) == pytest.approx(record.scores["test"]["r2"])
    scalars = events(folder)
    assert [step for step, _ in scalars["val/r2"]] == [4, 8, 12]
    assert scalars["test/r2"] == [(12, pytest.approx(record.scores["test"]["r2"]))]


def test_trackers_change_no_result(tmp_path: Path) -> None:
    record, untracked = run(droppy, tmp_path / "a", trackers=FILES), run(droppy, tmp_path / "b")
    assert (record.scores, record.curve, record.digest) == (untracked.scores, untracked.curve, untracked.digest)
    (other,) = folders(tmp_path / "b")
    assert sorted(path.name for path in other.iterdir()) == ["record.json", "weights.pt"]


def test_a_resumed_run_is_tracked_like_an_unbroken_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = loop._save

    def interrupt(path: Path, model: Any, optimiser: Any, state: loop.State, *rest: Any) -> None:
        if state.step == 8:
            raise KeyboardInterrupt  # after the trackers were written, before the checkpoint is
        save(path, model, optimiser, state, *rest)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop, "_save", interrupt)
        run(droppy, tmp_path / "broken", trackers=FILES)
    run(droppy, tmp_path / "broken", trackers=FILES)
    run(droppy, tmp_path / "unbroken", trackers=FILES)
    (broken,), (unbroken,) = folders(tmp_path / "broken"), folders(tmp_path / "unbroken")
    assert rows(broken) == rows(unbroken)
    assert events(broken) == events(unbroken)


def test_a_finished_run_gets_the_trackers_it_lacks(tmp_path: Path) -> None:
    run(plain, tmp_path, trackers="csv")
    (folder,) = folders(tmp_path)
    before = (folder / "csv" / "metrics.csv").read_bytes()
    (folder / "csv" / "metrics.csv").write_bytes(before + b"mine\n")
    run(plain, tmp_path, trackers=FILES)
    assert (folder / "csv" / "metrics.csv").read_bytes() == before + b"mine\n"
    assert [step for step, _ in events(folder)["val/r2"]] == [4, 8, 12]


def test_a_tracker_that_was_cut_off_is_written_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(plain, tmp_path)
    update = trackers.Trackers.update

    def cut_off(*arguments: Any) -> None:
        update(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(trackers.Trackers, "update", cut_off)
        run(plain, tmp_path, trackers="csv")
    run(plain, tmp_path, trackers="csv")
    assert any(row.get("test/r2") for row in rows(folders(tmp_path)[0]))


def test_no_tracker_of_an_earlier_run_stays_beside_a_new_record(tmp_path: Path) -> None:
    run(plain, tmp_path, trackers=FILES)
    (folder,) = folders(tmp_path)
    run(plain, tmp_path, overwrite=True, trackers="csv")
    assert not (folder / "tensorboard").exists()
    assert (folder / "csv").exists()
    run(plain, tmp_path, overwrite=True)
    assert not (folder / "csv").exists()
    run(plain, tmp_path, trackers="csv")
    assert (folder / "csv").exists()


def test_a_run_resumed_without_its_tracker_keeps_no_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with cut_off(monkeypatch, "lrtasks.evaluation.loop._save"):
        run(plain, tmp_path / "broken", trackers="csv")
    run(plain, tmp_path / "broken")
    run(plain, tmp_path / "broken", trackers="csv")
    run(plain, tmp_path / "unbroken", trackers="csv")
    (broken,), (unbroken,) = folders(tmp_path / "broken"), folders(tmp_path / "unbroken")
    assert rows(broken) == rows(unbroken)


def test_an_impossible_run_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="output of forward in training must have shape"):
        run(misshapen, tmp_path, trackers=FILES)
    assert list(tmp_path.iterdir()) == []


def test_an_overwrite_that_ends_before_its_first_evaluation_keeps_the_trackers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(plain, tmp_path, trackers=FILES)
    (folder,) = folders(tmp_path)
    before = rows(folder), events(folder)
    for error in (KeyboardInterrupt, RuntimeError, UsageError):
        with cut_off(monkeypatch, "lrtasks.evaluation.loop.train", error):
            run(plain, tmp_path, trackers=FILES, overwrite=True)
        assert (rows(folder), events(folder)) == before


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for a run of wandb that the caller has begun; wandb is offline."""
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_SERVICE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "mine").mkdir()
    return tmp_path / "mine"


@pytest.mark.e2e
def test_wandb_writes_offline_beside_a_run_of_the_caller(tmp_path: Path, offline: Path) -> None:
    import wandb

    with wandb.init(mode="offline", dir=offline) as mine:
        run(plain, tmp_path / "runs", trackers="wandb")
        assert "val/r2" not in dict(mine.summary)
    folder = folders(tmp_path / "runs")[0]
    assert list((folder / "wandb").glob("offline-run-*/*.wandb"))
    assert "WANDB_MODE" not in os.environ


@pytest.mark.e2e
@pytest.mark.usefixtures("offline")
def test_wandb_prints_nothing_on_standard_output_and_leaves_no_impossible_run(tmp_path: Path) -> None:
    model = tmp_path / "misshapen.py"
    model.write_text(
        "from torch import nn\n\nclass Misshapen(nn.Module):\n    def __init__(self, input, target):\n"
        "        super().__init__()\n        self.out = nn.Linear(input.width, target.width + 1)\n\n"
        "    def forward(self, x):\n        return self.out(x)\n"
    )
    how = "--task shift --length 16 --steps 2 --test-batches 1 --val-batches 1 --workers 0 --json --tracker wandb"
    made = {}
    for name in ("lstm", f"{model}:Misshapen"):
        command = [sys.executable, "-m", "lrtasks", "eval", "--model", name, *how.split(), "--out", "runs"]
        made[name] = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert [record["status"] for record in json.loads(made.pop("lstm").stdout)] == ["done"]
    ((_, refused),) = made.items()
    assert (refused.returncode, refused.stdout) == (2, "")
    assert not list((tmp_path / "runs").rglob("Misshapen*"))


def test_a_folder_called_like_a_package_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lookalike").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(trackers.PACKAGES, "wandb", "lookalike")
    with pytest.raises(UsageError, match="needs the package lookalike"):
        trackers.tracker_names("wandb")
    (tmp_path / "lookalike" / "__init__.py").touch()
    importlib.invalidate_caches()
    assert trackers.tracker_names("wandb") == ("wandb",)
