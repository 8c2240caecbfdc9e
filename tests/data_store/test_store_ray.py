"""Datasets made on a Ray cluster: the bytes that one process makes, though workers are killed."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import ray_clusters
from fake_tasks import Few, Grey
from test_store_generate import FEW, contents

from lrtasks import UsageError
from lrtasks.config import parameter
from lrtasks.data import generate, verify
from lrtasks.data.store import GenerationError, Store
from lrtasks.data.write import make_plan, make_shard
from lrtasks.ray_cluster import connected
from lrtasks.spec import Sample

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("ray for data")]

SLOW = Few(kinds=256, pause=0.03)


@dataclass(frozen=True)
class Fatal(Few):
    """Samples whose drawing kills every process but one."""

    name: ClassVar[str] = "fatal"
    spared: int = parameter(0, "process id")

    def sample(self, rng: np.random.Generator) -> Sample:
        if os.getpid() != self.spared:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().sample(rng)


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    """A Ray of this process's own, with two workers."""
    with ray_clusters.alone(Path(__file__).parent), connected(None):
        yield


def workers() -> list[int]:
    """Processes that make a shard at this moment."""
    lines = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [int(line.split()[0]) for line in lines if "ray::_call_there" in line]


def test_the_same_bytes_though_workers_are_killed(tmp_path: Path) -> None:
    generate(SLOW, tmp_path / "here", workers=1, **FEW)
    killed: list[int] = []

    def kill_two() -> None:
        last = time.monotonic() + 120
        while len(killed) < 2 and time.monotonic() < last:
            for pid in [pid for pid in workers() if pid not in killed][: 2 - len(killed)]:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
            time.sleep(0.05)

    killer = threading.Thread(target=kill_two, daemon=True)
    killer.start()
    generate(SLOW, tmp_path / "there", backend="ray", **FEW)
    killer.join()
    assert len(killed) == 2
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert verify(tmp_path / "there") == []
    # what is whole is kept, what is not is made again
    shards = sorted((tmp_path / "there").glob("*.parquet"))
    kept = shards[0].stat().st_mtime_ns
    shards[1].write_bytes(b"nonsense")
    generate(SLOW, tmp_path / "there", backend="ray", workers=1, **FEW)
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert shards[0].stat().st_mtime_ns == kept


def test_a_worker_that_is_lost_again_and_again_ends_it(tmp_path: Path) -> None:
    with pytest.raises(GenerationError, match=r"lost the worker of a shard 3 times.*finished shards are kept"):
        generate(Fatal(spared=os.getpid()), tmp_path / "set", backend="ray", workers=1, samples=10)
    assert not list((tmp_path / "set").glob("*.parquet"))


def test_mistakes_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "here_alone.py").write_text("import fake_tasks\n\nclass Few(fake_tasks.Few):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path / "modules")
    missing = importlib.import_module("here_alone")
    with pytest.raises(UsageError, match="No module named 'here_alone'; the machines of the Ray cluster need"):
        generate(missing.Few(), tmp_path / "missing", backend="ray", samples=10)
    with pytest.raises(UsageError, match="8-bit") as caught:
        generate(Grey(), tmp_path / "grey", backend="ray", samples=10)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["grey", "missing", "modules"]


def test_a_machine_that_sees_another_folder_says_so(tmp_path: Path) -> None:
    plan = make_plan(Few(), 10, (0.8, 0.1, 0.1), 0, "parquet", None)
    with pytest.raises(GenerationError, match=f"{tmp_path} on .* holds no plan: .* the machines share no folder"):
        make_shard(Few(), plan, Store(tmp_path), plan.planned("train")[0], {})
    assert not list(tmp_path.iterdir())
