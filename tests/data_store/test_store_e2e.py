"""Stored datasets beside other programs: Hugging Face ``datasets``, and a local S3 server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_tasks import HOLD, Blot, Few
from test_store_generate import FEW, TASK

import lrtasks
from lrtasks.data import generate, info, open_dataset, verify
from lrtasks.generators.tables import from_bytes
from lrtasks.generators.tasks.shift import Shift

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("s3")]


def test_hugging_face_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets")
    signals, images, tokens = Shift(16), Blot(), Few(kinds=4096)
    for task in (signals, images, tokens):
        folder = tmp_path / task.name
        generate(task, str(folder), samples=50, split=(0.6, 0.2, 0.2), shard_size=20, workers=1)
        loaded = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))
        assert {split: len(rows) for split, rows in loaded.items()} == {"train": 30, "validation": 10, "test": 10}
        rows = datasets.load_dataset(
            "parquet", data_files=str(folder / "train-*.parquet"), split="train", cache_dir=str(tmp_path / "cache")
        )
        assert rows["index"] == list(range(30)) or list(rows["index"]) == list(range(30))
        expected = task.batch([23])
        row = rows.with_format("numpy")[23]
        if task is signals:
            assert np.array_equal(row["x"], expected.x[0]) and np.array_equal(row["y"], expected.y[0])
        elif task is tokens:
            assert np.array_equal(row["input_ids"], expected.x[0]) and np.array_equal(row["labels"], expected.y[0])
        else:
            image, mask = rows[23]["image"], rows[23]["mask"]
            assert np.array_equal(from_bytes(np.asarray(image)).ravel(), expected.x[0].ravel())
            assert np.array_equal(np.asarray(mask).ravel()[1:], expected.y[0][1:])


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an empty bucket on a server of our own."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = (tmp_path_factory.mktemp("s3") / "log").open("wb")
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log
    )
    settings = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    before = {name: os.environ.get(name) for name in settings}
    os.environ.update(settings)
    try:
        deadline = time.monotonic() + 120
        while True:
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert server.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        import s3fs

        s3fs.S3FileSystem(use_listings_cache=False).mkdir("sets")
        yield "s3://sets"
    finally:
        server.terminate()
        server.wait()
        log.close()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value


def files(address: str) -> dict[str, bytes]:
    import fsspec

    fs, root = fsspec.core.url_to_fs(address, use_listings_cache=False)
    return {path[len(root) + 1 :]: fs.cat_file(path) for path in fs.find(root) if path != root}


@pytest.mark.parametrize("file_format", ["parquet", "tsv"])
def test_s3_holds_the_same_bytes(tmp_path: Path, s3: str, file_format: str) -> None:
    options = {"samples": 60, "split": (0.6, 0.2, 0.2), "shard_size": 7, "format": file_format}
    generate(Few(), f"{s3}/{file_format}", workers=2, **options)
    generate(Few(), str(tmp_path), workers=1, **options)
    assert verify(f"{s3}/{file_format}") == []
    there = files(f"{s3}/{file_format}")
    here = files(str(tmp_path))
    assert there == here


def test_a_killed_run_on_s3_is_continued(tmp_path: Path, s3: str) -> None:
    address = f"{s3}/killed"
    code = (
        "from test_store_generate import FEW, TASK; from lrtasks.data import generate\n"
        f"generate(TASK, {address!r}, workers=1, **FEW)"
    )
    environment = {**os.environ, HOLD: "30"}
    process = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parent, env=environment)
    deadline = time.monotonic() + 120
    while len([name for name in files(address) if name.endswith(".parquet")]) < 3:
        assert process.poll() is None and time.monotonic() < deadline
    process.send_signal(signal.SIGKILL)
    process.wait()
    generate(TASK, address, workers=1, **FEW)
    generate(TASK, str(tmp_path), workers=1, **FEW)
    assert files(address) == files(str(tmp_path))
    assert info(address)["samples"] == 60
    expected = open_dataset(str(tmp_path)).batch([30, 2])
    found = open_dataset(address).batch([30, 2])
    assert np.array_equal(found.x, expected.x) and np.array_equal(found.y, expected.y)


def test_a_bucket_that_is_not_there_is_one_line(s3: str) -> None:
    with pytest.raises(lrtasks.UsageError, match="cannot use s3://no-such-bucket/set"):
        generate(Few(), "s3://no-such-bucket/set", samples=10, workers=1)
    with pytest.raises(lrtasks.UsageError, match=r"holds no finished dataset|cannot use"):
        open_dataset(f"{s3}/nothing")
