"""Runs as elements of an array job: with submitit's local executor, and with stand-ins for Slurm's commands."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paused
import pytest
import submitit
from diary import Diary
from quick_runs import outcome

from lrtasks import UsageError
from lrtasks.results import read_records
from lrtasks.suite.backends import Job, slurm
from lrtasks.suite.backends.slurm import Slurm

pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    )
    monkeypatch.setattr(slurm, "SECONDS_BETWEEN_LOOKS", 0.1)


def test_a_run_that_is_preempted_goes_on_and_others_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = paused.undisturbed(tmp_path / "here")
    monkeypatch.setenv(paused.GATE, str(tmp_path / "open"))
    out = tmp_path / "there"
    folder = out / next((tmp_path / "here").glob("*/*")).relative_to(tmp_path / "here")

    points: list[int] = []

    def preempt(number: int) -> None:
        if number == 0:
            run, element = paused.wait_at(tmp_path / "open", out)
            points.append(paused.points(folder))
            os.kill(element, signal.SIGUSR2)
            paused.wait_for(lambda: run not in dict(paused.processes(f"--out {out}")))
            paused.wait_at(tmp_path / "open", out)
            points.append(paused.points(folder))
            (tmp_path / "open").touch()

    jobs = [
        paused.job(out, folder),
        Job(("describe", "shfit"), out / "shift" / "refused", 60),
        paused.job(tmp_path / "slow", tmp_path / "slow" / "shift" / "slow", time_limit=0.5),
    ]
    diary = Diary(preempt)
    diary.execute(Slurm(jobs=2, slurm=("cluster=local",)), jobs)
    assert sorted(diary.begun) == [0, 1, 2]
    # two after 25 steps, and two more after the 25 that follow the checkpoint at 20
    assert points == [2, 4]
    assert outcome(paused.only_record(out)) == outcome(expected)
    assert diary.lines[1].startswith("refused: unknown task or model 'shfit'; did you mean 'shift'?")
    assert diary.lines[2] == "stopped at its time limit of 0.5 s"


@pytest.fixture
def listening() -> Iterator[None]:
    """Let processes begun here hear SIGINT, by which submitit cancels; a shell's background processes do not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("listening")
def test_interrupting_the_suite_cancels_its_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(paused.GATE, str(tmp_path / "open"))

    def interrupt(_: int) -> None:
        paused.wait_for(lambda: paused.processes(f"--out {tmp_path}"))
        raise KeyboardInterrupt

    diary = Diary(interrupt)
    with pytest.raises(KeyboardInterrupt):
        job = paused.job(tmp_path, tmp_path / "shift" / "run")
        diary.execute(Slurm(slurm=("cluster=local",)), [job])
    paused.wait_for(lambda: not paused.processes(f"--out {tmp_path}"))
    assert diary.lines == {}


SBATCH = """#!{python}
import os, re, subprocess, sys
from pathlib import Path

script = Path(sys.argv[1]).read_text()
with Path("submitted").open("a") as file:
    file.write(script)
if "--partition=broken" in script:
    sys.exit("sbatch: error: invalid partition specified: broken")
number = str(len(list(Path().glob("array-*"))) + 7)
Path(f"array-{{number}}").touch()
array = re.search(r"--array=(\\d+)-(\\d+)", script)
for element in range(int(array[1]), int(array[2]) + 1) if array else [None]:
    names = dict(SLURM_JOB_ID=number)
    if array:
        names |= dict(SLURM_ARRAY_JOB_ID=number, SLURM_ARRAY_TASK_ID=str(element))
    silent = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    subprocess.Popen(["bash", sys.argv[1]], env={{**os.environ, **names}}, **silent)
print("Submitted batch job " + number)
"""
SRUN = """#!{python}
import os, sys

words = sys.argv[1:]
streams = {{word: words[words.index(word) + 1] for word in ("--output", "--error")}}
for stream, word in ((1, "--output"), (2, "--error")):
    path = streams[word]
    names = dict(A="ARRAY_JOB_ID", a="ARRAY_TASK_ID", j="JOB_ID", t="PROCID")
    for mark, name in names.items():
        path = path.replace("%" + mark, os.environ.get("SLURM_" + name, "0"))
    os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), stream)
words = words[words.index("--error") + 2 :]
os.execvp(words[0], words)
"""
SACCT = """#!{python}
import sys

print("JobID|State|NodeList")
for word in sys.argv:
    if word.isdecimal():
        print(word + "|RUNNING|node")
        print(word + "_[0-9]|RUNNING|node")
"""


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's commands, which run every element at once on this machine; submitit forgets the jobs of other tests."""
    submitit.SlurmJob.watcher.clear()
    monkeypatch.setattr(submitit.SlurmJob.watcher, "_registered", set())
    monkeypatch.setattr(slurm, "SECONDS_TO_APPEAR", 0)
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in {"sbatch": SBATCH, "srun": SRUN, "sacct": SACCT, "scancel": "#!/bin/sh\n"}.items():
        (folder / name).write_text(text.format(python=sys.executable))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(folder), os.environ["PATH"]]))
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("commands")
def test_array_jobs_are_written_and_submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "LARGEST_ARRAY", 2)
    jobs = [Job(("list",), tmp_path / "out" / "task" / str(number), 90) for number in range(4)]
    diary = Diary()
    diary.execute(Slurm(jobs=1, cpus=3, gpus=1, slurm=("partition=long",)), jobs)
    assert sorted(diary.begun) == [0, 1, 2, 3]
    assert set(diary.lines.values()) == {"fine"}
    lines = (tmp_path / "submitted").read_text().splitlines()
    options = ("array=0-1%1", "partition=long", "gpus-per-node=1", "cpus-per-task=3", "time=12", "job-name=lrtasks")
    for option in options:
        assert lines.count(f"#SBATCH --{option}") == 2, option
    assert list((tmp_path / "out" / "slurm").glob("*_result.pkl"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["slurm"]


@pytest.mark.usefixtures("commands")
def test_the_last_seeds_of_a_selection_may_be_a_single_job(tmp_path: Path, command: Callable[..., Any]) -> None:
    budget = ("--length", "16", "--steps", "2", "--test-batches", "1", "--val-batches", "1", "--d-state", "4")
    chosen = ("--lr", "1e-3,1e-2", "--select", "val", "--seeds", "2")
    slurm = ("--backend", "slurm", "--slurm", "timeout_min=5", "--out", "out")
    assert command("suite", "--models", "dlr", "--tasks", "cumsum", *budget, *chosen, *slurm).code == 0
    assert sorted(run.seed for _, run in read_records("out")[0]) == [0, 0, 1]
    assert (tmp_path / "submitted").read_text().count("#SBATCH --array=0-1") == 1


ANSWERS = """#!{python}
import itertools
from pathlib import Path

number = next(number for number in itertools.count() if not Path(f"asked-{{number}}").exists())
Path(f"asked-{{number}}").touch()
answers = {answers}
print(answers[min(number, len(answers) - 1)])
"""
TABLE = "JobID|State|NodeList\n7_0|{}|node\n7_1|{}|node"


@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize(
    ("answers", "endings"),
    [
        ([TABLE.format("SUSPENDED", "RUNNING")], ["fine", "fine"]),
        ([TABLE.format("SUSPENDED", "FAILED"), TABLE.format("NODE_FAIL", "FAILED")], ["NODE_FAIL", "FAILED"]),
        (["not a\ntable"], ["fine", "fine"]),
        (["not a\ntable", TABLE.format("FAILED", "CANCELLED by 7")], ["FAILED", "CANCELLED by 7"]),
    ],
)
def test_the_states_that_slurm_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[str], endings: list[str]
) -> None:
    """A suspended job is no ended job, and an answer that is no table ends nothing."""
    monkeypatch.setattr(slurm, "SECONDS_BETWEEN_QUESTIONS", 0)
    runs = endings == ["fine", "fine"]
    begin = "while ! ls asked-0; do sleep 0.1; done\n" if runs else "exit\n"
    sbatch = SBATCH.replace('["bash", sys.argv[1]]', '["bash", "-c", {begin!r} + script]')
    (tmp_path / "bin" / "sbatch").write_text(sbatch.format(python=sys.executable, begin=begin))
    (tmp_path / "bin" / "sacct").write_text(ANSWERS.format(python=sys.executable, answers=answers))
    diary = Diary()
    diary.execute(Slurm(), [Job(("list",), tmp_path / "out" / "task" / str(number), 90) for number in range(2)])
    for number, ending in enumerate(endings):
        wanted = ending if runs else f"the Slurm job 7_{number} ended without a result, in the state {ending}; "
        assert diary.lines[number].startswith(wanted)


@pytest.mark.usefixtures("commands")
def test_cancelled_jobs_are_reported_after_one_wait_for_the_shared_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An array that its user cancels has a thousand elements; each of them waited for its result in turn."""
    (tmp_path / "bin" / "sbatch").write_text("#!/bin/sh\necho Submitted batch job 7\n")
    cancelled = "".join(f"7_{number}|CANCELLED by 7|node\n" for number in range(12))
    (tmp_path / "bin" / "sacct").write_text(
        f"#!{sys.executable}\nprint({'JobID|State|NodeList' + chr(10) + cancelled!r})\n"
    )
    monkeypatch.setattr(slurm, "SECONDS_TO_APPEAR", 1)
    diary, began = Diary(), time.monotonic()
    diary.execute(Slurm(), [Job(("list",), tmp_path / "out" / "task" / str(number), 90) for number in range(12)])
    assert 1 <= time.monotonic() - began < 10
    for number in range(12):
        assert f"7_{number} ended without a result, in the state CANCELLED by 7" in diary.lines[number]


@pytest.mark.usefixtures("commands")
def test_a_job_that_fails_around_its_run_is_reported_with_its_error(tmp_path: Path) -> None:
    """For example a job that reached Slurm's time limit too often; Slurm's last answer may be that it runs."""
    trace = "Traceback\n  ...\nUncompletedJobError: Job not requeued because: timed-out too many times.\n"
    sbatch = f"""#!{sys.executable}
import pickle
with open("out/slurm/7_0_result.pkl", "wb") as file:
    pickle.dump(("error", {trace!r}), file)
print("Submitted batch job 7")
"""
    (tmp_path / "bin" / "sbatch").write_text(sbatch)
    diary = Diary()
    diary.execute(Slurm(), [Job(("list",), tmp_path / "out" / "task" / "run", 90)])
    assert "timed-out too many times." in diary.lines[0]
    assert "without a result" not in diary.lines[0]


@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize("state", ["UNKNOWN", "PREEMPTED"])
def test_a_job_whose_end_accounting_does_not_tell_ends_when_it_leaves_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setattr(slurm, "SECONDS_BETWEEN_QUESTIONS", 0)
    dead = SBATCH.replace('["bash", sys.argv[1]]', '["true"]')
    squeue = ANSWERS.format(python=sys.executable, answers=["7_0\n7_1", "7_1", "other"])
    preempted = f"#!{sys.executable}\nprint({TABLE.format('PREEMPTED', 'PREEMPTED')!r})\n"
    for name, text in {
        "sbatch": dead.format(python=sys.executable),
        "sacct": "#!/bin/sh\nexit 1\n" if state == "UNKNOWN" else preempted,
        "squeue": squeue,
    }.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    diary = Diary()
    diary.execute(Slurm(), [Job(("list",), tmp_path / "out" / "task" / str(number), 90) for number in range(2)])
    for number in range(2):
        assert diary.lines[number].startswith(
            f"the Slurm job 7_{number} ended without a result, in the state {state}; "
        )


@pytest.mark.usefixtures("commands")
@pytest.mark.parametrize(
    ("parameters", "time_limit", "message"),
    [
        ((), None, "Slurm needs a time limit: give --slurm timeout_min=MINUTES"),
        (("time=1:00:00",), 60, "Slurm needs a time limit: give --slurm timeout_min=MINUTES"),
        (("cluster=locl",), 60, "unknown cluster 'locl'; did you mean 'local'"),
        (("partitoin=long",), 60, "bad parameters for Slurm: Unknown argument 'partitoin'"),
        (("partitoin=long", "cluster=local"), 60, "bad parameters for Slurm: Unknown argument 'partitoin'"),
        (("timeout_min=x",), 60, 'bad parameters for Slurm: Parameter "timeout_min" expected type'),
        (("partition=broken",), 60, "Slurm did not take the jobs: .*invalid partition specified: broken"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, parameters: tuple[str, ...], time_limit: float | None, message: str
) -> None:
    diary = Diary()
    jobs = [Job(("list",), tmp_path / "out" / "task" / str(number), time_limit) for number in range(2)]
    with pytest.raises(UsageError, match=message) as caught:
        diary.execute(Slurm(slurm=parameters), jobs)
    assert "\n" not in str(caught.value)
    assert diary.begun == []
    assert (tmp_path / "out").exists() == ("did not take" in message)  # submitit keeps the script that Slurm refused
    assert not (tmp_path / "out" / "task").exists()


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [Job(("list",), tmp_path / "out" / "task" / "fine", 60)]
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="there is no srun on this machine"):
        Diary().execute(Slurm(), jobs)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UsageError, match=r"pip install 'lrtasks\[slurm\]'"):
        Diary().execute(Slurm(), jobs)
    assert not (tmp_path / "out").exists()
