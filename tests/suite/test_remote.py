"""What backends share whose runs are on other machines."""

from __future__ import annotations

from pathlib import Path

import paused
import pytest

from lrtasks.record import FILE, LOCK
from lrtasks.suite.backends import Failure, Job, remote
from lrtasks.suite.backends.remote import Remote, Report, run_there


def job(folder: Path) -> Job:
    return Job(("list",), folder, 60)


def test_a_machine_that_does_not_see_the_results_folder_runs_nothing(tmp_path: Path) -> None:
    report = run_there(job(tmp_path / "task" / "run"))
    assert report.failure is not None and report.failure.reason.startswith(
        f"there is no folder {tmp_path}/task/run on {report.host}: all machines must share"
    )
    assert report.record is None
    assert not list(tmp_path.iterdir())


def test_a_run_ends_when_its_record_is_here_as_it_is_there(tmp_path: Path) -> None:
    jobs = [job(tmp_path / "task" / str(number)) for number in range(3)]
    pending = Remote(jobs)
    here = jobs[0].folder / FILE
    here.write_text("old")
    there = tmp_path / "there"
    there.write_text("new one")
    record = there.stat().st_mtime_ns, there.stat().st_size
    pending.expect(0, Report("node", None, record))
    pending.expect(1, Report("node", Failure("broken")))
    pending.expect(2, Report("node", Failure("its record is not here yet"), record))
    assert list(pending.settled()) == [(1, Failure("broken"))]
    there.rename(here)
    assert list(pending.settled()) == [(0, None)]
    assert list(pending.settled()) == []


def test_a_record_that_never_appears_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "SECONDS_TO_APPEAR", 0)
    pending = Remote([job(tmp_path / "task" / "run")])
    pending.expect(0, Report("node", None, (1, 1)))
    ((number, failure),) = pending.settled()
    assert number == 0 and failure is not None
    assert failure.reason.startswith(f"what node wrote into {tmp_path}/task/run is not here: all machines must share")


def test_a_folder_that_cannot_be_made_concerns_one_run_only(tmp_path: Path) -> None:
    (tmp_path / "shift").write_text("a file")
    jobs = [job(tmp_path / task / "run") for task in ("shift", "cumsum")]
    pending = Remote(jobs)
    assert jobs[1].folder.is_dir()
    pending.expect(0, run_there(jobs[0]))
    ((number, failure),) = pending.settled()
    assert number == 0 and failure is not None and failure.refused
    assert failure.reason == f"the results folder {jobs[0].folder} cannot be made: Not a directory"


@pytest.mark.parametrize(("seconds", "patience"), [(0.8, 60), (60, 0.6)])
def test_a_run_waits_for_an_earlier_process_that_still_has_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, patience: float
) -> None:
    monkeypatch.setattr(remote, "SECONDS_TO_LET_GO", patience)
    seen: list[bool] = []

    def run(job: Job, **_: object) -> Failure:
        seen.append((job.folder / LOCK).exists())
        return Failure("ran")

    monkeypatch.setattr(remote, "run_job", run)
    with paused.holding(tmp_path / LOCK, seconds):
        assert run_there(job(tmp_path)).failure == Failure("ran")
    # the first ended in time; the second does not, and the run itself will say that it is locked out
    assert seen == [seconds > patience]
