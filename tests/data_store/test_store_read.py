"""Reading datasets back: the generator's arrays, for pandas and pyarrow too, and refusal of what was changed."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import json
import math
import os
import pickle
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from fake_tasks import Blot, Few
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import lrtasks
from lrtasks.data import epoch_order, generate, info, open_dataset, verify
from lrtasks.data.columns import (
    PROBED,
    declared,
    decode,
    decode_labels,
    encode,
    encode_labels,
    layout,
    row_group,
    schema,
    to_bytes,
)
from lrtasks.data.manifest import Shard, read_manifest
from lrtasks.data.store import Store
from lrtasks.generators.base import Task
from lrtasks.generators.tables import from_bytes
from lrtasks.generators.tasks.shift import Shift
from lrtasks.spec import Batch, Sample, Spec

THIRDS = (0.6, 0.2, 0.2)
LATE = 7
"""A digit that is in none of the first samples of ``Few(kinds=4096)``."""


def assert_same(found: Batch, expected: Batch) -> None:
    for ours, theirs in zip(found[:3], expected[:3], strict=True):
        if theirs is None:
            assert ours is None
        else:
            assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs)
    assert (found.meta or {}).keys() == (expected.meta or {}).keys()
    for name, values in (expected.meta or {}).items():
        for ours, theirs in zip(found.meta[name], values, strict=True):
            assert np.shape(ours) == np.shape(theirs) and np.array_equal(ours, theirs), name
            assert np.asarray(ours).dtype == np.asarray(theirs).dtype, name


@pytest.mark.parametrize("task", [Shift(16), Blot(), Few(kinds=2**20), lrtasks.make("listops", setting="small")])
def test_the_same_arrays_as_the_generator(tmp_path: Path, task: Task) -> None:
    generate(task, str(tmp_path), samples=50, split=THIRDS, shard_size=8, workers=1, seed=5)
    dataset = open_dataset(str(tmp_path))
    assert len(dataset) == 50 and dataset.counts == {"train": 30, "val": 10, "test": 10}
    for split, indices in (("train", [29, 0, 7, 8, 0, 15]), ("val", range(10)), ("test", [3, 5, 4, 6])):
        assert_same(dataset.batch(indices, split=split), task.batch(indices, 5, split))
    batch = pickle.loads(pickle.dumps(dataset)).batch(np.array([4, 2]))
    assert_same(batch, task.batch([4, 2], 5))
    assert batch.x.flags.writeable and batch.y.flags.writeable


def test_one_sample_is_found_without_reading_its_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = Shift(4096)
    generate(task, str(tmp_path), samples=20, workers=1)
    read: list[int] = []
    original = pq.ParquetFile.read_row_group

    def counted(file: Any, group: int, **options: Any) -> Any:
        table = original(file, group, **options)
        read.append(table.num_rows)
        return table

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    dataset = open_dataset(str(tmp_path))
    dataset.batch([17])
    dataset.batch([17])
    assert read == [1]
    assert row_group(declared(Shift(16))) == 64, "small samples, too, are read a few at a time"


@pytest.mark.parametrize(("size", "kept"), [(3 * 4096 * 11 * 4, 3), (1, 1)])
def test_old_row_groups_make_room_for_new_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, kept: int
) -> None:
    generate(Shift(4096), str(tmp_path), samples=20, workers=1)
    monkeypatch.setattr("lrtasks.data.read.CACHE_BYTES", size)
    dataset = open_dataset(str(tmp_path))
    for _ in range(2):
        dataset.batch(range(18))
    assert dataset._group.cache_info().currsize == kept


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], 0, "train"), "at least one index"),
        ((3, 0, "train"), "batch takes a list of sample numbers such as range\\(16\\), found 3"),
        (([12], 0, "train"), "index of a train sample must be a whole number in 0..11, found 12"),
        (([-1], 0, "train"), "in 0..11, found -1"),
        *((([0, index], 0, "train"), f"in 0..11, found {index!r}") for index in (1.5, "1", None, True)),
        (([0], 0, "validation"), "unknown split 'validation'"),
    ],
)
def test_bad_indices(tmp_path: Path, arguments: Any, message: str) -> None:
    generate(Shift(16), str(tmp_path), samples=20, split=THIRDS, workers=1)
    with pytest.raises(lrtasks.UsageError, match=message):
        open_dataset(str(tmp_path)).batch(*arguments)


def test_an_empty_split_is_named(tmp_path: Path) -> None:
    generate(Shift(16), str(tmp_path), samples=5, split=(1, 0, 0), workers=1)
    with pytest.raises(lrtasks.UsageError, match="has no val samples"):
        open_dataset(str(tmp_path)).batch([0], split="val")


def test_task_of_a_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate(Shift(16), str(tmp_path), samples=20, workers=1)
    dataset = open_dataset(str(tmp_path))
    assert dataset.task == Shift(16)
    dataset.check_task(Shift(16))
    with pytest.raises(lrtasks.UsageError, match=r"another task: parameters.shifts is 8 there, 4 here"):
        dataset.check_task(Shift(16, shifts=4))
    monkeypatch.setattr(Shift, "version", 7)
    with pytest.raises(lrtasks.UsageError, match=r"another task: version is 1 there, 7 here"):
        dataset.check_task(Shift(16))


def test_a_task_that_is_not_registered_is_named(tmp_path: Path) -> None:
    generate(Few(), str(tmp_path), samples=10, workers=1)
    dataset = open_dataset(str(tmp_path))
    assert dataset.task_as(Few) == Few()
    with pytest.raises(
        lrtasks.UsageError, match="holds data of the task 'few', which is not registered; import the file"
    ):
        _ = dataset.task


def test_a_changed_shard_is_named_and_refused(tmp_path: Path) -> None:
    folder = str(tmp_path)
    generate(Shift(16), folder, samples=50, shard_size=10, workers=1)
    open_dataset(folder)
    shard = tmp_path / "train-00002-of-00005.parquet"
    data = bytearray(shard.read_bytes())
    data[100] ^= 1
    shard.write_bytes(data)
    assert verify(folder) == [f"{shard.name} was changed: its SHA-256 is not the manifest's"]
    with pytest.raises(lrtasks.UsageError, match=f"cannot be used: {shard.name} was changed"):
        open_dataset(folder)
    shard.unlink()
    assert verify(folder) == [f"{shard.name} is missing"]
    with pytest.raises(lrtasks.UsageError, match=f"{shard.name} is missing$"):
        open_dataset(folder)
    (tmp_path / "train-00003-of-00005.parquet").unlink()
    with pytest.raises(lrtasks.UsageError, match=rf"{shard.name} is missing \(and 1 more; "):
        open_dataset(folder)


@pytest.mark.parametrize("change", [Path.unlink, lambda shard: shard.write_bytes(shard.read_bytes()[:900])])
def test_a_shard_that_changes_after_the_opening_is_named(tmp_path: Path, change: Any) -> None:
    generate(Shift(16), str(tmp_path), samples=20, shard_size=10, workers=1)
    dataset = open_dataset(str(tmp_path))
    (shard,) = tmp_path.glob("train-00001-*")
    change(shard)
    with pytest.raises(lrtasks.UsageError, match=f"{shard.name} in .* cannot be read"):
        dataset.batch([12])


def test_another_dataset_in_the_folder_of_an_opened_one_is_refused(tmp_path: Path) -> None:
    for name, seed in (("data", 0), ("other", 1)):
        generate(Shift(16), tmp_path / name, samples=20, shard_size=10, workers=1, seed=seed)
    dataset = open_dataset(tmp_path / "data")
    (tmp_path / "data").rename(tmp_path / "old")
    (tmp_path / "other").rename(tmp_path / "data")
    with pytest.raises(lrtasks.UsageError, match="was replaced: seed is 1 there, 0 here"):
        dataset.batch([12])


def test_a_file_that_becomes_shorter_while_it_is_open_is_named(tmp_path: Path) -> None:
    generate(Shift(4096), str(tmp_path), samples=20, split=(1, 0, 0), workers=1)
    dataset = open_dataset(str(tmp_path))
    dataset.batch([0])
    (shard,) = tmp_path.glob("train-*")
    os.truncate(shard, 100)
    with pytest.raises(lrtasks.UsageError, match=f"{shard.name} in .* cannot be read"):
        dataset.batch([19])


def test_a_forked_process_opens_the_files_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate(Shift(16), str(tmp_path), samples=20, workers=1)
    dataset, opened = open_dataset(str(tmp_path)), []
    monkeypatch.setattr(dataset, "_open", lambda name, open=dataset._open: opened.append(name) or open(name))
    dataset._forget()
    for process in (os.getpid(), os.getpid(), -1):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        assert_same(dataset.batch([3]), Shift(16).batch([3]))
        dataset.batch([4])
    assert len(opened) == 2


def test_a_dataset_stays_open_in_another_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    generate(Shift(16), "data", samples=20, workers=1)
    dataset = open_dataset("data")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for one in (dataset, pickle.loads(pickle.dumps(dataset))):
        assert_same(one.batch([3]), Shift(16).batch([3]))


def test_threads_share_a_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate(Shift(16), str(tmp_path), samples=20, workers=1)
    dataset = open_dataset(str(tmp_path))
    read, busy, together = pq.ParquetFile.read_row_group, set[int](), []

    def slow(file: pq.ParquetFile, *arguments: Any, **options: Any) -> Any:
        # two threads in one reader of pyarrow crash the process, but rarely
        together.append(id(file) in busy)
        busy.add(id(file))
        time.sleep(0.05)
        busy.discard(id(file))
        return read(file, *arguments, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", slow)
    with ThreadPoolExecutor(4) as threads:
        for number, batch in enumerate(threads.map(lambda index: dataset.batch([index]), range(4))):
            assert_same(batch, Shift(16).batch([number]))
    assert together and not any(together)


def test_a_file_that_does_not_belong_is_named(tmp_path: Path) -> None:
    generate(Shift(16), str(tmp_path), samples=20, workers=1)
    (tmp_path / "train-00007.parquet").write_bytes(b"")
    assert verify(str(tmp_path)) == ["train-00007.parquet is not in the manifest"]


def edit(folder: Path, change: Any) -> None:
    content = json.loads((folder / "manifest.json").read_text())
    change(content)
    (folder / "manifest.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content["parameters"].update(length=32), "was changed after it was written"),
        (lambda content: content["shards"][0]["files"].update({"x": "0"}), "was changed after it was written"),
        (lambda content: content.pop("sha256"), "cannot be read as a manifest"),
        (lambda content: content.update(schema=99), "has schema 99"),
    ],
)
def test_an_edited_manifest_is_named_and_refused(tmp_path: Path, change: Any, message: str) -> None:
    folder = str(tmp_path)
    generate(Shift(16), folder, samples=20, workers=1)
    edit(tmp_path, change)
    assert message in verify(folder)[0]
    for use in (open_dataset, info, lambda path: generate(Shift(16), path, samples=20, workers=1)):
        with pytest.raises(lrtasks.UsageError, match=message):
            use(folder)


def rewrite(folder: Path, **changes: Any) -> None:
    """Put another manifest there whose own digest is right."""
    manifest = dataclasses.replace(read_manifest(Store(folder)), **changes)
    (folder / "manifest.json").write_bytes(manifest.to_json())


@pytest.mark.parametrize("name", ["../secret.parquet", "/etc/passwd", "a/../../b", "..\\b", "c:b", "a\x00b", ""])
def test_names_outside_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    generate(Shift(16), str(tmp_path / "set"), samples=20, workers=1)
    first, *others = read_manifest(Store(str(tmp_path / "set"))).shards
    rewrite(tmp_path / "set", shards=(dataclasses.replace(first, files={name: "0" * 64}), *others))
    with pytest.raises(lrtasks.UsageError, match="outside the dataset"):
        open_dataset(str(tmp_path / "set"))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"parameters": None}, "parameters"),
        ({"counts": [20]}, "counts"),
        ({"counts": {"train": "18", "val": 1, "test": 1}}, "counts.train"),
        ({"counts": {"train": 18, "val": 1}}, "counts"),
        ({"counts": {"train": 19, "val": 1, "test": 1}}, "19 samples"),
        ({"shards": (Shard("train", 0, 20, {"a": None}),)}, "files"),  # type: ignore[dict-item]
        ({"shards": (Shard("train", 0, 18),)}, "one file"),
        ({"shards": ()}, "shards"),
    ],
)
def test_a_manifest_with_impossible_values_is_refused(tmp_path: Path, changes: dict[str, Any], found: str) -> None:
    generate(Shift(16), str(tmp_path), samples=20, workers=1)
    rewrite(tmp_path, **changes)
    assert found in verify(tmp_path)[0]
    for use in (open_dataset, info, lambda path: generate(Shift(16), path, samples=20, workers=1)):
        with pytest.raises(lrtasks.UsageError, match=f"cannot be read as a manifest.*{found}"):
            use(tmp_path)


def test_a_link_to_itself_hides_no_other_problem(tmp_path: Path) -> None:
    made = generate(Shift(16), tmp_path, samples=20, workers=1)
    for name, _ in made.files():
        (tmp_path / name).unlink()
    (tmp_path / made.files()[0][0]).symlink_to(made.files()[0][0])
    assert len(verify(tmp_path)) == len(made.files())


@pytest.mark.parametrize("size", [-1, 2**31])
def test_a_column_of_an_impossible_shape_is_refused(tmp_path: Path, size: int) -> None:
    generate(Shift(16), str(tmp_path), samples=20, workers=1)
    first, *others = read_manifest(Store(str(tmp_path))).columns
    rewrite(tmp_path, columns=(dataclasses.replace(first, shape=(size, 11)), *others))
    with pytest.raises(lrtasks.UsageError, match="cannot be read as a manifest"):
        open_dataset(str(tmp_path))


def test_what_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(lrtasks.UsageError, match="there is no folder"):
        open_dataset(str(tmp_path / "nothing"))
    with pytest.raises(lrtasks.UsageError, match="holds no finished dataset"):
        open_dataset(str(tmp_path))
    (tmp_path / "file").write_text("")
    with pytest.raises(lrtasks.UsageError, match="is a file"):
        verify(str(tmp_path / "file"))
    generate(Shift(16), str(tmp_path / "npy"), samples=20, format="npy", workers=1)
    with pytest.raises(lrtasks.UsageError, match="is in format npy"):
        open_dataset(str(tmp_path / "npy"))


def test_pandas_reads_the_columns(tmp_path: Path) -> None:
    task = Blot()
    generate(task, str(tmp_path), samples=20, workers=1)
    frame = pd.read_parquet(tmp_path / "train-00000-of-00001.parquet")
    expected = task.batch(range(18))
    assert frame["index"].tolist() == list(range(18))
    assert frame["label"].tolist() == expected.meta["label"].tolist()
    assert frame["word"].tolist() == list(expected.meta["word"])
    assert [[mark.tolist() for mark in marks] for marks in frame["marks"]] == [
        m.tolist() for m in expected.meta["marks"]
    ]
    labels = decode_labels(frame["mask"][2]["bytes"])
    assert np.array_equal(labels.ravel(), expected.y[2])


def test_npy_files_hold_the_arrays(tmp_path: Path) -> None:
    task = Blot()
    generate(task, str(tmp_path), samples=20, format="npy", workers=1, shard_size=10)
    expected = task.batch(range(10, 18))
    stem = "train-00001-of-00002"
    assert np.array_equal(np.load(tmp_path / f"{stem}.x.npy"), expected.x)
    assert np.array_equal(np.load(tmp_path / f"{stem}.y.npy"), expected.y)
    meta = [json.loads(line) for line in (tmp_path / f"{stem}.meta.jsonl").read_text().splitlines()]
    assert [entry["index"] for entry in meta] == list(range(10, 18))
    assert [entry["marks"] for entry in meta] == [marks.tolist() for marks in expected.meta["marks"]]


class Unknown(Blot):
    """Numbers that are not finite in the metadata."""

    name: ClassVar[str] = "unknown"

    def sample(self, rng: np.random.Generator) -> Sample:
        sample = super().sample(rng)
        return sample._replace(meta={**(sample.meta or {}), "ink": math.nan, "pair": [math.inf, 0.5]})


def test_json_files_are_strict(tmp_path: Path) -> None:
    generate(Unknown(), str(tmp_path), samples=5, format="npy", workers=1, split=(1, 0, 0))
    (file,) = tmp_path.glob("*.meta.jsonl")
    for line in file.read_text().splitlines():
        entry = json.loads(line, parse_constant=pytest.fail)
        assert (entry["ink"], entry["pair"]) == (None, [None, 0.5])


def test_png_files_and_their_index(tmp_path: Path) -> None:
    task = Blot()
    generate(task, str(tmp_path), samples=20, format="png", workers=1, shard_size=10)
    assert verify(str(tmp_path)) == []
    expected = task.batch(range(18))
    index = pd.read_csv(tmp_path / "train" / "index.csv")
    assert index["index"].tolist() == list(range(18))
    assert index["label"].tolist() == expected.meta["label"].tolist()
    row = index.iloc[12]
    with Image.open(tmp_path / row["image"]) as image, Image.open(tmp_path / row["mask"]) as mask:
        assert np.array_equal(from_bytes(np.asarray(image)).ravel(), expected.x[12].ravel())
        labels = np.asarray(mask).ravel().astype(np.int64)
        assert np.array_equal(np.where(labels == 255, -100, labels), expected.y[12])
        shown = np.asarray(mask.convert("RGB")).reshape(-1, 3)
        assert len({tuple(colour) for colour in shown[labels < 3].tolist()}) == 3
        assert len(mask.getpalette() or ()) == 3 * 256, "a colour for the pixel value 255, too"
    (tmp_path / row["mask"]).write_bytes(b"")
    assert verify(str(tmp_path)) == [f"{row['mask']} was changed: its SHA-256 is not the manifest's"]
    (tmp_path / "val" / "index.csv").unlink()
    assert verify(str(tmp_path)) == ["val/index.csv is missing"], "and nothing about the images that it lists"


def test_an_index_may_hold_long_lists_and_texts_with_any_line_break(tmp_path: Path) -> None:
    """Metadata of one value per pixel take more than 128 KiB, the limit of Python's reader of CSV."""

    class Deep(Blot):
        def sample(self, rng: np.random.Generator) -> Sample:
            made = super().sample(rng)
            depth = np.full((300, 300), 10)
            return made._replace(meta={**(made.meta or {}), "depth": depth, "note": "two\u2028lines\x1cand\nmore"})

    generate(Deep(), str(tmp_path), samples=3, split=(1, 0, 0), format="png", workers=1)
    csv.field_size_limit(2**17)  # another test may have raised it
    assert verify(str(tmp_path)) == []


def test_an_index_that_names_files_outside_is_refused(tmp_path: Path) -> None:
    generate(Blot(), str(tmp_path), samples=20, format="png", workers=1)
    index = tmp_path / "val" / "index.csv"
    index.write_text(index.read_text().replace("val/00000/000000.png", "../secret.png"))
    shards = read_manifest(Store(str(tmp_path))).shards
    digest = hashlib.sha256(index.read_bytes()).hexdigest()
    changed = [dataclasses.replace(s, files={"val/index.csv": digest}) if s.split == "val" else s for s in shards]
    rewrite(tmp_path, shards=tuple(changed))
    assert verify(str(tmp_path))[0] == "'../secret.png' is a file outside the dataset"


def test_info_is_json_ready(tmp_path: Path) -> None:
    made = generate(Few(), str(tmp_path), samples=50, workers=1)
    summary = json.loads(json.dumps(info(str(tmp_path))))
    assert summary["task"] == "few" and summary["parameters"] == {"kinds": 64, "pause": 0.0}
    assert summary["counts"] == {"train": 48, "val": 1, "test": 1}
    assert summary["replaced"] == len(made.replaced) > 1
    assert summary["columns"] == ["index", "input_ids", "labels", "attention_mask", "kind", "digits"]
    assert summary["bytes"] == sum(path.stat().st_size for path in tmp_path.glob("*") if path.is_file())


def test_only_grey_pictures_and_label_maps_of_their_size_are_png_files() -> None:
    class Other(Blot):
        input = Spec("real", 30, 3)
        target = Spec("token", 1, 3, pooled=True)

    assert [(column.name, column.kind) for column in declared(Other())] == [("x", "list"), ("labels", "list")]


def test_metadata_cannot_hide_a_column() -> None:
    class Hiding(Few):
        hidden: ClassVar[str]

        def sample(self, rng: np.random.Generator) -> Any:
            return super().sample(rng)._replace(meta={self.hidden: 1})

    for name in ("labels", "index"):
        Hiding.hidden = name
        with pytest.raises(lrtasks.UsageError, match=f"metadata cannot be called '{name}'"):
            layout(Hiding())


@pytest.mark.parametrize("thing", [lambda _: {"a": 1}, lambda kind: [1, 2] if kind % 2 else 1])
def test_metadata_of_an_odd_type_or_shape_is_refused(thing: Any) -> None:
    class Strange(Few):
        def sample(self, rng: np.random.Generator) -> Any:
            return super().sample(rng)._replace(meta={"thing": thing(int(rng.integers(64)))})

    with pytest.raises(lrtasks.UsageError, match="metadata 'thing' must be numbers"):
        layout(Strange())


def test_the_type_of_metadata_is_that_of_all_probed_samples_with_an_entry() -> None:
    class Mixed(Few):
        def sample(self, rng: np.random.Generator) -> Any:
            size = int(rng.integers(3))
            return super().sample(rng)._replace(meta={"found": [1] * size, "ink": [[], [1], [0.5, 1]][size]})

    types = {column.name: column.dtype for column in layout(Mixed()) if column.role == "meta"}
    assert types == {"found": "int64", "ink": "float64"}


def test_samples_without_labels_are_refused(tmp_path: Path) -> None:
    class Rare(Few):
        """A label in a share of the samples."""

        share = 0.01

        def sample(self, rng: np.random.Generator) -> Any:
            drawn = super().sample(rng)
            return drawn._replace(y=np.where(rng.random() < self.share, drawn.y, -100))

    class Never(Rare):
        share = 0.0

    assert layout(Rare())
    with pytest.raises(lrtasks.UsageError, match="the first 1,000 samples have no label"):
        generate(Never(), str(tmp_path / "data"), samples=50, workers=1)
    assert list(tmp_path.iterdir()) == []


@given(st.integers(1, 9), st.integers(1, 9), st.integers(2, 200), st.integers(0, 2**32))
@settings(max_examples=30)
def test_images_are_lossless(rows: int, columns: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(-1, classes, (rows, columns))
    labels[labels < 0] = -100
    assert np.array_equal(decode_labels(encode_labels(labels, classes)), labels)
    pixels = rng.integers(0, 256, (rows, columns), dtype=np.uint8)
    assert np.array_equal(to_bytes(from_bytes(pixels)), pixels)


@pytest.mark.parametrize(("label", "classes", "bound"), [(3, 3, 3), (255, 300, 255)])
def test_a_label_that_an_image_cannot_hold_is_refused(label: int, classes: int, bound: int) -> None:
    with pytest.raises(lrtasks.UsageError, match=f"a label map holds labels below {bound}, found {label}"):
        encode_labels(np.array([[0, label]]), classes)


@given(st.integers(1, 300), st.integers(0, 2**63 - 1), st.integers(0, 1000))
@settings(max_examples=30)
def test_epoch_orders_are_permutations(samples: int, seed: int, epoch: int) -> None:
    order = epoch_order(samples, seed, epoch)
    assert np.array_equal(np.sort(order), np.arange(samples))
    assert np.array_equal(order, epoch_order(samples, seed, epoch))


def test_epoch_orders_differ() -> None:
    orders = {epoch_order(50, seed, epoch).tobytes() for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9
    # runs on stored data resume in this order, and their records repeat in it
    for whole in (np.int64, torch.tensor):
        assert epoch_order(whole(8), whole(3), whole(2)).tolist() == [2, 1, 4, 6, 7, 5, 3, 0]


@pytest.mark.parametrize(
    ("early", "late"),
    [
        (5, None),
        (5, 5.5),
        (True, 2),
        ("a", 3),
        ([1, 2], [1.5]),
        ([1], 1),
        (1, []),
        ([1], [[]]),
        (np.float32(1), 1e300),
        (1, 2**70),
        (0.5, 2**63 + 1),
    ],
    ids=str,
)
def test_metadata_that_do_not_fit_the_type_of_the_first_samples_are_refused(early: Any, late: Any) -> None:
    """The first samples decide the type of a column; a later value must not change silently."""

    class Changing(Few):
        def sample(self, rng: np.random.Generator) -> Sample:
            sample = super().sample(rng)
            return sample._replace(meta={"thing": late if sample.x[1] == LATE else early})

    task = Changing(kinds=4096)
    early_ones = [index for index in range(100) if task.batch([index]).x[0, 1] != LATE]
    late_one = next(index for index in range(PROBED, 100) if index not in early_ones)
    assert early_ones[:PROBED] == list(range(PROBED))
    columns = layout(task)
    table_schema = schema(columns)
    encode(columns, task.batch(early_ones), early_ones, table_schema)
    with pytest.raises(lrtasks.UsageError, match=f"metadata 'thing' of sample {late_one} is .*, but in the first"):
        encode(columns, task.batch([late_one]), [late_one], table_schema)


def test_samples_without_a_mask_beside_others_are_valid_everywhere() -> None:
    task = Few(kinds=4096)
    columns, batch = layout(task), task.batch([3, 4])._replace(mask=None)
    for sample in decode(columns, encode(columns, batch, [3, 4], schema(columns))):
        assert sample.mask is not None and sample.mask.tolist() == [True] * 4


def test_large_numbers_and_nan_in_metadata_come_back() -> None:
    class Wide(Few):
        def sample(self, rng: np.random.Generator) -> Sample:
            sample = super().sample(rng)
            last = int(sample.x[2])
            return sample._replace(meta={"number": 2**40 + last, "ink": [math.nan, 0.5][: 1 + last % 2]})

    task, indices = Wide(kinds=4096), range(40)
    columns, batch = layout(task), task.batch(indices)
    found = decode(columns, encode(columns, batch, indices, schema(columns)))
    assert batch.meta is not None
    for name, values in batch.meta.items():
        for sample, value in zip(found, values, strict=True):
            assert sample.meta is not None
            np.testing.assert_array_equal(sample.meta[name], value)


def test_whole_numbers_are_not_rounded() -> None:
    class Wide(Few):
        def sample(self, rng: np.random.Generator) -> Sample:
            sample = super().sample(rng)
            return sample._replace(meta={"number": 2**63 + 1 if sample.x[2] % 2 else -1})

    task = Wide(kinds=4096)
    columns = layout(task)
    with pytest.raises(lrtasks.UsageError, match=f"'number' of sample .* is {2**63 + 1}"):
        encode(columns, task.batch(range(PROBED)), range(PROBED), schema(columns))


def test_empty_entries_of_metadata_keep_their_shape() -> None:
    class Sized(Few):
        def sample(self, rng: np.random.Generator) -> Sample:
            sample = super().sample(rng)
            size = int(sample.x[2]) % 3
            return sample._replace(meta={"path": np.zeros((2, size)), "names": ["a"] * size})

    task = Sized(kinds=4096)
    columns = layout(task)
    for index in range(40):
        batch = task.batch([index])
        (found,) = decode(columns, encode(columns, batch, [index], schema(columns)))
        assert found.meta is not None and batch.meta is not None
        assert found.meta["path"].shape == np.asarray(batch.meta["path"][0]).shape
        assert list(found.meta["names"]) == list(batch.meta["names"][0])


def test_verify_refuses_an_address_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dataset behind it may be whole."""

    def unreachable(*_: Any) -> bool:
        raise ConnectionRefusedError("no such host")

    monkeypatch.setattr("fsspec.implementations.memory.MemoryFileSystem.isfile", unreachable)
    with pytest.raises(lrtasks.UsageError, match="no such host"):
        verify("memory://shift")
