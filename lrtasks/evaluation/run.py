"""One run from names to record: resolve, train, score, write."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric

from lrtasks.errors import UsageError
from lrtasks.evaluation import checkpoint, loop
from lrtasks.evaluation.budget import Budget
from lrtasks.evaluation.environment import describe_environment, device_name, make_fabric, peak_memory_bytes
from lrtasks.evaluation.floors import FIT_BATCHES, floor_scores
from lrtasks.evaluation.loader import BatchStream, load, worker_count
from lrtasks.evaluation.presets import resolve
from lrtasks.evaluation.subject import ModelLike, Subject, build_subject, registered_name
from lrtasks.generators.base import Task
from lrtasks.models.base import offered
from lrtasks.results.records import FILE, RunRecord, read_record

HELD_OUT_SEED = 0
"""Validation and test streams are the same for every run, whatever its seed."""


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
        model: a registered name, an ``nn.Module``, a factory ``(input, target, *, causal, **hyper) -> nn.Module``,
            or its address ``"package.module:factory"``.
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
    plan = resolve(task, registered_name(model), preset=preset, parameters=parameters, hyper=hyper, budget=budget)
    fabric = make_fabric(device, plan.budget.precision)
    subject = build_subject(model, plan.task, plan.hyper, seed)
    streams, data_digest = _streams(plan.task, plan.budget, seed, data, workers, fabric)
    folder = _folder(Path(out), plan.task, subject, plan.budget, data_digest, seed)
    if (folder / FILE).exists():
        finished = read_record(folder / FILE)
        if finished.status in ("done", "diverged"):
            if not quiet:
                fabric.print(f"finished earlier: {folder} (remove it to run again)", file=_stderr())
            return finished
    record = RunRecord(
        command=repeat_command(model, task, preset, seed, parameters, hyper, budget, data),
        task={
            "name": plan.task.name,
            "version": plan.task.version,
            "parameters": plan.task.parameters(),
            "metric": plan.task.metric,
            "data": data_digest,
        },
        model={"name": subject.name, "parameters": subject.hyper, "count": _count(subject), "state_bytes": None},
        preset=preset,
        budget=plan.budget.parameters(),
        seed=seed,
        environment=describe_environment(),
    )
    _execute(fabric, subject, plan.task, plan.budget, streams, record, folder, quiet)
    return record


def repeat_command(
    model: ModelLike,
    task: str | Task,
    preset: str,
    seed: int,
    parameters: Mapping[str, Any] | None,
    hyper: Mapping[str, Any] | None,
    budget: Mapping[str, Any] | None,
    data: str | Path | None,
) -> str:
    """The command line that repeats a run; for a user's own module, the call with its class's name in place of it."""
    if not isinstance(model, str):
        name = type(model).__name__ if isinstance(model, torch.nn.Module) else getattr(model, "__qualname__", "factory")
        task_name = task if isinstance(task, str) else task.name
        return f"lrtasks.evaluate({name}, {task_name!r}, preset={preset!r}, seed={seed}, hyper={dict(hyper or {})!r})"
    given = {"task": parameters or {}, "model": hyper or {}, "budget": budget or {}}
    if not isinstance(task, str):
        given["task"] = task.parameters()
        task = task.name
    words = ["lrtasks", "eval", "--model", model, "--task", task, "--preset", preset, "--seed", str(seed)]
    for owner, values in given.items():
        for name, value in values.items():
            words += ["--set", f"{owner}.{name}={json.dumps(value)}"]
    if data is not None:
        words += ["--data", str(data)]
    return shlex.join(words)


def _execute(
    fabric: Fabric,
    subject: Subject,
    task: Task,
    budget: Budget,
    streams: loop.Streams,
    record: RunRecord,
    folder: Path,
    quiet: bool,
) -> None:
    """Train, test, and keep ``record`` on disk true at every moment."""
    writes = fabric.is_global_zero
    started = time.monotonic()

    def note(state: loop.State) -> None:
        record.curve = state.curve
        record.scores["val"] = {key: value for key, value in state.curve[-1].items() if key not in ("step", "loss")}
        record.cost = {
            "seconds_per_step": state.seconds / state.step,
            "seconds": state.seconds,
            "peak_memory_bytes": peak_memory_bytes(fabric.device),
            "device": device_name(fabric.device),
        }
        if writes:
            record.write(folder)

    if writes:
        _make_folder(folder)
        record.write(folder)
    title = f"{subject.name} on {task.name} seed {record.seed}"
    try:
        state = loop.train(
            fabric, subject.module, task, budget, streams, folder, title=title, quiet=quiet, on_evaluation=note
        )
    except loop.DivergedError as error:
        record.status = "diverged"
        record.notes.append(str(error))
        if writes:
            record.write(folder)
        return
    except UsageError:
        if writes and not record.curve and not (folder / loop.CHECKPOINT).exists():
            # nothing was learned yet: leave no trace of a run that cannot be
            (folder / FILE).unlink(missing_ok=True)
            _remove_if_empty(folder)
        raise
    note(state)
    if writes:
        _test(fabric, subject, task, budget, streams, record)
        record.cost["seconds_with_evaluation"] = time.monotonic() - started
        record.status = "done"
        checkpoint.save(folder / loop.WEIGHTS, {"model": subject.module.state_dict(), "step": state.step})
        record.write(folder)
        (folder / loop.CHECKPOINT).unlink(missing_ok=True)
    fabric.barrier()


def _test(
    fabric: Fabric, subject: Subject, task: Task, budget: Budget, streams: loop.Streams, record: RunRecord
) -> None:
    scorer = loop.score(fabric, subject.module, task, *streams.test, streams.workers)
    record.scores["test"], record.slices = scorer.scores(), scorer.slices()
    if streams.finite:
        count = min(streams.test[1], budget.steps)
        trained = loop.score(fabric, subject.module, task, streams.train, count, streams.workers)
        record.scores["train"] = trained.scores()
    record.diagnostics = {name or "model": report() for name, report in offered(subject.module, "diagnostics")}
    test_stream, test_count = streams.test
    record.floors = floor_scores(
        task,
        (loaded.batch for loaded in load(streams.train, range(FIT_BATCHES), workers=streams.workers)),
        (loaded.batch for loaded in load(test_stream, range(test_count), workers=streams.workers)),
    )


def _streams(
    task: Task, budget: Budget, seed: int, data: str | Path | None, workers: int | str, fabric: Fabric
) -> tuple[loop.Streams, str | None]:
    """Streams of fresh samples, or of a stored dataset with its digest."""
    size, count = budget.batch_size, worker_count(workers)
    share = {"rank": fabric.global_rank, "world": fabric.world_size}
    if data is None:
        train = BatchStream(task, seed, "train", size, samples=budget.train_samples, **share)
        held_out = {
            split: (BatchStream(task, HELD_OUT_SEED, split, size), batches)  # type: ignore[arg-type]
            for split, batches in (("val", budget.val_batches), ("test", budget.test_batches))
        }
        finite = budget.train_samples is not None
        return loop.Streams(train, held_out["val"], held_out["test"], count, finite), None
    if budget.train_samples is not None:
        raise UsageError("train_samples belongs to fresh samples; a stored dataset has its own size")
    from lrtasks.data import open_dataset

    dataset = open_dataset(data)
    dataset.require_task(task)
    train = BatchStream(dataset, seed, "train", size, samples=dataset.count("train"), **share)
    held_out = {}
    for split in ("val", "test"):
        samples = dataset.count(split)
        if not samples:
            raise UsageError(f"{data} has no {split} samples; generate it with a --split that leaves some")
        held_out[split] = (BatchStream(dataset, 0, split, size, samples=samples), -(-samples // size))  # type: ignore[arg-type]
    return loop.Streams(train, held_out["val"], held_out["test"], count, True), dataset.digest


def _folder(out: Path, task: Task, subject: Subject, budget: Budget, data_digest: str | None, seed: int) -> Path:
    """The folder of a run: the same for the same task, model, budget, data and seed, and for nothing else."""
    identity = {
        **task.identity(),
        "model": subject.name,
        **subject.identity,
        "budget": budget.parameters(),
        "data": data_digest,
    }
    text = json.dumps(identity, sort_keys=True)
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    readable = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in subject.name)
    return out / task.name / f"{readable}-{digest}-seed{seed}"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"the results folder {folder} cannot be made: a file stands in its way") from None
    except OSError as error:
        raise UsageError(f"the results folder {folder} cannot be made: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise UsageError(f"the results folder {folder} is not writable")


def _remove_if_empty(folder: Path) -> None:
    if not any(folder.iterdir()):
        folder.rmdir()


def _count(subject: Subject) -> int:
    return sum(value.numel() for value in subject.module.parameters() if value.requires_grad)


def _stderr() -> Any:
    import sys

    return sys.stderr
