"""A user's files are never touched, and data that cannot be right are refused in one line."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from fake_tasks import Blot, Few
from test_store_generate import FEW, contents

from lrtasks import UsageError
from lrtasks.config import parameter
from lrtasks.data import StoredDataset, epoch_order, generate, open_dataset, read_tsv, verify
from lrtasks.data.store import LOCK, GenerationError, Store
from lrtasks.generators.tasks.shift import Shift
from lrtasks.spec import Batch, Sample


@dataclass(frozen=True)
class Faulty(Few):
    """Samples of which those of every tenth kind have a label that is too large."""

    name: ClassVar[str] = "faulty"

    def sample(self, rng: np.random.Generator) -> Sample:
        sample = super().sample(rng)
        return sample if sample.meta["kind"] % 10 else sample._replace(y=np.full(4, 100))


@pytest.mark.parametrize("name", [".notes-20261122", ".lrtasks/lock", "diary.txt", "photos/me.png", ".lrtasks/mine"])
def test_a_folder_with_another_file_is_refused_by_name(tmp_path: Path, name: str) -> None:
    file = tmp_path / "set" / name
    file.parent.mkdir(parents=True)
    file.write_bytes(b"precious")
    before = contents(tmp_path)
    with pytest.raises(UsageError, match=f"holds '{name}', which is not part of this dataset") as caught:
        generate(Shift(16), tmp_path / "set", samples=20, workers=1)
    assert contents(tmp_path) == before and "\n" not in str(caught.value)


def test_another_file_in_a_dataset_stops_its_completion(tmp_path: Path) -> None:
    generate(Few(), tmp_path, workers=1, **FEW)
    (tmp_path / "train-00001-of-00006.parquet").unlink()
    for name in (".train-00001-of-00006.parquet.12-0123abcd", ".lrtasks/partial/mine.12-0123abcd"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"precious")
        before = contents(tmp_path)
        with pytest.raises(UsageError, match="which is not part of this dataset"):
            generate(Few(), tmp_path, workers=1, **FEW)
        assert contents(tmp_path) == before
        (tmp_path / name).unlink()
    (tmp_path / ".lrtasks/partial").mkdir(exist_ok=True)
    (tmp_path / ".lrtasks/partial/train-00001-of-00006.parquet.12-0123abcd").write_bytes(b"what a kill left")
    generate(Few(), tmp_path, workers=1, **FEW)
    assert verify(tmp_path) == [] and not list(tmp_path.glob(".lrtasks/partial/*"))


@pytest.mark.parametrize(
    "name",
    [".lrtasks", ".lrtasks/lock", ".lrtasks/plan.json", "train", "train/00000", "train/index.csv", "manifest.json"],
)
def test_symbolic_links_are_refused(tmp_path: Path, name: str) -> None:
    task, options = Blot(), {"samples": 20, "format": "png", "workers": 1}
    generate(task, tmp_path / "set", **options)
    (tmp_path / "set" / "manifest.json").unlink()
    (tmp_path / "set" / "train" / "00000" / "000000.png").unlink()
    link, target = tmp_path / "set" / name, tmp_path / "elsewhere"
    if link.exists():
        shutil.move(link, target)
    else:
        target.write_bytes(b"precious")
    link.symlink_to(target)
    before = contents(tmp_path)
    with pytest.raises(UsageError, match="is a symbolic link"):
        generate(task, tmp_path / "set", **options)
    assert contents(tmp_path) == before


def test_a_folder_may_itself_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "set").symlink_to(tmp_path / "disk")
    generate(Shift(16), f"file://{tmp_path}/set", samples=20, workers=1)
    assert len(open_dataset(tmp_path / "set")) == len(open_dataset(f"local://{tmp_path}/set")) == 20
    generate(Shift(16), f"local://{tmp_path}/other", samples=20, workers=1)


def test_masks_that_begin_later_are_refused(tmp_path: Path) -> None:
    class Late(Few):
        def batch(self, indices: Any, *arguments: Any, **options: Any) -> Batch:
            batch = super().batch(indices, *arguments, **options)
            return batch if max(indices) > 9 else batch._replace(mask=None)

    with pytest.raises(UsageError, match="samples 7 to 13 have a mask, but the first do not"):
        generate(Late(), tmp_path, workers=1, **FEW)


def test_samples_that_do_not_fit_the_specs_are_refused(tmp_path: Path) -> None:
    task = Faulty(kinds=4096)
    wrong = np.flatnonzero(task.batch(range(100)).meta["kind"] % 10 == 0)[0]
    with pytest.raises(UsageError, match=rf"faulty: sample {wrong} of train cannot be stored: y holds 100; allowed"):
        generate(task, tmp_path / "set", samples=100, split=(1, 0, 0), workers=1)
    assert not list(tmp_path.rglob("*.parquet"))


def test_columns_that_do_not_fit_the_task_are_refused(tmp_path: Path) -> None:
    generate(Shift(16), tmp_path, samples=20, workers=1)
    x, *others = open_dataset(tmp_path).manifest.columns
    manifest = dataclasses.replace(
        open_dataset(tmp_path).manifest, columns=(dataclasses.replace(x, shape=(16, 9)), *others)
    )
    with pytest.raises(UsageError, match="holds data of another task: x is"):
        StoredDataset(Store(tmp_path), manifest).check_task(Shift(16))


def test_orders_need_whole_numbers() -> None:
    for arguments in ((5, 0, 1.5), (5, 0, -1), (5.0, 0, 0), (5, "0", 0)):
        with pytest.raises(UsageError, match=r"must be a whole number in 0..2\^63-1"):
            epoch_order(*arguments)


@pytest.mark.parametrize("out", ["nosuch://x", "zip://x", "github://x", "tar://a::file://b", "s3:///"])
def test_addresses_that_are_not_complete_are_refused(out: str) -> None:
    with pytest.raises(UsageError, match="cannot use "):
        generate(Shift(16), out, samples=20, workers=1)


def test_a_storage_that_does_not_answer_is_named_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot use .*: TimeoutError"), Store(tmp_path).explained():
        raise TimeoutError


def test_an_empty_address_is_refused() -> None:
    message = "the address of a dataset must be a folder or a URL, found ''"
    with pytest.raises(UsageError, match=message):
        open_dataset("")
    with pytest.raises(UsageError, match=message):
        generate(Shift(16), "", samples=20, workers=1)


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    generate(Shift(16), tmp_path, samples=np.int64(20), seed=np.int64(3), shard_size=np.int32(10), workers=1)
    assert open_dataset(tmp_path).manifest.seed == 3


def test_a_folder_in_the_place_of_a_file_hides_no_other_problem(tmp_path: Path) -> None:
    made = generate(Shift(16), tmp_path, samples=20, workers=1)
    for name, _ in made.files():
        (tmp_path / name).unlink()
    (tmp_path / made.files()[0][0]).mkdir()
    problems = verify(tmp_path)
    assert len(problems) == len(made.files())
    assert problems[0].endswith(f"{made.files()[0][0]} is not a regular file")


def test_manifests_that_cannot_be_read(tmp_path: Path) -> None:
    generate(Shift(16), tmp_path, samples=20, workers=1)
    manifest = tmp_path / "manifest.json"
    for content in (b"[" * 200_000, b'{"a": ' * 200_000, b"1" * 5000, b"\xff", b"null", b'{"sha256": 1, "schema": 1}'):
        manifest.write_bytes(content)
        with pytest.raises(UsageError, match="manifest"):
            open_dataset(tmp_path)
    manifest.unlink()
    os.mkfifo(manifest)
    with pytest.raises(UsageError, match=r"manifest.json is not a regular file"):
        open_dataset(tmp_path)
    manifest.unlink()
    manifest.symlink_to("/dev/zero")
    with pytest.raises(UsageError, match=r"manifest.json is not a regular file"):
        open_dataset(tmp_path)
    manifest.unlink()
    for content in (b"[" * 200_000, b"\xff", b"null"):
        (tmp_path / ".lrtasks" / "plan.json").write_bytes(content)
        with pytest.raises(UsageError, match=r"holds a damaged \.lrtasks/plan\.json; choose another folder"):
            generate(Shift(16), tmp_path, samples=20, workers=1)


def test_a_folder_that_vanishes_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, left = os.fsync, [6]

    def vanish(descriptor: int) -> None:
        left[0] -= 1
        if not left[0]:
            shutil.rmtree(tmp_path / "set")
        synced(descriptor)

    monkeypatch.setattr(os, "fsync", vanish)
    with pytest.raises(GenerationError, match=r"(was removed|holds no plan)") as caught:
        generate(Few(), tmp_path / "set", workers=1, **FEW)
    assert "\n" not in str(caught.value)


def test_a_full_disk_has_exit_code_1(tmp_path: Path) -> None:
    code = (
        "import errno, os, sys, lrtasks.cli\n"
        "def full(descriptor): raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "os.fsync = full\n"
        f"sys.argv[1:] = 'generate shift --length 16 --samples 20 --workers 1 --out {tmp_path}/set'.split()\n"
        "lrtasks.cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.startswith("lrtasks: no space left at ")
    assert done.stderr.count("\n") == 1


@pytest.mark.e2e
def test_a_worker_that_dies_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(GenerationError, match=r"a worker process died .*finished shards are kept"):
        generate(Deadly(), tmp_path, workers=2, **FEW)


@dataclass(frozen=True)
class Deadly(Few):
    """A task that ends the processes of the workers."""

    name: ClassVar[str] = "deadly"
    spared: int = parameter(os.getpid(), "process that is not ended")

    def sample(self, rng: np.random.Generator) -> Sample:
        if os.getpid() != self.spared:
            os._exit(3)
        return super().sample(rng)


def test_a_table_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.tsv").write_bytes(b"Source\tTarget\tTargetInds\n1 2\t\xff\t0\n")
    with pytest.raises(UsageError, match="is not a table in UTF-8"):
        list(read_tsv(tmp_path / "bad.tsv", Few()))


def test_a_finished_dataset_in_a_folder_that_is_read_only_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = generate(Few(4096), tmp_path, samples=30, workers=1)
    monkeypatch.setattr(Store, "read_only", True)
    monkeypatch.setattr(Store, "write", lambda *_, **__: pytest.fail("nothing is to be written"))
    monkeypatch.setattr(Store, "locked", lambda _: pytest.fail("no lock file can be made"))
    assert generate(Few(4096), tmp_path, samples=30, workers=1) == made


def test_parts_of_tables_that_a_killed_run_left_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    how: dict[str, Any] = {"samples": 30, "workers": 1, "format": "tsv"}
    generate(Few(4096), tmp_path / "whole", **how)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("lrtasks.data.write._remove_parts", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        generate(Few(4096), tmp_path / "cut", **how)
    assert contents(tmp_path / "cut") != contents(tmp_path / "whole")
    generate(Few(4096), tmp_path / "cut", **how)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_an_address_that_is_too_long_is_one_short_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="too long for the file system; choose a shorter name") as caught:
        generate(Few(4096), tmp_path / ("a" * 500), samples=3, workers=1)
    assert len(str(caught.value)) < 200


def test_a_lock_that_vanishes_while_the_folder_is_looked_at_is_no_removed_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run ends between the listing of the folder and the next look at its lock."""
    lock = tmp_path / LOCK
    lock.parent.mkdir()
    lock.touch()
    real = Store.names

    def names(store: Store) -> list[str]:
        found = real(store)
        lock.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(Store, "names", names)
    assert generate(Shift.make(length=16), tmp_path, samples=20).counts["train"] == 18
