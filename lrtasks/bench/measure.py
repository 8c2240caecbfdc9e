"""Measure one model at one length, in a process that does nothing else."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from lrtasks.bench import BASELINE, CLASSES, SHARED_PARAMETERS, UNFUSED, VOCABULARY, Phase
from lrtasks.budget import Budget
from lrtasks.config import Config, parameter
from lrtasks.errors import UsageError, is_shortage, with_line
from lrtasks.evaluation.environment import flushed_denormals
from lrtasks.evaluation.optimiser import make_optimiser
from lrtasks.machine import give_memory_back
from lrtasks.models.base import diagnostics, extra_losses, output_misfit, parameter_count, state_bytes
from lrtasks.models.factory import ModelFactory, is_registered, model_factory, model_label, model_parameter_names
from lrtasks.processes import end_with_parent
from lrtasks.spec import Spec

WARM_UP = 32
"""Length of the sequence that makes torch and Numba load libraries and compiled loops before memory is counted."""
LONGEST_WAIT = 2e6
"""Longest time to wait for a process, in seconds; Python accepts no timeout of 2^31 ms."""

# processes are forked from one that has imported torch and done nothing else; an optimiser would import torch._dynamo
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["lrtasks.bench.measure", "torch._dynamo"])


@dataclass(frozen=True)
class Settings(Config):
    """Settings that all measurements of a bench share."""

    name: ClassVar[str] = "bench"

    d_model: int = parameter(64, "width of the residual stream", at_least=1, at_most=65536)
    layers: int = parameter(2, "layers", at_least=1, at_most=256)
    batch: int = parameter(1, "sequences in a batch", at_least=1, at_most=2**20)
    bidirectional: bool = parameter(False, "measure bidirectional models, which have no streaming state")
    repeats: int = parameter(5, "timed repeats, after one untimed repeat", at_least=1, at_most=10_000)
    patience: float = parameter(20.0, "limit in seconds on the timed work; no repeat begins after it", above=0)
    threads: int = parameter(1, "threads of a process", at_least=1, at_most=1024)


def shared_parameters(known: Collection[str] | None) -> dict[str, str]:
    """Map the names of the shared parameters in a model with the parameters ``known`` to their names in the settings.

    In a hybrid, the parameter ``layers`` lists the layers, and ``n_layers`` is their number.
    """
    number = "n_layers" if known is not None and "n_layers" in known else "layers"
    return {number if each == "layers" else each: each for each in SHARED_PARAMETERS}


@dataclass(frozen=True)
class Case:
    """One model at one length.

    Attributes:
        model: a registered name, the address of the user's own model or mixer, or :data:`UNFUSED`.
        device: ``"cpu"`` or ``"cuda"``.
        hyper: hyper-parameters that differ from a model's defaults, by the model's label.
    """

    model: str
    length: int
    settings: Settings
    device: str = "cpu"
    hyper: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The model's name or address; the name of the Transformer for :data:`UNFUSED`."""
        return BASELINE if self.model == UNFUSED else self.model

    @property
    def factory(self) -> ModelFactory:
        """The model with its hyper-parameters."""
        name = self.name
        known = model_parameter_names(name)
        shared = {key: getattr(self.settings, each) for key, each in shared_parameters(known).items()}
        if not is_registered(name):  # a whole model of the user's has only the parameters that it names
            shared = {key: value for key, value in shared.items() if key in (known or ())}
        return model_factory(name, {**shared, **self.hyper.get(model_label(name), {})})

    @property
    def specs(self) -> tuple[Spec, Spec]:
        """Input and target: the model reads tokens and predicts one class per sequence."""
        return Spec("token", self.length, VOCABULARY), Spec("token", 1, CLASSES, pooled=True)

    def build(self) -> nn.Module:
        """Build the model."""
        return self.factory.build(*self.specs, not self.settings.bidirectional)


def sizes(case: Case) -> dict[str, Any]:
    """Return the number of ``parameters``, and ``state_bytes`` of one sequence (None without a streaming form)."""
    model = case.build()
    return {"parameters": parameter_count(model), "state_bytes": state_bytes(model)}


def cost(case: Case, phase: Phase, paired: bool) -> dict[str, Any]:
    """Measure the peak memory of the model, then time the model and the Transformer in turn.

    Args:
        case: the model and its length.
        phase: ``training``: forward, loss, backward and optimiser step; ``inference``: forward in evaluation mode.
        paired: whether to time the Transformer too.

    Returns:
        ``peak_bytes``: peak memory minus the memory before the model was built (None for a CPU outside Linux);
        ``cpu_seconds`` and ``wall_seconds``, one per repeat; if ``paired``, as many ``baseline_cpu_seconds`` and
        ``baseline_wall_seconds``; for training, the model's ``diagnostics``, if it has any.

    Raises:
        UsageError: if the model cannot be built, or its output does not fit the task.
    """
    torch.set_num_threads(case.settings.threads)
    device = torch.device(case.device)
    # libraries that are loaded on first use must not count as memory of the model
    with suppress(Exception), torch.device("meta"):  # a constructor may need values, as .item() does
        case.build()
    transformer = replace(case, model=BASELINE)
    _prepare(replace(transformer, length=WARM_UP), phase)[1]()
    with suppress(Exception):  # the model may need a longer sequence
        _prepare(replace(case, length=WARM_UP), phase)[1]()
    torch.fft.irfft(torch.fft.rfft(torch.zeros(WARM_UP, device=device)))
    give_memory_back()
    memory = PeakMemory(device)
    model, run = _prepare(case, phase)
    run()  # allocates the optimiser's moments, fills codebooks, loads what the model needs
    times = {"": [_timed(run, device)]}
    figures: dict[str, Any] = {"peak_bytes": memory.above_start()}
    runs = {"": run}
    if paired:
        runs["baseline_"] = _prepare(transformer, phase)[1]
        runs["baseline_"]()
        times["baseline_"] = [_timed(runs["baseline_"], device)]
    spent, clock = 0.0, 0 if case.device == "cpu" else 1
    while len(times[""]) < case.settings.repeats and spent < case.settings.patience:
        for name, each in runs.items():  # in turn, so that a slow phase of the machine affects both
            times[name].append(_timed(each, device))
            spent += times[name][-1][clock]
    for name, repeats in times.items():
        figures[f"{name}cpu_seconds"], figures[f"{name}wall_seconds"] = map(list, zip(*repeats, strict=True))
    if phase == "training":
        found = diagnostics(model)
        figures |= {"diagnostics": found} if found else {}
    return figures


def _prepare(case: Case, phase: Phase) -> tuple[nn.Module, Callable[[], None]]:
    """Return the model, and the function to time: one training step or one forward pass."""
    torch.manual_seed(0)
    model = case.build().to(case.device).train(phase == "training")
    x = torch.randint(VOCABULARY, (case.settings.batch, case.length), device=case.device)
    labels = torch.randint(CLASSES, (case.settings.batch,), device=case.device)
    optimiser, specs = make_optimiser(model, Budget()) if phase == "training" else None, case.specs

    def timed() -> None:
        with (
            flushed_denormals(),
            sdpa_kernel(SDPBackend.MATH) if case.model == UNFUSED else nullcontext(),
            torch.inference_mode(optimiser is None),
        ):
            outputs = model(x)
            if problem := output_misfit(outputs, x, *specs):
                raise UsageError(f"output {problem}")
            if optimiser is not None:
                loss = cross_entropy(outputs[:, 0], labels) + extra_losses(model, x.device)
                torch.autograd.backward(loss)
                optimiser.step()
                optimiser.zero_grad(set_to_none=True)

    return model, timed


def _timed(run: Callable[[], None], device: torch.device) -> tuple[float, float]:
    """Return the CPU time of this process's threads and the elapsed time of one call, in seconds."""
    _wait(device)
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    _wait(device)
    return time.process_time() - cpu, time.perf_counter() - wall


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class PeakMemory:
    """Memory used since this object was made: allocated by torch on a GPU, resident on a CPU (Linux)."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        _wait(device)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self._start: int | None = torch.cuda.memory_allocated(device)
        else:
            with suppress(OSError):
                Path("/proc/self/clear_refs").write_text("5")  # Linux resets the peak
            self._start = _resident_bytes("VmRSS")

    def above_start(self) -> int | None:
        """Return the bytes at the peak minus the bytes at the start; None if the system does not report them."""
        on_gpu = self._device.type == "cuda"
        peak = torch.cuda.max_memory_allocated(self._device) if on_gpu else _resident_bytes("VmHWM")
        return None if peak is None or self._start is None else peak - self._start


def kernel_entry(file: str, entry: str) -> str | None:
    """Return the value of ``entry: value`` in a file below ``/proc``; None if there is none."""
    with suppress(OSError):
        lines = [line.partition(":") for line in (Path("/proc") / file).read_text().splitlines()]
        return next((value.strip() for name, _, value in lines if name.strip() == entry), None)
    return None


def _resident_bytes(entry: str) -> int | None:
    value = kernel_entry("self/status", entry)
    return None if value is None else 1024 * int(value.split()[0])


def run_in_process(function: Callable[..., Any], *arguments: Any, time_limit: float) -> Any:
    """Call ``function`` in a new process and return its value, or ``{"reason": one line}`` if it fails in any way.

    Args:
        function: a module-level function; the function and its arguments are pickled.
        time_limit: seconds after which the process is stopped.
    """
    receiver, sender = _processes.Pipe(duplex=False)
    process = _processes.Process(target=_serve, args=(sender, function, arguments), daemon=True)
    process.start()
    sender.close()
    try:
        if not receiver.poll(min(time_limit, LONGEST_WAIT)):
            return {"reason": f"stopped at its time limit of {time_limit:g} s"}
        return receiver.recv()
    except EOFError:
        process.join()
        code = process.exitcode or 0
        if code == -signal.SIGKILL:
            return {"reason": "killed, most likely for lack of memory"}
        return {"reason": f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"}
    finally:
        process.kill()
        process.join()
        receiver.close()


def _serve(sender: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C and ends this process
    end_with_parent()
    with suppress(OSError):  # if memory runs out, Linux then ends this process first
        Path("/proc/self/oom_score_adj").write_text("1000")
    try:
        with redirect_stdout(sys.stderr):  # output of the model's code must not mix with the result
            sender.send(function(*arguments))
    except UsageError as error:
        sender.send({"reason": str(error)})
    except Exception as error:
        sender.send({"reason": "out of memory" if is_shortage(error) else with_line(error)})
