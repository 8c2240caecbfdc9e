"""One run, from its config to its record: build, train, test, write."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from inspect import signature
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lrtasks.budget import Budget
from lrtasks.errors import PACKAGE, UsageError, first_line, is_lost_worker, is_shortage, with_line
from lrtasks.evaluation import checkpoint, environment, loop
from lrtasks.evaluation.batches import Replay, Streams, check_batch, make_streams
from lrtasks.evaluation.further_tests import FurtherTest, further_tests, note_summary, score_further, uses_future
from lrtasks.evaluation.scoring import BASELINE_BATCHES, fitted_baselines, score_baselines
from lrtasks.evaluation.trackers import Trackers, remove_others, track_finished, tracker_names
from lrtasks.files import held, make_folder, refuse_links, remove_empty, remove_partials
from lrtasks.generators.base import Task, registry, share_among
from lrtasks.generators.baselines import Baseline
from lrtasks.models import registry as model_registry
from lrtasks.models.base import ModelLike, diagnostics, parameter_count, state_bytes
from lrtasks.models.factory import model_factory
from lrtasks.record import ANALYSIS, FILE, LOCK, LOG, NOT_CAUSAL, PANEL, RunRecord, finished_record, read_record
from lrtasks.registry import own_source, split_preset
from lrtasks.run_config import RunConfig

if TYPE_CHECKING:
    from lightning_fabric import Fabric


def evaluate(
    model: ModelLike,
    task: str | Task,
    *,
    preset: str = "small",
    seed: int = 0,
    parameters: Mapping[str, Any] | None = None,
    hyper: Mapping[str, Any] | None = None,
    budget: Budget | Mapping[str, Any] | None = None,
    data: str | Path | None = None,
    name: str = "",
    device: str = "auto",
    workers: int | str = "auto",
    out: str | Path = "runs",
    trackers: str | Iterable[str] = (),
    overwrite: bool = False,
    quiet: bool = False,
    **settings: Any,
) -> RunRecord:
    """Train ``model`` on ``task`` and score it. If the run was interrupted, the same call continues it.

    Calls in several threads of a process run one after another.

    Args:
        model: a registered name; ``"FILE.py:NAME"`` or ``"package.module:NAME"``; a class or function that takes
            ``d_model`` (a mixer) or ``input, target`` (a whole model); or an ``nn.Module``, which is trained in place.
        task: a name, an address, or a task from :func:`lrtasks.make`.
        preset: ``"small"``, ``"paper"`` or another preset; it supplies the values that the caller does not set.
        seed: seeds initialisation and training stream.
        parameters: task parameters (only if the task is given by name or address).
        hyper: hyper-parameters of the model.
        budget: a complete :class:`lrtasks.Budget`, or some of its fields; the preset supplies the others.
        data: a stored dataset of this task to train and test on, instead of fresh samples.
        name: label of your own model. A run of an ``nn.Module`` needs a label so that a later call finds it again.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        workers: number of background processes that make batches, or ``"auto"``. On macOS, and with Python 3.14, they
            import the caller's main module, so a script needs ``if __name__ == "__main__":``, or ``workers=0``.
        out: results folder; the run gets its own folder below it.
        trackers: any of ``"csv"``, ``"tensorboard"`` and ``"wandb"``, which write below the run's folder.
        overwrite: run again even if the run is finished.
        quiet: show no progress.
        settings: parameters of task, model or budget by bare name, such as ``length=64``.

    Returns:
        The record, also written to ``record.json`` in the run's folder. Its status is ``done`` or ``diverged``.

    Raises:
        UsageError: for any mistake that the user can correct.
    """
    if isinstance(budget, Budget):
        budget = vars(budget)
    mapping = (Mapping | None, "a mapping of names to values")
    for argument, value, (kind, meaning) in (
        ("parameters", parameters, mapping),
        ("hyper", hyper, mapping),
        ("budget", budget, mapping),
        ("name", name, (str | None, "a string")),
        ("out", out, (str | PathLike, "a path")),
        ("trackers", trackers, (str | Iterable, "a string or a list of strings")),
    ):
        if not isinstance(value, kind) or (argument == "out" and not value):
            raise UsageError(f"{argument} must be {meaning}, found {value!r}")
    for owner, values in (("task", parameters), ("model", hyper), ("budget", budget)):
        settings = {f"{owner}.{key}": value for key, value in (values or {}).items()} | settings
    named: dict[str, Any] = {"data": data, "name": name, "options": signature(evaluate).parameters}
    config = RunConfig.make(task, model, preset=preset, seed=seed, settings=settings, **named)
    return run(config, device=device, workers=workers, out=out, trackers=trackers, overwrite=overwrite, quiet=quiet)


def run(
    config: RunConfig,
    *,
    device: str = "auto",
    workers: int | str = "auto",
    out: str | Path = "runs",
    trackers: str | Iterable[str] = (),
    overwrite: bool = False,
    quiet: bool = False,
) -> RunRecord:
    """Execute one run, or return its record if it is finished; the arguments are those of :func:`evaluate`."""
    tracked = tracker_names(trackers)
    fabric = environment.make_fabric(device, config.budget.precision)
    with environment.private_random_numbers([fabric.device]), environment.own_threads(fabric, config):
        further = further_tests(config)  # done here so that an impossible length is reported before the run
        streams = make_streams(config, workers, fabric)
        config = replace(config, data_digest=streams.digest)
        # all processes use the first one's digest and folder: a Python object has a different digest in each process
        digest, folder = fabric.broadcast((config.digest, config.folder(Path(out))))
        record = None if overwrite else _finished(fabric, folder, digest)
        if record is None:
            with _locked(fabric, folder):
                # another process may have finished the run after the check above and before the lock
                record = None if overwrite else _finished(fabric, folder, digest)
                if record is None:
                    return _Run(fabric, config, digest, streams, further, folder, tracked, quiet).execute(overwrite)
        if fabric.is_global_zero:
            # a run that was killed right after its last record was written leaves its checkpoint
            if (folder / LOCK).exists() or (folder / loop.CHECKPOINT).exists():
                with suppress(OSError, UsageError), held(folder / LOCK, f"the run in {folder}"):
                    (folder / loop.CHECKPOINT).unlink(missing_ok=True)
            track_finished(tracked, folder, record)
        if config.model.address is None and config.model.version is None and (folder / loop.WEIGHTS).exists():
            _load_weights(config.build(), folder)  # into the caller's module
    if not quiet:
        fabric.print(f"finished earlier: {folder} (--overwrite runs it again)", file=sys.stderr)
    return record


def load_model(
    folder: str | Path,
    *,
    length: int | None = None,
    trained: bool = True,
    model: ModelLike | None = None,
    task: type[Task] | str | None = None,
) -> nn.Module:
    """Load the model of a run, on the CPU, in evaluation mode.

    If the run is of your own model or task, this imports the file that the record names. Load only runs that you trust.

    Args:
        folder: the run's folder, with ``record.json`` and ``weights.pt``; or the path of its ``record.json``.
        length: build the model for this sequence length instead of the trained length, if the model supports it.
        trained: load the trained weights; otherwise the model has its weights from before training.
        model: the class, function or module, if the run was started with a Python object, or if its file was moved.
        task: the class of the task or its address, in the same cases.

    Raises:
        UsageError: if the run has no weights; if its model or task was a Python object and is not given; if the file
            of the model or task was moved, or the file of the model was edited, since the run; or if the weights do not
            fit the model.
    """
    if not isinstance(folder, (str, PathLike)):
        raise UsageError(f"load_model takes the folder of a run, found {folder!r}")
    folder = Path(folder)
    record = read_record(folder)
    folder = folder.parent if folder.is_file() else folder
    if trained and not (folder / loop.WEIGHTS).exists():
        raise UsageError(f"{folder} has no {loop.WEIGHTS}; the status of the run is {record.status}")
    try:
        kind = task or record.task.get("address") or record.task["name"]
        kind = registry.get(split_preset(kind)[0]) if isinstance(kind, str) else kind
    except UsageError as error:
        if task is not None:
            raise
        raise UsageError(f"{error}; pass the task's class: load_model(folder, task=CLASS)") from error
    address, source = record.task.get("address"), record.task.get("source")
    if task is None and address is None and source not in (None, own_source(kind)):
        found = f"{folder} is a run of a Python object with the name of the registered task {kind.name}"
        raise UsageError(f"{found}; pass its class: load_model(folder, task=CLASS)")
    made = kind.make(**record.task["parameters"])
    address = record.model.get("address")
    named = address or record.model["name"]
    if model is None and address is None:
        if record.model.get("version") is None or named not in model_registry.names():
            found = f"{folder} is a run of the Python object {named}"
            raise UsageError(f"{found}; pass it: load_model(folder, model=OBJECT)")
        if record.model.get("source") not in (None, own_source(model_registry.get(named))):
            found = f"{folder} is a run of a Python object with the name of the registered model {named}"
            raise UsageError(f"{found}; pass its class: load_model(folder, model=CLASS)")
    try:
        factory = model_factory(named if model is None else model, record.model["parameters"])
    except UsageError as error:
        if model is not None or address is None:
            raise
        hint = f"pass the class of the run in {folder}: load_model(folder, model=CLASS)"
        raise UsageError(f"{error}; {hint}") from error
    if model is None and record.model.get("source") not in (None, factory.identity.get("source")):
        hint = "restore it, or load the weights into the edited model: load_model(folder, model=...)"
        raise UsageError(f"the source of {named} has been edited since the run in {folder}; {hint}")
    if length is not None:
        made = made.at_length(length)
    with environment.private_random_numbers([], seed=record.seed):
        built = factory.build(made.input, made.target, made.causal)
    if trained:
        _load_weights(built, folder)
    return built.eval()


def _load_weights(model: nn.Module, folder: Path) -> None:
    weights = checkpoint.load(folder / loop.WEIGHTS)
    try:
        model.load_state_dict(weights["model"])
    except (KeyError, RuntimeError) as error:
        raise UsageError(f"{folder / loop.WEIGHTS} does not fit the model ({checkpoint.misfit(error)})") from None


@dataclass
class _Run:
    """A run in progress, with the objects that its steps share."""

    fabric: Fabric
    config: RunConfig
    digest: str
    streams: Streams
    further: Mapping[str, FurtherTest]
    folder: Path
    tracked: tuple[str, ...]
    quiet: bool

    @property
    def writes(self) -> bool:
        return self.fabric.is_global_zero

    def execute(self, overwrite: bool) -> RunRecord:
        """Train and test; keep the record on disk correct at every moment."""
        # a record that is overwritten stays until the first evaluation
        self.replaces = overwrite and (self.folder / FILE).exists()
        if overwrite and self.writes and not self._is_interrupted():
            (self.folder / loop.CHECKPOINT).unlink(missing_ok=True)
        self.resumes, self.wrote = (self.folder / loop.CHECKPOINT).exists(), False
        self.record = self.config.record()
        self.record.digest = self.digest
        self.record.environment = environment.describe_environment()
        with _noting(self.record):
            environment.seed_all(self.config.seed)
            self.model = self.config.build()
            self.record.model["count"] = parameter_count(self.model)
            self.record.model["state_bytes"] = state_bytes(self.model)
            self.trackers = Trackers(self.tracked if self.writes else (), self.folder, self.record)
            if self.fabric.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats(self.fabric.device)
            try:
                if not self.replaces:
                    self.trackers.begin()
                self._train_and_test()
            except loop.DivergedError as error:
                self._close("diverged", str(error))
            except UsageError:
                if self.writes and not self.replaces and not (self.folder / loop.CHECKPOINT).exists():
                    # training has not begun: leave no record of a run that is impossible
                    (self.folder / FILE).unlink(missing_ok=True)
                    self.trackers.discard()
                raise
            except (Exception, SystemExit) as error:
                self._close("failed", with_line(error))
                if isinstance(error, SystemExit):
                    raise RuntimeError("the code of the model or task called sys.exit during the run") from error
                if is_lost_worker(error):
                    died = f"a background process that makes batches died ({first_line(error)})"
                    raise UsageError(f"{died}; try --workers 0") from error
                if "finished reduction in the prior iteration" in str(error):
                    must = "with several processes, every parameter must get a gradient in every step"
                    raise UsageError(f"{must}; lrtasks check names those that get none") from error
                if is_shortage(error):
                    shortage = "not enough memory for this run; choose a smaller batch_size, length or model"
                    raise UsageError(shortage) from error
                raise
            else:
                self._close("done")
            finally:
                self.trackers.close()
        if self.writes:
            for name in (loop.CHECKPOINT, LOG):
                (self.folder / name).unlink(missing_ok=True)
        return self.record

    def _is_interrupted(self) -> bool:
        """Return whether the folder holds this run, begun by the same command and not finished."""
        with suppress(UsageError):
            found = read_record(self.folder)
            return found.status == "running" and found.digest == self.digest
        return False

    def _train_and_test(self) -> None:
        task, streams = self.config.task, self.streams
        check_batch(streams.train[0], task)
        baselines = fitted_baselines(task, streams.training(BASELINE_BATCHES))
        found = score_baselines(task, baselines, streams.val).values()
        floor = max((scores[task.metric] for scores in found), default=None)
        stop_floor = floor if self.config.budget.stop_solved else None
        how: dict[str, Any] = {"digest": self.digest, "floor": stop_floor, "quiet": self.quiet, "report": self._note}
        state = loop.train(self.fabric, self.model, self.config, self.streams, self.folder, **how)
        self._note(state)
        if self.writes and not self.streams.finite:
            checkpoint.save(self.folder / loop.WEIGHTS, {"model": self.model.state_dict(), "step": state.step})
        began = time.monotonic()
        # random numbers of the test do not depend on whether the run was resumed
        loop.seed_step(self.config.seed, state.step, self.fabric.global_rank)
        self._test(baselines)
        note_summary(task, self.further, self.record, floor)
        self.record.cost["seconds_with_evaluation"] += time.monotonic() - began

    def _note(self, state: loop.State) -> None:
        """Write the curve, validation scores and cost after an evaluation into the record."""
        record = self.record
        record.curve = state.curve
        state.peak_memory_bytes = max(state.peak_memory_bytes, environment.peak_memory_bytes(self.fabric.device))
        if state.notes is not record.notes:  # from a checkpoint
            record.notes[:] = dict.fromkeys([*state.notes, *record.notes])
            state.notes = record.notes
        if len(state.curve) == 1:
            diagnostics(self.model)  # an invalid one raises an error now, not after the training
        if state.curve:
            metric = self.config.task.metric
            # with a finite set, the kept weights have the highest score; if scores are equal, the earliest one
            best = max(state.curve, key=lambda point: (point[metric], -point["step"]))
            tested = best if self.streams.finite else state.curve[-1]
            record.scores["val"] = {key: value for key, value in tested.items() if key not in ("step", "loss")}
            record.cost = {
                "seconds_per_step": state.seconds / state.step,
                "seconds": state.seconds,
                "seconds_with_evaluation": state.seconds_with_evaluation,
                "peak_memory_bytes": state.peak_memory_bytes,
                "device": environment.device_name(self.fabric.device),
            }
        if self.writes and (state.curve or not self.replaces):
            self._write()
        self.trackers.update(record)

    def _test(self, baselines: Mapping[str, Baseline]) -> None:
        """Score the trained model, and record scores, slices, diagnostics and baselines."""
        record, task, streams = self.record, self.config.task, self.streams
        self._draw_predictions()
        scorer = loop.score(self.fabric, self.model, task, streams.test)
        record.scores["test"], record.slices = scorer.scores(), scorer.slices()
        record.errors["test"] = scorer.error()
        # read here, because diagnostics describe the last batch that the model processed
        record.diagnostics = diagnostics(self.model)
        if task.input.kind == "token":
            self._note_overlap()
        if streams.finite:
            train = streams.training(min(streams.test.count, self.config.budget.steps))
            record.scores["train"] = loop.score(self.fabric, self.model, task, train, slices=False).scores()
        record.baselines = score_baselines(task, baselines, streams.test)
        score_further(self.fabric, self.model, self.config, self.further, streams.workers, record)
        # last, because a user's model may count its calls
        tried = self.config.model.source and task.causal and self.config.budget.precision == "32"
        if tried and uses_future(self.fabric, self.model, task, streams.test):
            found = "outputs change if only later inputs change"
            warnings.warn(f"{NOT_CAUSAL}: {found}; see lrtasks check", stacklevel=2)

    def _note_overlap(self) -> None:
        """If the task has few different inputs, note the share of the test inputs that also occur in training."""
        streams, size, count = self.streams, self.config.budget.batch_size, self.record.curve[-1]["step"]
        if streams.train.samples is not None:
            count = min(count, -(-streams.train.samples // size))
        # with at most a million different inputs, some test inputs already occur in the first training batches
        first = streams.training(min(count, -(-4096 // size)))
        if self.config.data is None and not share_among(streams.test, first):
            return
        if share := share_among(streams.test, streams.training(count)):
            why = ": the task has few inputs" if self.config.data is None else ""
            self.record.notes.append(f"{share:.1%} of the test inputs occur in training{why}")

    def _draw_predictions(self) -> None:
        """For image tasks with a class per pixel, draw image, target and prediction of a few test samples."""
        task = self.config.task
        shape = task.image_shape()
        if shape is None or task.target.pooled or task.target.length != task.input.length or not self.writes:
            return
        from lrtasks.generators.preview import save_predictions

        first = Replay(self.streams.test.stream, 1, workers=0)
        for loaded, prediction in loop.predictions(self.fabric, self.model, task, first):
            save_predictions(task, loaded.batch, prediction, self.folder / PANEL)

    def _close(self, status: str, *notes: str) -> None:
        self.record.status = status
        self.record.notes += notes
        if status == "failed" and self.replaces and not self.record.curve:
            return  # a failure before the first evaluation keeps the finished run that this one replaces
        try:
            # finish the trackers first: once the record says that the run has ended, they are not written again
            self.trackers.finish(self.record)
        finally:
            if self.writes:
                self._write()

    def _write(self) -> None:
        """Write the record. Before its first record, this process removes the files of trackers that it does not use.

        If it does not resume a run, it also removes the weights and figures of an earlier one.
        """
        if not self.wrote:
            self.wrote = True
            remove_others(self.tracked, self.folder)
            if not self.resumes:
                drawn = self.folder / ANALYSIS
                figures = [] if drawn.is_symlink() else drawn.glob("*.png")
                for file in (self.folder / loop.WEIGHTS, self.folder / PANEL, *figures):
                    file.unlink(missing_ok=True)
                remove_empty(drawn)
        self.record.write(self.folder)


def _finished(fabric: Fabric, folder: Path, digest: str) -> RunRecord | None:
    """Return the record that the first process finds if the run needs no more work, else ``None``."""
    return fabric.broadcast(finished_record(folder, digest) if fabric.is_global_zero else None)


@contextmanager
def _locked(fabric: Fabric, folder: Path) -> Iterator[None]:
    """Make and lock the run's folder for the ``with`` block; remove the folders that are new and empty afterwards."""
    if not fabric.is_global_zero:
        yield
        return
    refuse_links(folder.parent, folder)
    new = [parent for parent in folder.parents if not parent.exists()]
    make_folder(folder, "the results folder")
    try:
        with held(folder / LOCK, f"the run in {folder}"):
            for name in (FILE, loop.CHECKPOINT, loop.WEIGHTS):
                remove_partials(folder / name)
            yield
    finally:
        remove_empty(folder, folder.parent, *new)


@contextmanager
def _noting(record: RunRecord) -> Iterator[None]:
    """Add this package's warnings in the ``with`` block to the record's notes; the user sees them, too."""
    show = warnings.showwarning

    def note(message: Warning | str, category: type[Warning], filename: str, *rest: Any, **more: Any) -> None:
        if Path(filename).is_relative_to(PACKAGE) and str(message) not in record.notes:
            record.notes.append(str(message))
        show(message, category, filename, *rest, **more)

    with warnings.catch_warnings():  # also lets Python repeat a warning of an earlier run
        warnings.showwarning = note
        yield
