"""One run from names to record: resolve, train, score, write."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import torch
from lightning.fabric import Fabric

import lrtasks
from lrtasks.errors import UsageError, is_shortage
from lrtasks.evaluation import checkpoint, loop
from lrtasks.evaluation.environment import device_name, make_fabric, peak_memory_bytes, reset_peak_memory
from lrtasks.evaluation.identity import command_text, new_record, run_folder
from lrtasks.evaluation.outcome import note_outcome
from lrtasks.evaluation.presets import Plan, resolve
from lrtasks.evaluation.streams import make_streams
from lrtasks.evaluation.subject import Subject, build_subject, registered_name
from lrtasks.evaluation.trackers import Tracking, track_finished, tracker_names
from lrtasks.files import held, make_folder, remove_partials
from lrtasks.generators.base import Task
from lrtasks.models.base import ModelLike
from lrtasks.record import FILE, FINISHED, RunRecord, read_record
from lrtasks.suite.jobs import LOCK

PACKAGE = Path(lrtasks.__file__).parent


def evaluate(
    model: ModelLike,
    task: str | Task,
    *,
    preset: str = "small",
    seed: int = 0,
    parameters: Mapping[str, Any] | None = None,
    hyper: Mapping[str, Any] | None = None,
    budget: Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    device: str = "auto",
    workers: int | str = "auto",
    out: str | Path = "runs",
    trackers: str | Iterable[str] = (),
    quiet: bool = False,
) -> RunRecord:
    """Train ``model`` on ``task`` and score it; the same call continues a run that was cut off.

    Args:
        model: a registered name, an ``nn.Module`` (which is trained in place), a factory
            ``(input, target, **hyper) -> nn.Module``, which is told ``causal`` if it takes that, or its address
            ``"package.module:factory"``.
        task: a name, or a task from :func:`lrtasks.make`.
        preset: ``"small"`` or ``"paper"``: fills in what is left open.
        seed: seeds initialisation and training stream.
        parameters: task parameters (with a task's name).
        hyper: hyper-parameters of the model.
        budget: fields of :class:`Budget`.
        data: a stored dataset of this task to train and test on, instead of fresh samples.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        workers: background processes that make batches, or ``"auto"``.
        out: results folder; the run gets a folder of its own below it.
        trackers: any of ``"jsonl"``, ``"tensorboard"`` and ``"wandb"``, which write below the run's folder.
        quiet: show no progress.

    Returns:
        The record, also written to ``record.json`` in the run's folder. Its status is ``done`` or ``diverged``.

    Raises:
        UsageError: for anything the user can put right.
    """
    given = {"parameters": parameters or {}, "hyper": hyper or {}, "budget": budget or {}}
    tracked = tracker_names(trackers)
    plan = resolve(task, registered_name(model), preset=preset, **given)
    plan.task.key(seed, "train")  # raises for a bad seed now rather than in a worker
    fabric = make_fabric(device, plan.budget.precision)
    # the caller's random numbers go on as if nothing had been drawn here
    with torch.random.fork_rng([fabric.device] if fabric.device.type == "cuda" else []):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            subject = build_subject(model, plan.task, plan.hyper, seed)
        streams, data_digest = make_streams(plan.task, plan.budget, seed, data, workers, fabric)
        # the first process's, as a user's model may hold what differs from process to process
        folder = fabric.broadcast(run_folder(Path(out), plan, seed, subject=subject, data_digest=data_digest))
        record = _finished(fabric, folder)
        if record is None:
            with _alone(fabric, folder):
                # another process may have finished it between the look above and the lock
                record = _finished(fabric, folder)
                if record is None:
                    command = command_text(model, task, preset, seed, given, data)
                    record = new_record(plan, preset, seed, command, subject=subject, data_digest=data_digest)
                    record.notes += dict.fromkeys(str(warning.message) for warning in caught)
                    with _noting(record):
                        _execute(fabric, subject, plan, streams, record, folder, tracked, quiet)
                    return record
    if fabric.is_global_zero and (folder / LOCK).exists():
        # left by a kill right after the record was written
        with suppress(OSError, UsageError), held(folder / LOCK, f"the run in {folder}"):
            (folder / loop.CHECKPOINT).unlink(missing_ok=True)
    if fabric.is_global_zero:
        track_finished(tracked, folder, record)
    if not quiet:
        fabric.print(f"finished earlier: {folder} (remove it to run again)", file=sys.stderr)
    return record


def _finished(fabric: Fabric, folder: Path) -> RunRecord | None:
    """The record of a run that needs no more work, as the first process finds it."""
    record = read_record(folder) if fabric.is_global_zero and (folder / FILE).exists() else None
    found: RunRecord | None = fabric.broadcast(record if record and record.status in FINISHED else None)
    return found


@contextmanager
def _alone(fabric: Fabric, folder: Path) -> Iterator[None]:
    """Make the run's folder and let no other command work in it; leave no empty folder behind."""
    if not fabric.is_global_zero:
        yield
        return
    make_folder(folder, "the results folder")
    try:
        with held(folder / LOCK, f"the run in {folder}"):
            for name in (FILE, loop.CHECKPOINT, loop.WEIGHTS):
                remove_partials(folder / name)
            yield
    finally:
        with suppress(OSError):  # not empty
            folder.rmdir()
            folder.parent.rmdir()


def _execute(
    fabric: Fabric,
    subject: Subject,
    plan: Plan,
    streams: loop.Streams,
    record: RunRecord,
    folder: Path,
    trackers: tuple[str, ...],
    quiet: bool,
) -> None:
    """Train, test, and keep ``record`` on disk true at every moment."""
    writes = fabric.is_global_zero
    tracking = Tracking(trackers if writes else (), folder, record)

    def note(state: loop.State) -> None:
        record.curve = state.curve
        if state.curve:
            tested = _best(state.curve, plan.task.metric) if streams.finite else state.curve[-1]
            record.scores["val"] = {key: value for key, value in tested.items() if key not in ("step", "loss")}
            record.cost = {
                "seconds_per_step": state.seconds / state.step,
                "seconds": state.seconds,
                "seconds_with_evaluation": state.seconds_with_evaluation,
                "peak_memory_bytes": peak_memory_bytes(fabric.device),
                "device": device_name(fabric.device),
            }
        if writes:
            record.write(folder)
        tracking.update(record)

    def close(status: str, *notes: str) -> None:
        record.status = status
        record.notes += notes
        try:
            # first: once the record says that the run has ended, nobody comes back to its trackers
            tracking.finish(record)
        finally:
            if writes:
                record.write(folder)

    reset_peak_memory(fabric.device)
    title = f"{subject.name} on {plan.task.name} seed {record.seed}"
    try:
        state = loop.train(
            fabric,
            subject.module,
            plan.task,
            plan.budget,
            streams,
            folder,
            seed=record.seed,
            title=title,
            quiet=quiet,
            report=note,
        )
        note(state)
        tested = time.monotonic()
        note_outcome(fabric, subject.module, plan.task, plan.budget, streams, record, folder)
        record.cost["seconds_with_evaluation"] += time.monotonic() - tested
    except loop.DivergedError as error:
        close("diverged", str(error))
    except UsageError:
        if writes and not (folder / loop.CHECKPOINT).exists():
            # nothing was learned yet: leave no trace of a run that cannot be
            (folder / FILE).unlink(missing_ok=True)
            tracking.discard()
        raise
    except Exception as error:
        close("failed", f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}")
        shortage = _shortage(error)
        if shortage:
            raise UsageError(shortage) from error
        raise
    else:
        if writes and not streams.finite:
            checkpoint.save(folder / loop.WEIGHTS, {"model": subject.module.state_dict(), "step": state.step})
        close("done")
    finally:
        tracking.close()
    if writes:
        (folder / loop.CHECKPOINT).unlink(missing_ok=True)


@contextmanager
def _noting(record: RunRecord) -> Iterator[None]:
    """Let the record's notes have what models say while they train; the user sees it as well."""
    show = warnings.showwarning

    def note(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if Path(filename).is_relative_to(PACKAGE) and str(message) not in record.notes:
            record.notes.append(str(message))
        show(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():  # which also forgets what an earlier run of this process has said
        warnings.showwarning = note
        yield


def _best(curve: list[dict[str, Any]], metric: str) -> dict[str, Any]:
    """The point of the curve whose weights were kept: the first of the highest score."""
    best = curve[0]
    for point in curve:
        if point[metric] > best[metric]:
            best = point
    return best


def _shortage(error: Exception) -> str | None:
    """What this machine lacked, if that is why a run failed; it can go on from its checkpoint elsewhere."""
    text = str(error)
    if "DataLoader worker (pid" in text:
        return f"a background process that makes batches died ({text.splitlines()[0]}); try --workers 0"
    if is_shortage(error):
        return "not enough memory for this run; choose a smaller batch_size, length or model"
    return None
