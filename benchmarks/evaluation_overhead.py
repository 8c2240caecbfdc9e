"""Measure the overhead of a training step: making the batch, and the loop around forward, backward and AdamW.

    python benchmarks/evaluation_overhead.py --length 4096                     # every signal task, DLR at paper size
    python benchmarks/evaluation_overhead.py --length 4096 --tasks shift mips
    python benchmarks/evaluation_overhead.py --length 256 --preset small --loop
    python benchmarks/evaluation_overhead.py --forms --model transformer --tasks mqar --preset paper

The script prints for each task the CPU time of making one batch, the CPU time of one training step (forward, loss,
backward, AdamW, on an existing batch), and their ratio. Both run on OMP_NUM_THREADS threads. The ratio is the time that
a training process without background workers spends on data, relative to the step. With workers, another core spends
this time. All times are medians.

``--loop`` also runs the whole evaluation loop with background workers, and prints its wall time per step divided by the
wall time of the bare step. Use an idle machine.

``--forms`` compares parts of a step with their plain forms, at the length of each task's preset: logits at labelled
positions (forward, loss and backward) with logits everywhere, the same without denormal numbers with them, one fused
AdamW kernel with separate operations, and, for signals, forward and backward of the encoder with those of
``torch.nn.Linear``. The forms run alternately; the shortest times count.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
import tempfile
import time
import timeit
from collections.abc import Callable

import torch

from lrtasks import generators
from lrtasks.evaluation.batches import BatchStream
from lrtasks.evaluation.environment import flushed_denormals
from lrtasks.evaluation.loop import labelled
from lrtasks.evaluation.optimiser import LOSSES, make_optimiser
from lrtasks.evaluation.run import run
from lrtasks.run_config import RunConfig


def signal_tasks() -> list[str]:
    """Return the tasks with a parameter ``length`` and real-valued targets."""
    return [
        name
        for name in generators.names()
        if "length" in generators.registry.get(name).parameter_names() and generators.make(name).target.kind == "real"
    ]


def median(clock: Callable[[], float], call: Callable[[], object], repeats: int) -> float:
    """Return the median time of ``call()`` by ``clock``, after one call that is not counted."""
    call()
    return statistics.median(timeit.repeat(call, "gc.enable()", clock, repeats, number=1))


def training_step(config: RunConfig) -> Callable[[], None]:
    """Return a function that does one training step of the run's model on an existing batch."""
    torch.manual_seed(config.seed)
    model = config.build()
    optimiser, loss = make_optimiser(model, config.budget), LOSSES[config.task.loss]
    batch = BatchStream(config.task, 0, "train", config.budget.batch_size)[0]

    def step() -> None:
        loss(model(batch.x), batch.y, batch.y).backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def compare_forms(config: RunConfig, repeats: int) -> dict[str, tuple[float, float]]:
    """Return the shortest CPU time of some parts of a step: of the package's form and of the plain form."""
    torch.manual_seed(config.seed)
    model, loss = config.build(), LOSSES[config.task.loss]
    ours, plain = make_optimiser(model, config.budget), make_optimiser(model, config.budget)
    for group in plain.param_groups:
        group["fused"] = None
    batch = BatchStream(config.task, 0, "train", config.budget.batch_size)[0]
    places = labelled(batch.y)

    def everywhere() -> None:
        loss(model(batch.x), batch.y, batch.y).backward()

    def at_labels() -> None:
        if places is None:
            everywhere()
        else:
            labels = batch.y.flatten()[places].unsqueeze(0)
            loss(model(batch.x, places=places), labels, batch.y).backward()

    def flushed() -> None:
        with flushed_denormals():
            at_labels()

    forms: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "logits": (at_labels, everywhere),
        "denormals": (flushed, at_labels),
        "AdamW": (ours.step, plain.step),
    }
    if config.task.input.kind == "real":
        linear = torch.nn.Linear(config.task.input.width, model.encoder.out_features)
        cotangent = torch.randn_like(linear(batch.x))
        forms["encoder"] = (
            (lambda: model.encoder(batch.x).backward(cotangent)),
            (lambda: linear(batch.x).backward(cotangent)),
        )
    times: dict[Callable[[], object], list[float]] = {form: [] for pair in forms.values() for form in pair}
    for _ in range(repeats + 1):
        for form, taken in times.items():
            taken.append(timeit.timeit(form, "gc.enable()", time.process_time, number=1))
    return {name: (min(times[one][1:]), min(times[other][1:])) for name, (one, other) in forms.items()}


def loop_seconds(config: RunConfig, steps: int) -> float:
    """Return the wall time per step of the whole loop, with workers."""
    shorter = {"steps": steps, "eval_every": steps, "warmup_steps": 0, "val_batches": 1, "test_batches": 1}
    config = dataclasses.replace(config, budget=dataclasses.replace(config.budget, **shorter))
    with tempfile.TemporaryDirectory() as out:
        return float(run(config, device="cpu", out=out, quiet=True).cost["seconds_per_step"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--tasks", nargs="+", default=None, help="default: every signal task")
    parser.add_argument("--model", default="dlr")
    parser.add_argument("--preset", default="paper", help="preset of the model")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--loop", action="store_true", help="also time the whole loop")
    parser.add_argument("--forms", action="store_true", help="compare parts of a step with their plain forms")
    arguments = parser.parse_args()
    if arguments.forms:
        print(f"{arguments.model}, preset {arguments.preset}, B={arguments.batch_size}")
        print(f"{'task':16}{'part':10}{'ours':>10}{'plain':>12}{'ratio':>8}")
        for name in arguments.tasks or ("recall", "mqar"):
            given = {"budget.batch_size": arguments.batch_size}
            config = RunConfig.make(name, arguments.model, preset=arguments.preset, settings=given)
            for part, (ours, plain) in compare_forms(config, arguments.repeats).items():
                row = f"{ours * 1e3:8.2f}ms{plain * 1e3:10.2f}ms{plain / ours:8.2f}"
                print(f"{name:16}{part:10}{row}", flush=True)
        return
    print(f"{arguments.model}, preset {arguments.preset}, L={arguments.length}, B={arguments.batch_size},", end=" ")
    print(f"{torch.get_num_threads()} thread(s)")
    header = f"{'task':16}{'batch':>10}{'step':>10}{'ratio':>8}"
    print(header + (f"{'loop':>10}{'loop/step':>11}" if arguments.loop else ""))
    for name in arguments.tasks or signal_tasks():
        given = {"task.length": arguments.length, "budget.batch_size": arguments.batch_size}
        config = RunConfig.make(name, arguments.model, preset=arguments.preset, settings=given)
        stream, step = BatchStream(config.task, 0, "train", config.budget.batch_size), training_step(config)
        making = median(time.process_time, map(stream.__getitem__, itertools.count()).__next__, arguments.repeats)
        training = median(time.process_time, step, arguments.repeats)
        line = f"{name:16}{making * 1e3:8.1f}ms{training * 1e3:8.0f}ms{making / training:8.1%}"
        if arguments.loop:
            bare, whole = (
                median(time.perf_counter, step, arguments.repeats),
                loop_seconds(config, arguments.repeats * 10),
            )
            line += f"{whole * 1e3:8.1f}ms{whole / bare:11.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
