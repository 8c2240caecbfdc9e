"""Generated regions about tasks: the gallery, the table of tasks, and the facts on each task's own page."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Sequence
from pathlib import Path

import task_examples
from parameter_tables import parameter_table, settings
from regions import link, table

from lrtasks.generators import Spec, make, registry
from lrtasks.generators.base import GROUPS
from lrtasks.generators.fingerprint import FINGERPRINT, QUICK
from lrtasks.registry import split_preset

THROUGHPUT = task_examples.TASKS / "throughput.txt"
"""Output of ``benchmarks/generators.py``; the first line is the command."""
METRICS = {"r2": "R²", "accuracy": "accuracy", "macro_f1": "macro F1"}
LOSSES = {
    "mse": "mean squared error",
    "cross-entropy": "cross-entropy",
    "balanced-cross-entropy": "cross-entropy weighted by the inverse of each class's count in the batch",
}
IN_COLUMNS = ("steps", "batch_size")
GROUP_MEANINGS = {
    "state": "a state that each token changes",
    "structure": "nesting, stacks and the rules of a language",
    "copying": "reproducing the input, in whole or in part",
    "retrieval": "looking up by content",
    "hops": "several lookups in a row",
    "capacity": "how much a vector or the weights can store",
    "latching": "storing a value, and accumulating",
    "algorithms": "a map that depends on the whole input",
    "geometry": "following a curve through an image",
    "other": "anything else",
}


def sentence(cls: type) -> str:
    """Return the first paragraph of a class docstring, on one line, as Markdown."""
    first = inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0]
    return " ".join(first.split()).replace("``", "`")


def gallery(page: Path, _: Sequence[str]) -> str:
    """Return for each group one card per task: a sample, the docstring's first paragraph, floor, parameters."""
    parts = []
    for group, names in _groups():
        cards = "\n\n".join(_card(page, name) for name in names)
        heading = f"### {group}: {GROUP_MEANINGS[group]}"
        parts += [heading, f'<div class="grid cards" markdown>\n\n{cards}\n\n</div>']
    return "\n\n".join(parts)


def fingerprint(page: Path, _: Sequence[str]) -> str:
    """Return the table of the instances of a profile by group."""
    rows = []
    for group, names in FINGERPRINT.items():
        shown = [named(page, name) for name in names]
        rows.append([group, ", ".join(shown[:QUICK]), ", ".join(shown[QUICK:])])
    return table(["group", "instances, also of `--quick`", "further instances"], rows)


def groups(page: Path, _: Sequence[str]) -> str:
    """Return the table of groups, with the tasks of each group."""
    rows = [
        [group, GROUP_MEANINGS[group], ", ".join(named(page, name) for name in names)] for group, names in _groups()
    ]
    return table(["group", "capability", "tasks"], rows)


def sample(page: Path, words: Sequence[str]) -> str:
    """Return one sample of a task, and the command that shows it."""
    (name,) = words
    return f"{_sample(page, name)}\n\nOther samples: `{task_examples.command(name)}`, with any parameters."


def task(_: Path, words: Sequence[str]) -> str:
    """Return parameters, presets, floors, cost and commands of one task."""
    (name,) = words
    cls = registry.get(name)
    way = "causal" if cls.causal else "bidirectional"
    scored = f"Score: {METRICS[cls.metric]}. Training minimises the {LOSSES[cls.loss]}. Models are {way}."
    commands = f"Look at it: `lrtasks preview {name}`. Train on it: `lrtasks eval --model transformer --task {name}`."
    parameters = parameter_table(cls.describe_parameters())
    return "\n\n".join([scored, parameters, _presets(name), _floors(name), _cost(name), commands])


def _groups() -> list[tuple[str, list[str]]]:
    """Return the names of the built-in tasks by group; groups without a task are left out."""
    found = [(group, [name for name in registry.built_in() if registry.get(name).group == group]) for group in GROUPS]
    return [(group, names) for group, names in found if names]


def _card(page: Path, name: str) -> str:
    parameters = ", ".join(f"`{parameter}`" for parameter in registry.get(name).parameter_names())
    parts = [
        f"**{named(page, name)}**",
        _sample(page, name),
        sentence(registry.get(name)),
        f"Floor: {_floor(name)}",
        f"Parameters: {parameters}",
    ]
    lines = "\n\n".join(parts).splitlines()
    return "\n".join(["-   " + lines[0], *(f"    {line}" if line else "" for line in lines[1:])])


def named(page: Path, name: str) -> str:
    """Return the name of a task as a link to its page."""
    return f"[{name}]({link(page, task_examples.TASKS / f'{split_preset(name)[0]}.md')})"


def _sample(page: Path, name: str) -> str:
    text = task_examples.text(name)
    if text is not None:
        return f"`{text}`"
    return f"![A sample of {name}]({link(page, task_examples.TASKS / 'pictures' / f'{name}.png')})"


def _presets(name: str) -> str:
    rows = []
    for preset in registry.get(name).presets:
        own, budget = registry.get(name).preset_values(preset)
        task, training = make(name, preset=preset), task_examples.budget(name, preset)
        other = {key: value for key, value in budget.items() if key not in IN_COLUMNS}
        size = f"{training.steps:,} × {training.batch_size:,}"
        shapes = [_shape(task.input), _shape(task.target)]
        rows.append([f"`{preset}`", settings(own), *shapes, size, settings(other)])
    return table(["preset", "parameters", "input", "target", "steps × batch", "other training settings"], rows)


def _shape(spec: Spec) -> str:
    """Return the number of positions, and the values or classes at each position."""
    each = f"{spec.width:,} real" if spec.kind == "real" else f"1 of {spec.width:,}"
    return f"{spec.length:,} × {each}"


def _best_first(name: str) -> list[tuple[str, float]]:
    found: dict[str, float] = json.loads(task_examples.FLOORS.read_text())[name]
    return sorted(found.items(), key=lambda item: -item[1])


def _floor(name: str) -> str:
    predictor, score = _best_first(name)[0]
    return f"{METRICS[registry.get(name).metric]} {score:z.3f} by `{predictor}`"


def _floors(name: str) -> str:
    budget = task_examples.budget(name, "small")
    listed = ", ".join(f"`{predictor}` {score:z.3f}" for predictor, score in _best_first(name))
    return f"Floors at `small`, on its {budget.test_batches * budget.batch_size:,} test samples: {listed}."


def _cost(name: str) -> str:
    command, *lines = THROUGHPUT.read_text().splitlines()
    (found,) = (match for line in lines if (match := re.match(rf"{name} +(\d+) +\S+ +(\S+)", line)))
    return (
        f"A sample of {int(found[1]):,} positions is drawn in {float(found[2]):g} ms of CPU time on one core "
        f"(`{command.removeprefix('$ ')} --tasks {name}`)."
    )
