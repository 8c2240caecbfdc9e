"""Trackers hold what the record holds, once, and change nothing."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from toys import BUDGET, Constant, Labels, droppy, misshapen, plain

import lrtasks
from lrtasks.errors import UsageError
from lrtasks.evaluation import loop
from lrtasks.evaluation.trackers import tracking
from lrtasks.results import RunRecord
from lrtasks.suite.suite import Entry, run_suite

TASK = lrtasks.make("shift", length=16, shifts=2)
FILES = ("jsonl", "tensorboard")


def run(model: Any, out: Path, trackers: Any = FILES, task: Any = TASK, **arguments: Any) -> tuple[RunRecord, Path]:
    """The record and the folder of the one run below ``out``."""
    budget = {**BUDGET, **arguments.pop("budget", {})}
    settings = {"out": out, "workers": 0, "device": "cpu", "quiet": True, **arguments}
    record = lrtasks.evaluate(model, task, budget=budget, trackers=trackers, **settings)
    (folder,) = out.glob("*/*-seed*")
    return record, folder


def jsonl(folder: Path) -> list[dict[str, Any]]:
    def refuse(word: str) -> None:
        pytest.fail(f"{word} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every scalar in every event file, those included that TensorBoard would hide."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util import tensor_util

    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted((folder / "tensorboard").iterdir()):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    number = float(tensor_util.make_ndarray(value.tensor))
                    found.setdefault(value.tag, []).append((event.step, number))
    return found


def test_trackers_hold_the_curve_the_scores_and_the_settings(tmp_path: Path) -> None:
    budget = {"schedule": "cosine", "warmup_steps": 6}
    record, folder = run(plain, tmp_path, budget=budget)
    first, *points, last = jsonl(folder)
    assert first["run"] == folder.name
    assert first["settings"]["task"] == record.task
    assert first["settings"]["seed"] == 0 and first["settings"]["budget"]["warmup_steps"] == 6
    assert [point["step"] for point in points] == [4, 8, 12]
    for point, noted in zip(points, record.curve, strict=True):
        assert (point["train/loss"], point["val/r2"]) == (noted["loss"], noted["r2"])
    # the rates of steps 4, 8 and 12, counted from 1: four sixths of the warm-up, then one and five sixths of the cosine
    assert [point["train/lr"] / 0.02 for point in points] == pytest.approx([4 / 6, 0.9330127, 0.0669873])
    test = {f"test/{name}": value for name, value in record.scores["test"].items()}
    assert last == {"step": 12, "status": "done", **test}

    scalars = events(folder)
    assert set(scalars) == {name for point in points for name in point if name != "step"} | set(test)
    for name, values in scalars.items():
        expected = [(point["step"], point[name]) for point in (points if name in points[0] else [last])]
        assert values == [(step, pytest.approx(value)) for step, value in expected]
    written = b"".join(path.read_bytes() for path in (folder / "tensorboard").iterdir())
    assert b"task.parameters.length" in written and b'"warmup_steps": 6' in written


def test_trackers_change_no_result(tmp_path: Path) -> None:
    (record, folder), (untracked, other) = run(droppy, tmp_path / "a"), run(droppy, tmp_path / "b", ())
    assert folder.name == other.name
    assert (record.scores, record.curve, record.command) == (untracked.scores, untracked.curve, untracked.command)
    assert sorted(path.name for path in other.iterdir()) == ["record.json", "weights.pt"]


def test_a_resumed_run_is_tracked_like_an_unbroken_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(path: Path, model: Any, optimiser: Any, state: loop.State, fabric: Any) -> None:
        if state.step == 8:
            raise KeyboardInterrupt  # after the trackers were told, before the checkpoint knows
        save(path, model, optimiser, state, fabric)

    save = loop._save
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop, "_save", interrupt)
        run(droppy, tmp_path / "broken")
    (folder,) = (tmp_path / "broken").glob("*/*-seed*")
    assert [line["step"] for line in jsonl(folder)[1:]] == [4, 8]
    assert [step for step, _ in events(folder)["train/loss"]] == [4, 8]
    run(droppy, tmp_path / "broken")
    _, unbroken = run(droppy, tmp_path / "unbroken")
    assert jsonl(folder) == jsonl(unbroken)
    assert events(folder) == events(unbroken)


def test_a_finished_run_is_tracked_from_its_record(tmp_path: Path) -> None:
    run(plain, tmp_path, "jsonl")
    _, folder = run(plain, tmp_path, ())
    before = (folder / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").write_bytes(before + b"mine\n")
    run(plain, tmp_path)  # TensorBoard is new, JSONL is there
    assert (folder / "metrics.jsonl").read_bytes() == before + b"mine\n"
    assert [step for step, _ in events(folder)["val/r2"]] == [4, 8, 12]
    (folder / "metrics.jsonl").unlink()
    run(plain, tmp_path, "jsonl")
    assert (folder / "metrics.jsonl").read_bytes() == before
    assert not (folder / "lock").exists()


def test_a_diverged_run_is_tracked_to_its_end(tmp_path: Path) -> None:
    _, folder = run("toys:exploding", tmp_path, hyper={"healthy": 5})
    lines = jsonl(folder)
    assert [line["step"] for line in lines[1:]] == [4, 4]
    assert lines[-1] == {"step": 4, "status": "diverged"}
    assert [step for step, _ in events(folder)["train/loss"]] == [4]


def test_a_score_that_is_no_number_is_null_and_nan(tmp_path: Path) -> None:
    record, folder = run(plain, tmp_path, "jsonl", Constant())
    record.curve[0]["r2"] = float("nan")
    record.write(folder)
    (folder / "metrics.jsonl").unlink()
    run(plain, tmp_path, FILES, Constant())  # from the record on disk, where it is null
    assert jsonl(folder)[1]["val/r2"] is None
    ((step, value), *_) = events(folder)["val/r2"]
    assert step == 4 and value != value


def test_the_score_on_the_training_set_is_tracked(tmp_path: Path) -> None:
    record, folder = run(plain, tmp_path, "jsonl", Labels(), budget={"train_samples": 8})
    last = jsonl(folder)[-1]
    assert last["train/accuracy"] == record.scores["train"]["accuracy"]
    assert not [name for name in last if name.startswith("val/")]


def test_a_run_that_cannot_be_leaves_no_tracker_behind(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="returned shape"):
        run(misshapen, tmp_path)
    assert list(tmp_path.iterdir()) == []


class Refusing:
    """A tracker that makes its folder and then finds that it cannot start."""

    place: ClassVar[str] = "refusing"

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        (folder / self.place).mkdir()
        raise UsageError("no way in")


def test_a_tracker_that_cannot_start_stops_the_run_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tracking._TRACKERS, "refusing", "test_trackers:Refusing")
    monkeypatch.setattr(loop, "train", None)
    with pytest.raises(UsageError, match="no way in"):
        run(plain, tmp_path, ("jsonl", "refusing"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("trackers", "message"),
    [
        ("jsnol", "unknown tracker 'jsnol'; did you mean 'jsonl'? Allowed: jsonl, tensorboard, wandb"),
        (["jsonl", "tensorboard"], r"tracker 'tensorboard' needs the package tensorboard: pip install 'lrtasks\[track"),
        ("jsonl,wandb", r"tracker 'wandb' needs the package wandb: pip install 'lrtasks\[trackers\]'"),
    ],
)
def test_trackers_that_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trackers: Any, message: str
) -> None:
    for package in ("tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=message.replace("?", r"\?")):
        run(plain, tmp_path, trackers)
    assert list(tmp_path.iterdir()) == []
    run(plain, tmp_path, "jsonl")  # which needs neither


def test_trackers_from_the_command_line(command: Callable[..., Any]) -> None:
    words = (
        "eval",
        "--model",
        "dlr",
        "--task",
        "shift",
        "--length",
        16,
        "--d-model",
        8,
        "--d-state",
        4,
        "--workers",
        0,
    )
    budget = ("--steps", 2, "--test-batches", 1, "--val-batches", 1, "--device", "cpu")
    assert command(*words, *budget, "--tracker", "jsonl,tensorboard", "--tracker", "jsonl").code == 0
    (folder,) = Path("runs/shift").iterdir()
    assert len(jsonl(folder)) == 3
    assert (folder / "tensorboard").is_dir()
    said = command(*words, *budget, "--tracker", "tensorbord")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "did you mean 'tensorboard'?" in said.err


@pytest.fixture
def door() -> Iterator[tuple[str, list[bytes]]]:
    """Address of a proxy that notes what each visitor says first, and hangs up."""
    visits: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while True:
                try:
                    visitor, _ = server.accept()
                except OSError:  # the server was closed
                    return
                with visitor:
                    visits.append(visitor.recv(100))

        threading.Thread(target=answer, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", visits


def wandb_run(out: Path, door: str, *, mode: str | None, **more: str) -> subprocess.CompletedProcess[str]:
    """A run with the tracker wandb in a process whose only way to the network is ``door``."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    environment |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), door)
    environment |= {"NO_PROXY": "", "no_proxy": "", "HOME": str(out), "XDG_CACHE_HOME": str(out / "cache")}
    environment |= {"WANDB_API_KEY": "0" * 40, **more}
    if mode is not None:
        environment["WANDB_MODE"] = mode
    code = (
        "from toys import BUDGET, droppy; import lrtasks;"
        "task = lrtasks.make('shift', length=16, shifts=2);"
        "options = dict(budget=BUDGET, trackers='wandb', workers=0, device='cpu', quiet=True);"
        "lrtasks.evaluate(droppy, task, **options)"
    )
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=out,
        env={**environment, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )


def wandb_records(path: Path) -> list[Any]:
    """The records of an offline run's file: blocks of 32 KiB that hold chunks of records (LevelDB's log format)."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, whole, found = path.read_bytes(), 7, b"", []
    while place + 7 <= len(data):
        if place % 2**15 > 2**15 - 7:
            place += 2**15 - place % 2**15
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # a whole record, or the last chunk of one
            found.append(Record.FromString(whole))
            whole = b""
    return found


@pytest.mark.e2e
def test_wandb_stays_on_this_machine(tmp_path: Path, door: tuple[str, list[bytes]]) -> None:
    address, visits = door
    ended = wandb_run(tmp_path, address, mode=None)
    assert ended.returncode == 0, ended.stderr
    assert visits == []
    assert (ended.stdout, ended.stderr) == ("", "")
    (folder,) = tmp_path.glob("runs/*/*-seed0")
    (log,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    record = lrtasks.results.read_record(folder)
    records = wandb_records(log)
    points = [
        {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in entry.history.item}
        for entry in records
        if entry.HasField("history")
    ]
    assert [(p["_step"], p["train/loss"], p["val/r2"]) for p in points] == [
        (p["step"], p["loss"], p["r2"]) for p in record.curve
    ]
    written = log.read_bytes()
    assert b"test/r2" in written and b"warmup_steps" in written


@pytest.mark.e2e
def test_wandb_online_needs_the_network(tmp_path: Path, door: tuple[str, list[bytes]]) -> None:
    """The other test's door would have seen a visitor."""
    address, visits = door
    ended = wandb_run(tmp_path, address, mode="online", WANDB_INIT_TIMEOUT="10")
    assert ended.returncode == 1
    assert visits
    assert "UsageError: tracker 'wandb' cannot start" in ended.stderr
    assert not list(tmp_path.glob("runs/*"))


def test_a_finished_run_whose_folder_others_hold_stops_no_suite(tmp_path: Path) -> None:
    entries = [
        Entry("attention", task, settings={"length": 16, "d_model": 8, **BUDGET}) for task in ("shift", "cumsum")
    ]
    records = run_suite(entries, tmp_path, device="cpu")
    hold = "import sys, time; from pathlib import Path; from lrtasks.files import held\n"
    hold += "with held(Path(sys.argv[1]), 'x'): print(flush=True); time.sleep(600)"
    lock = entries[0].folder(tmp_path) / "lock"
    with subprocess.Popen([sys.executable, "-c", hold, str(lock)], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None and other.stdout.readline()
            with pytest.warns(UserWarning, match="attention on shift seed 0: not tracked: another process is"):
                assert run_suite(entries, tmp_path, trackers="jsonl", device="cpu") == records
        finally:
            other.kill()
    assert [(entry.folder(tmp_path) / "metrics.jsonl").exists() for entry in entries] == [False, True]


def test_a_folder_that_cannot_be_written_to_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(plain, tmp_path, ())

    def refuse(*_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(tracking, "held", refuse)
    with pytest.raises(UsageError, match=r"trackers cannot write into .*: Read-only file system"):
        run(plain, tmp_path, "jsonl")
