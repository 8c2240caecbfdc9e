"""Writing datasets: the same bytes however they were made, and errors that say what is wrong."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
from fake_tasks import HOLD, Blot, Few, Grey

import lrtasks
from lrtasks.data import generate, info, open_dataset, verify
from lrtasks.data.store import GenerationError, Store
from lrtasks.data.write import make_plan, split_counts
from lrtasks.errors import UsageError
from lrtasks.evaluation.further_tests import further_tests
from lrtasks.generators import registry
from lrtasks.generators.tasks.shift import Shift
from lrtasks.run_config import RunConfig

TASK = Few(kinds=256)
FEW = {"samples": 60, "split": (0.6, 0.2, 0.2), "shard_size": 7}


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


def start(code: str, folder: Path, hold: int) -> subprocess.Popen[str]:
    """A process that runs ``code`` up to ``hold`` samples, returned when the first shard is in ``folder``."""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent,
        env={**os.environ, HOLD: str(hold)},
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not list((folder / ".lrtasks" / "shards").glob("*.json")):
        assert process.poll() is None and time.monotonic() < deadline, process.stderr and process.stderr.read()
        time.sleep(0.005)
    return process


def start_writing(folder: Path, workers: int) -> subprocess.Popen[str]:
    """A process that writes samples of ``TASK``, returned when its first shard is there."""
    code = (
        "from test_store_generate import FEW, TASK; from lrtasks.data import generate\n"
        f"generate(TASK, {str(folder)!r}, workers={workers}, progress=True, **FEW)"
    )
    return start(code, folder, hold=20)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("task", "file_format"), [(Few(), "parquet"), (Few(), "tsv"), (Blot(), "png"), (Blot(), "npy")]
)
def test_any_number_of_workers_gives_the_same_bytes(
    tmp_path: Path, task: lrtasks.generators.Task, file_format: str
) -> None:
    for workers in (1, 2):
        generate(task, str(tmp_path / str(workers)), workers=workers, format=file_format, **FEW)
    whole = contents(tmp_path / "1")
    assert whole == contents(tmp_path / "2") and not any("parts" in name for name in whole)
    assert verify(str(tmp_path / "2")) == []
    (tmp_path / "1" / "manifest.json").unlink()  # as if the run was killed before it wrote this last file
    generate(task, str(tmp_path / "1"), workers=1, format=file_format, **FEW)
    assert contents(tmp_path / "1") == whole


@pytest.mark.e2e
def test_a_task_of_a_users_file_works_in_other_processes(tmp_path: Path) -> None:
    """Its class has no name that another process can import."""
    from plugin_packages import WAVE  # processes that import this module do not see its folder

    file = tmp_path / "own.py"
    file.write_text(WAVE)
    task = registry.get(f"{file}:Wave").make(length=8)
    for workers in (1, 2):
        generate(task, str(tmp_path / str(workers)), workers=workers, **FEW)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
    assert open_dataset(str(tmp_path / "2")).task_as(type(task)) == task
    given = {"length": 8, "test_data": (str(tmp_path / "2"),)}
    assert further_tests(RunConfig.make(f"{file}:Wave", "lstm", settings=given))["2"].task == task
    again = pickle.loads(pickle.dumps(task))
    assert np.array_equal(again.batch([3]).x, task.batch([3]).x)
    file.write_text(WAVE.replace("to copy", "to repeat"))
    with pytest.raises(UsageError, match=r"own\.py was edited while it was in use"):
        pickle.loads(pickle.dumps(task))


def shard(record: Path) -> Path:
    """The file of samples that a record says is whole."""
    (name,) = json.loads(record.read_text())["files"]
    return record.parents[2] / name


@pytest.mark.e2e
@pytest.mark.parametrize("workers", [1, 2])
def test_a_killed_run_is_continued_to_the_same_bytes(tmp_path: Path, workers: int) -> None:
    process = start_writing(tmp_path / "killed", workers)
    process.send_signal(signal.SIGKILL)
    process.wait()
    records = list((tmp_path / "killed" / ".lrtasks" / "shards").glob("*.json"))
    kept = {record: shard(record).stat().st_mtime_ns for record in records}
    assert not (tmp_path / "killed" / "manifest.json").exists()
    assert "unfinished" in verify(str(tmp_path / "killed"))[0]
    with pytest.raises(lrtasks.UsageError, match="no manifest"):
        open_dataset(str(tmp_path / "killed"))
    generate(TASK, str(tmp_path / "killed"), workers=1, **FEW)
    generate(TASK, str(tmp_path / "whole"), workers=1, **FEW)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")
    # all but those in which a sample was another shard's, too
    untouched = [record for record in kept if not json.loads(record.read_text())["attempts"]]
    assert untouched and all(shard(record).stat().st_mtime_ns == kept[record] for record in untouched)
    assert json.loads((tmp_path / "killed" / "manifest.json").read_text())["replaced"]


def test_finished_shards_that_were_changed_are_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    generate(Few(), str(folder), workers=1, **FEW)
    before = contents(folder)
    shards = sorted(folder.glob("*.parquet"))
    shards[1].write_bytes(b"nonsense")
    shards[2].unlink()
    untouched = [file.stat().st_mtime_ns for file in shards[3:]]
    generate(Few(), str(folder), workers=1, **FEW)
    assert contents(folder) == before
    assert [file.stat().st_mtime_ns for file in shards[3:]] == untouched


def test_a_shard_whose_record_does_not_fit_is_made_again(tmp_path: Path) -> None:
    generate(Few(), str(tmp_path), workers=1, **FEW)
    before, record = contents(tmp_path), tmp_path / ".lrtasks" / "shards" / "val-00001.json"
    known, file = json.loads(record.read_text()), shard(record)
    fewer, older = {"digests": known["digests"][1:]}, {"versions": {**known["versions"], "numpy": "1.0"}}
    for damaged in (*({**known, **change} for change in (fewer, older, {"files": {}}, {"attempts": 1})), {}, None):
        record.write_text(json.dumps(damaged))
        (tmp_path / "manifest.json").unlink()
        written = file.stat().st_mtime_ns
        generate(Few(), str(tmp_path), workers=1, **FEW)
        assert contents(tmp_path) == before and file.stat().st_mtime_ns != written


@pytest.mark.e2e
def test_interrupt_ends_workers_and_keeps_shards(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    code = (
        "import signal, sys, typer; from lrtasks.cli.data import generate\n"
        "from lrtasks.generators.base import registry\n"
        # a shell starts what it puts into the background with Ctrl-C switched off
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from fake_tasks import Few; registry.register('few')(Few); app = typer.Typer()\n"
        "app.command(context_settings={'allow_extra_args': True, 'ignore_unknown_options': True})(generate)\n"
        f"options = '--kinds 4096 --samples 5000 --workers 2 --out {folder}'\n"
        "sys.exit(app(['few', *options.split()], standalone_mode=False))"
    )
    process = start(code, folder, hold=1500)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1
    assert f"interrupted; finished shards are kept in {folder}, the same command continues" in stderr
    assert not (folder / "manifest.json").exists() and list(folder.glob("*.parquet"))


@pytest.mark.e2e
def test_an_interrupt_while_workers_start_prints_no_traceback(tmp_path: Path) -> None:
    # a worker imports the main module before it does anything else
    (tmp_path / "main.py").write_text(
        "import pathlib, signal, sys, time\n"
        "if __name__ == '__mp_main__':\n"
        "    pathlib.Path('begun').touch()\n"
        "    time.sleep(3)\n"
        "else:\n"
        # a shell starts what it puts into the background with Ctrl-C switched off
        "    signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "    from lrtasks.cli import main\n"
        "    main()\n"
    )
    command = "main.py generate cumsum --length 8 --samples 9000 --workers 2 --out set"
    process = subprocess.Popen(
        [sys.executable, *command.split()], cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while not (tmp_path / "begun").exists() and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "Traceback" not in stderr and "interrupted; finished shards are kept in set" in stderr


@pytest.mark.e2e
def test_workers_end_when_the_main_process_is_killed(tmp_path: Path) -> None:
    process = start_writing(tmp_path / "set", 2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    if not children.exists():
        process.kill()
        pytest.skip("needs /proc to list child processes")
    workers = [int(child) for child in children.read_text().split()]
    process.kill()
    process.wait()
    assert workers
    deadline = time.monotonic() + 120
    while any(_runs(worker) for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_no_duplicates_over_all_splits(tmp_path: Path) -> None:
    task = Few()
    manifest = generate(task, str(tmp_path / "set"), workers=2, seed=3, **FEW)
    dataset = open_dataset(str(tmp_path / "set"))
    attempts = {(entry["split"], entry["index"]): entry["attempt"] for entry in manifest.replaced}
    # 60 of 64 kinds: most late samples are replacements, some of them several times
    assert len(attempts) > 10 and max(attempts.values()) > 2
    seen: set[bytes] = set()
    for split, count in manifest.counts.items():
        batch = dataset.batch(range(count), split=split)
        for index in range(count):
            attempt = attempts.get((split, index), 0)
            for earlier in range(attempt):
                assert task.batch([index], 3, split, attempt=earlier).x.tobytes() in seen
            drawn = task.batch([index], 3, split, attempt=attempt)
            assert np.array_equal(batch.x[index], drawn.x[0]) and np.array_equal(batch.mask[index], drawn.mask[0])
            assert batch.x[index].tobytes() not in seen
            seen.add(batch.x[index].tobytes())


def test_a_task_without_enough_samples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(lrtasks.UsageError, match="only 8 different samples were found"):
        generate(Few(kinds=8), str(tmp_path / "set"), workers=1, samples=20)


def test_another_dataset_in_the_folder_is_named(tmp_path: Path) -> None:
    generate(Shift(16), str(tmp_path / "set"), workers=1, samples=10)
    with pytest.raises(lrtasks.UsageError, match=r"parameters.length is 16 there, 32 here; seed is 0 there, 3 here"):
        generate(Shift(32), str(tmp_path / "set"), workers=1, samples=10, seed=3)
    with pytest.raises(lrtasks.UsageError, match="shard_size is 1000 there, 5 here"):
        generate(Shift(16), str(tmp_path / "set"), workers=1, samples=10, shard_size=5)


def test_a_dataset_that_another_process_has_made_meanwhile_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = Store.locked

    def late(store: Store) -> AbstractContextManager[None]:
        monkeypatch.setattr(Store, "locked", locked)
        generate(Shift(16), str(tmp_path), workers=1, samples=10)
        return locked(store)

    monkeypatch.setattr(Store, "locked", late)
    with pytest.raises(lrtasks.UsageError, match="holds another dataset: seed is 0 there, 3 here"):
        generate(Shift(16), str(tmp_path), workers=1, samples=10, seed=3)
    assert open_dataset(str(tmp_path)).manifest.seed == 0


def test_a_whole_dataset_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = generate(Shift(16), str(tmp_path), workers=1, samples=10, progress=True)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert generate(Shift(16), str(tmp_path), workers=1, samples=10, progress=True) == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == times
    output = capsys.readouterr().err
    assert "10/10" in output and "samples/s" in output and "left" in output and "already" in output


def test_a_manifest_names_a_source_only_for_a_task_of_a_users_own(tmp_path: Path) -> None:
    for task in (Shift(16), Few()):
        generate(task, tmp_path / task.name, samples=10, workers=1)
    names = [json.loads((tmp_path / name / "manifest.json").read_text()).keys() for name in ("shift", "few")]
    assert ["source" in keys for keys in names] == [False, True], "the digests of earlier datasets stay the same"


def test_shards_of_large_samples_have_fewer_samples() -> None:
    plans = [make_plan(Shift(length), 10, (0.8, 0.1, 0.1), 0, "parquet", None) for length in (16, 1 << 17)]
    assert 1 <= plans[1].shard_size < plans[0].shard_size == 1000


def test_a_full_quota_is_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(GenerationError, match="no space left at"), Store(tmp_path).explained():
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))


def test_full_disk_leaves_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = os.fsync
    calls = itertools.count()

    def full(descriptor: int) -> None:
        if next(calls) >= 9:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        synced(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(GenerationError, match=r"no space left at .*finished shards are kept"):
        generate(Few(), str(tmp_path / "set"), workers=1, **FEW)
    left = contents(tmp_path / "set")
    assert not any("partial" in name for name in left)
    records = [json.loads(content) for name, content in left.items() if "/shards/" in name]
    files = {name: digest for record in records for name, digest in record["files"].items()}
    assert files and all(hashlib.sha256(left[name]).hexdigest() == digest for name, digest in files.items())
    with monkeypatch.context() as room:
        room.setattr(os, "fsync", synced)
        generate(Few(), str(tmp_path / "set"), workers=1, **FEW)
        generate(Few(), str(tmp_path / "whole"), workers=1, **FEW)
    assert contents(tmp_path / "set") == contents(tmp_path / "whole")
    next((tmp_path / "set").glob("*.parquet")).unlink()
    calls = itertools.count(8)  # there is room for the plan alone
    with pytest.raises(GenerationError, match="no space left"):
        generate(Few(), str(tmp_path / "set"), workers=1, **FEW)
    assert "unfinished" in verify(str(tmp_path / "set"))[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "samples must be a whole number in 1..100,000,000, found 0"),
        ({"samples": 2}, "2 samples are too few"),
        *(({"samples": samples}, "in 1..100,000,000, found 10+") for samples in (10**20, 10**400)),
        ({"samples": 10**6, "shard_size": 1}, "at most 100,000"),
        ({"workers": 10**9}, "workers must be .* 1..1024"),
        ({"split": (0.9, 0.2, 0.2)}, "that add up to 1 .*, found '0.9,0.2,0.2'"),
        ({"split": (0.9, 0.1)}, "three fractions"),
        ({"split": (1.2, -0.1, -0.1)}, "at least 0"),
        ({"split": (float("nan"), 0.5, 0.5)}, "at least 0"),
        ({"split": "0.5,0.25,0.25"}, "three fractions of at least 0 that add up to 1 .*, found '0.5,0.25,0.25'"),
        ({"split": None}, "three fractions .*, found None"),
        ({"format": "parqet"}, "unknown format 'parqet'; did you mean 'parquet'"),
        ({"format": "png"}, "format png is for image tasks"),
        ({"format": "tsv"}, "format tsv is for tasks of tokens"),
        *(
            ({"workers": workers}, "workers must be 'auto' or a whole number in 1..1024")
            for workers in (0, 2.0, True, "2")
        ),
        ({"backend": "rya"}, "unknown backend 'rya'; did you mean 'ray'"),
        ({"address": "ray://here"}, "an address has no meaning with the backend local, found 'ray://here'"),
        ({"seed": -1}, "seed must be"),
        ({"shard_size": 0}, "shard_size must be a whole number in 1"),
    ],
)
def test_bad_requests(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(lrtasks.UsageError, match=message):
        generate(Shift(16), str(tmp_path / "set"), **options)  # type: ignore[arg-type]
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("task", ["shift", Shift])
def test_a_name_is_not_a_task(tmp_path: Path, task: object) -> None:
    with pytest.raises(lrtasks.UsageError, match=r"task must be a task that lrtasks\.make gave, found"):
        generate(task, str(tmp_path / "set"))  # type: ignore[arg-type]
    assert not (tmp_path / "set").exists()


def test_bad_places(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(lrtasks.UsageError, match="is a file"):
        generate(Shift(16), str(tmp_path / "file"), samples=10)
    with pytest.raises(lrtasks.UsageError, match=r"cannot use .*Not a directory"):
        generate(Shift(16), str(tmp_path / "file" / "set"), samples=10)


def test_pictures_that_are_no_bytes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(lrtasks.UsageError, match="8-bit"):
        generate(Grey(), str(tmp_path), samples=10, workers=1)


def test_workers_import_no_torch() -> None:
    code = "import sys, lrtasks.data.write; sys.exit('torch' in sys.modules or 'pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_split_counts_add_up() -> None:
    for samples in range(3, 200):
        counts = split_counts(samples, (0.8, 0.1, 0.1))
        assert sum(counts.values()) == samples and min(counts.values()) >= 1
    assert split_counts(7, (1, 0, 0)) == {"train": 7, "val": 0, "test": 0}


def test_an_object_store_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    manifest = generate(Few(), "memory://sets/few", workers=3, **FEW)
    assert verify("memory://sets/few") == []
    assert info("memory://sets/few")["samples"] == 60
    batch = open_dataset("memory://sets/few").batch([3, 30], split="train")
    assert batch.x.shape == (2, 4)
    assert generate(Few(), "memory://sets/few", **FEW) == manifest
    with pytest.raises(lrtasks.UsageError, match="kinds is 64 there, 65 here"):
        generate(Few(kinds=65), "memory://sets/few", **FEW)
    with pytest.raises(lrtasks.UsageError, match="memory://sets/ray exists in this process alone"):
        generate(Few(), "memory://sets/ray", backend="ray", **FEW)
    assert list(tmp_path.iterdir()) == [], "no file waits here for its copy"


def test_a_refused_run_leaves_the_folder_of_the_other_usable(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "set"))
    with store.locked():
        with pytest.raises(lrtasks.UsageError, match="another process"), store.locked():
            pass
        store.write("shard", [b"bytes"])
    assert [path.name for path in (tmp_path / "set").iterdir()] == ["shard"]
