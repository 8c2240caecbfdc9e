"""Runs on a Ray cluster: the same results, whatever is killed, and every failure told in one line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import paused
import pytest
import ray_clusters
from diary import Diary
from quick_runs import outcome

from lrtasks import UsageError, ray_cluster
from lrtasks.suite.backends import Job
from lrtasks.suite.backends import ray as backend
from lrtasks.suite.backends.ray import Ray

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("ray")]


class Place(NamedTuple):
    """A cluster whose head has no room for runs, with one more node that has."""

    nodes: Any
    node: Any
    gate: Path
    address: str
    client: str


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    port = free_port()
    gate = tmp_path_factory.mktemp("gate") / "open"
    settings = ray_clusters.alone(Path(__file__).parents[1])
    with settings, pytest.MonkeyPatch.context() as patch:
        patch.setenv(paused.GATE, str(gate))
        with ray_clusters.cluster(num_cpus=0, ray_client_server_port=port) as nodes:
            node = nodes.add_node(num_cpus=1, **ray_clusters.NODE)
            yield Place(nodes, node, gate, nodes.address, f"ray://127.0.0.1:{port}")


@pytest.fixture(autouse=True)
def closed(place: Place) -> None:
    place.gate.unlink(missing_ok=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def running(out: Path) -> list[tuple[int, int]]:
    """The process of the run that writes below ``out`` and the Ray worker that started it, once there is one."""
    return paused.processes(f"--out {out}")


def test_a_run_goes_on_when_its_worker_and_then_its_machine_are_killed(
    place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.delenv(paused.GATE)
        expected = paused.undisturbed(tmp_path / "here")
    out = tmp_path / "there"
    folder = out / next((tmp_path / "here").glob("*/*")).relative_to(tmp_path / "here")

    points: list[int] = []
    added = threading.Event()

    def add_node(_: int) -> None:
        if len(diary.begun) == 2:  # here, because a node ends with the thread that added it
            place.nodes.add_node(num_cpus=1, **ray_clusters.NODE)
            added.set()

    diary = Diary(add_node)

    def disturb() -> None:
        for times, what in enumerate(("worker", "node"), 1):
            run, worker = paused.wait_at(place.gate, out)
            paused.wait_for(lambda times=times: len(diary.begun) == times)
            points.append(paused.points(folder))
            if what == "worker":
                os.kill(worker, signal.SIGKILL)
            else:
                added.wait()
                place.nodes.remove_node(place.node, allow_graceful=False)
            paused.wait_for(lambda run=run: run not in dict(running(out)))
        place.gate.touch()

    killer = threading.Thread(target=disturb, daemon=True)
    killer.start()
    diary.execute(Ray(address=place.address), [paused.job(out, folder)])
    killer.join()
    assert diary.begun == [0, 0, 0]
    # two after 25 steps, and two more after the 25 that follow the checkpoint at 20
    assert points == [2, 4]
    assert outcome(paused.only_record(out)) == outcome(expected)
    assert capsys.readouterr().out == ""


def test_a_run_whose_worker_is_lost_again_and_again_is_given_up(place: Place, tmp_path: Path) -> None:
    points: list[int] = []

    def kill(_: int) -> None:
        run, worker = paused.wait_at(place.gate, tmp_path)
        (record,) = tmp_path.glob("shift/*/record.json")
        points.append(paused.points(record.parent))
        os.kill(worker, signal.SIGKILL)
        paused.wait_for(lambda: run not in dict(running(tmp_path)))

    diary, job = Diary(kill), paused.job(tmp_path, tmp_path / "shift" / "run", steps=200)
    diary.execute(Ray(address=place.address), [job])
    assert diary.begun == [0] * backend.TRIES
    assert diary.lines[0].startswith("its Ray worker was lost 3 times; the last error: The worker died")
    assert running(tmp_path) == []
    assert points == [2, 4, 6]


def test_interrupting_the_suite_stops_its_runs(place: Place, tmp_path: Path) -> None:
    def interrupt(_: int) -> None:
        paused.wait_for(lambda: running(tmp_path))
        raise KeyboardInterrupt

    diary = Diary(interrupt)
    jobs = [paused.job(tmp_path, tmp_path / "shift" / str(seed), seed=seed) for seed in range(2)]
    with pytest.raises(KeyboardInterrupt):
        diary.execute(Ray(address=place.address), jobs)
    paused.wait_for(lambda: not running(tmp_path))
    assert diary.lines == {}


def test_a_run_that_fails_or_hangs_stops_no_other_through_a_client(place: Place, tmp_path: Path) -> None:
    jobs = [
        Job(("describe", "shfit"), tmp_path / "refused", 60),
        paused.job(tmp_path, tmp_path / "slow", time_limit=0.5),
        Job(("list",), tmp_path / "fine", 60),
    ]
    diary = Diary()
    diary.execute(Ray(address=place.client), jobs)
    assert sorted(diary.begun) == [0, 1, 2]
    assert diary.lines[0].startswith("refused: unknown task or model 'shfit'; did you mean 'shift'?")
    assert diary.lines[1] == "stopped at its time limit of 0.5 s"
    assert diary.lines[2] == "fine"
    assert not (tmp_path / "refused").exists()


@pytest.mark.parametrize("scheme", ["", "ray://"])
@pytest.mark.parametrize("where", ["the process that asks", "the process that connects"])
def test_a_connection_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch, where: str, scheme: str) -> None:
    import ray

    # without a cluster: a real one fails now and then, which would use up tries that the test counts
    asked: list[str] = []
    connects: list[str] = []
    failures = iter(range(ray_cluster.TRIES - 1))

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[bytes]:
        asked.append(command[-1])
        fails = where == "the process that asks" and next(failures, None) is not None
        return subprocess.CompletedProcess(command, -11 if fails else 0, b"", b"")

    def init(address: str, **_: Any) -> None:
        connects.append(address)
        if where == "the process that connects" and next(failures, None) is not None:
            raise ConnectionError("no server")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"{scheme}127.0.0.1:{server.getsockname()[1]}"
        with ray_cluster.connected(address):
            pass
        assert asked == [address] * ray_cluster.TRIES
        assert connects == [address] * (1 if where == "the process that asks" else ray_cluster.TRIES)

        failures = iter(range(ray_cluster.TRIES))
        reason = "ended with -11" if where == "the process that asks" else "no server"
        with pytest.raises(UsageError, match=f"no Ray cluster answers at {address}: .*{reason}"):
            ray_cluster.connected(address).__enter__()
        assert next(failures, None) is None


def test_the_commands_go_to_the_cluster(place: Place, command: Callable[..., Any]) -> None:
    quick = ("--length", 16, "--steps", 2, "--val-batches", 1, "--test-batches", 1, "--d-model", 8)
    cluster = ("--backend", "ray", "--address", place.address)
    said = command("suite", "--models", "attention", "--tasks", "cumsum", *quick, *cluster, "--out", "runs", "--json")
    assert said.code == 0, said.err
    (record,) = json.loads(said.out)
    assert (record["status"], record["environment"]["threads"]) == ("done", 1)
    said = command("generate", "cumsum", "--length", 16, "--samples", 10, *cluster, "--out", "set", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["counts"] == {"train": 8, "val": 1, "test": 1}


@pytest.mark.parametrize(
    ("cpus", "gpus", "message"),
    [
        (64, 0, "no machine of the Ray cluster has 64 cores and 0 GPUs"),
        (1, 0.5, "no machine of the Ray cluster has 1 cores and 0.5 GPUs"),
        (1, 1.5, "gpus must be a whole number or a fraction of one, found 1.5"),
    ],
)
def test_more_than_any_node_has_is_refused(place: Place, tmp_path: Path, cpus: int, gpus: float, message: str) -> None:
    diary = Diary()
    with pytest.raises(UsageError, match=message):
        job = Job(("list",), tmp_path / "fine")
        diary.execute(Ray(place.address, cpus, gpus), [job])
    assert diary.begun == []


def test_an_address_that_does_not_answer_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_cluster, "SECONDS_TO_ANSWER", 4)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        mute = f"127.0.0.1:{silent.getsockname()[1]}"
        messages = {
            "nonsense": "a Ray address is host:port, ray://host:port or auto, found 'nonsense'",
            f"127.0.0.1:{free_port()}": "no Ray cluster answers at 127.0.0.1:.*refused",
            mute: f"no Ray cluster answers at {mute}: not within 4 s",
        }
        for address, message in messages.items():
            with pytest.raises(UsageError, match=message) as caught:
                Diary().execute(Ray(address), [Job(("list",), tmp_path / "fine")])
            assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_ray_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'lrtasks\[ray\]'"):
        Diary().execute(Ray(), [Job(("list",), Path())])
