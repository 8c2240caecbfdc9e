"""One run from names to record: resolve, train, score, write."""

from __future__ import annotations

import hashlib
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric

from lrtasks.errors import UsageError
from lrtasks.evaluation import checkpoint, loop
from lrtasks.evaluation.budget import Budget
from lrtasks.evaluation.environment import device_name, make_fabric, peak_memory_bytes, reset_peak_memory
from lrtasks.evaluation.floors import FIT_BATCHES, floor_scores
from lrtasks.evaluation.identity import command_text, new_record, run_folder
from lrtasks.evaluation.loader import BatchStream, Replay, worker_count
from lrtasks.evaluation.presets import Plan, resolve
from lrtasks.evaluation.subject import ModelLike, Subject, build_subject, registered_name, require_room
from lrtasks.files import held, remove_partials
from lrtasks.generators.base import SPLITS, Task
from lrtasks.models.base import offered
from lrtasks.results.records import FILE, FINISHED, RunRecord, read_record

HELD_OUT_SEED = 0
"""Validation and test streams are the same for every run, whatever its seed."""
LOCK = "lock"
PANEL = "predictions.png"


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
    quiet: bool = False,
) -> RunRecord:
    """Train ``model`` on ``task`` and score it; the same call continues a run that was cut off.

    Args:
        model: a registered name, an ``nn.Module`` (which is trained in place), a factory
            ``(input, target, *, causal, **hyper) -> nn.Module``, or its address ``"package.module:factory"``.
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
        quiet: show no progress.

    Returns:
        The record, also written to ``record.json`` in the run's folder. Its status is ``done`` or ``diverged``.

    Raises:
        UsageError: for anything the user can put right.
    """
    given = {"parameters": parameters or {}, "hyper": hyper or {}, "budget": budget or {}}
    plan = resolve(task, registered_name(model), preset=preset, **given)
    plan.task.key(seed, "train")  # raises for a bad seed now rather than in a worker
    fabric = make_fabric(device, plan.budget.precision)
    # the caller's random numbers go on as if nothing had been drawn here
    with torch.random.fork_rng([fabric.device] if fabric.device.type == "cuda" else []):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            require_room(plan.model, plan.task, plan.hyper, plan.budget.batch_size // fabric.world_size, fabric.device)
            subject = build_subject(model, plan.task, plan.hyper, seed)
        streams, data_digest = _streams(plan.task, plan.budget, seed, data, workers, fabric)
        folder = run_folder(Path(out), plan, seed, subject=subject, data_digest=data_digest)
        record = _finished(fabric, folder)
        if record is None:
            with _alone(fabric, folder):
                # another process may have finished it between the look above and the lock
                record = _finished(fabric, folder)
                if record is None:
                    command = command_text(model, task, preset, seed, given, data)
                    record = new_record(plan, preset, seed, command, subject=subject, data_digest=data_digest)
                    record.notes += dict.fromkeys(str(warning.message) for warning in caught)
                    _execute(fabric, subject, plan, streams, record, folder, quiet)
                    return record
    if fabric.is_global_zero and (folder / LOCK).exists():
        # left by a kill right after the record was written
        with suppress(OSError, UsageError), held(folder / LOCK, f"the run in {folder}"):
            (folder / loop.CHECKPOINT).unlink(missing_ok=True)
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
    _make_folder(folder)
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
    fabric: Fabric, subject: Subject, plan: Plan, streams: loop.Streams, record: RunRecord, folder: Path, quiet: bool
) -> None:
    """Train, test, and keep ``record`` on disk true at every moment."""
    writes = fabric.is_global_zero

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

    def close(status: str, *notes: str) -> None:
        record.status = status
        record.notes += notes
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
        _test(fabric, subject, plan.task, plan.budget, streams, record, folder)
        record.cost["seconds_with_evaluation"] += time.monotonic() - tested
    except loop.DivergedError as error:
        close("diverged", str(error))
    except UsageError:
        if writes and not (folder / loop.CHECKPOINT).exists():
            # nothing was learned yet: leave no trace of a run that cannot be
            (folder / FILE).unlink(missing_ok=True)
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
    if writes:
        (folder / loop.CHECKPOINT).unlink(missing_ok=True)


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
    # inside a worker, NumPy's memory error becomes a RuntimeError that names it; torch's on a CPU always is one
    signs = ("MemoryError", "allocate memory", "out of memory")
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(sign in text for sign in signs):
        return "not enough memory for this run; choose a smaller batch_size, length or model"
    return None


def _test(
    fabric: Fabric,
    subject: Subject,
    task: Task,
    budget: Budget,
    streams: loop.Streams,
    record: RunRecord,
    folder: Path,
) -> None:
    _save_panel(fabric, subject, task, streams, folder)
    scorer = loop.score(fabric, subject.module, task, *streams.test, streams.workers)
    record.scores["test"], record.slices = scorer.scores(), scorer.slices()
    train = streams.train.whole()
    if streams.finite:
        count = min(streams.test[1], budget.steps)
        record.scores["train"] = loop.score(
            fabric, subject.module, task, train, count, streams.workers, slices=False
        ).scores()
    record.diagnostics = {name or "model": report() for name, report in offered(subject.module, "diagnostics")}
    record.floors = floor_scores(
        task, Replay(train, FIT_BATCHES, streams.workers), Replay(*streams.test, streams.workers)
    )


def _save_panel(fabric: Fabric, subject: Subject, task: Task, streams: loop.Streams, folder: Path) -> None:
    """For image tasks with a class per pixel, draw image, target and prediction of a few test samples."""
    shape = task.image_shape()
    if shape is None or task.target.length != task.input.length or not fabric.is_global_zero:
        return
    from lrtasks.results import plots

    stream, _ = streams.test
    for loaded, prediction in loop.predictions(fabric, subject.module, task, stream, 1, 0):
        batch = loaded.batch
        plots.save(plots.draw_predictions(batch.x, batch.y, prediction, shape, task.target.width), folder / PANEL)


def _streams(
    task: Task, budget: Budget, seed: int, data: str | Path | None, workers: int | str, fabric: Fabric
) -> tuple[loop.Streams, str | None]:
    """Streams of fresh samples, or of a stored dataset with its digest."""
    size, count = budget.batch_size, worker_count(workers)
    share = {"rank": fabric.global_rank, "world": fabric.world_size}
    if data is None:
        train = BatchStream(task, seed, "train", size, samples=budget.train_samples, **share)
        val = BatchStream(task, HELD_OUT_SEED, "val", size), budget.val_batches
        test = BatchStream(task, HELD_OUT_SEED, "test", size), budget.test_batches
        return loop.Streams(train, val, test, count, budget.train_samples is not None), None
    if budget.train_samples is not None:
        raise UsageError("train_samples belongs to fresh samples; a stored dataset has its own size")
    from lrtasks.data import open_dataset

    dataset = open_dataset(str(data))
    dataset.check_task(task)
    for split in SPLITS:
        if not dataset.counts.get(split):
            raise UsageError(f"{data} has no {split} samples; generate it with a --split that leaves some")
    digest = hashlib.sha256(dataset.manifest.to_json()).hexdigest()
    samples = dataset.counts
    train = BatchStream(dataset, seed, "train", size, samples=samples["train"], **share)
    val = BatchStream(dataset, HELD_OUT_SEED, "val", size, samples=samples["val"]), -(-samples["val"] // size)
    test = BatchStream(dataset, HELD_OUT_SEED, "test", size, samples=samples["test"]), -(-samples["test"] // size)
    return loop.Streams(train, val, test, count, True), digest


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"the results folder {folder} cannot be made: a file stands in its way") from None
    except OSError as error:
        raise UsageError(f"the results folder {folder} cannot be made: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise UsageError(f"the results folder {folder} is not writable")
