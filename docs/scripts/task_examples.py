"""The example of each task: its parameters, its image, and the floors at the preset ``small``."""

from __future__ import annotations

import io
import itertools
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lrtasks.budget import DEFAULTS, Budget
from lrtasks.evaluation.scoring import BASELINE_BATCHES, baseline_scores
from lrtasks.generators import Task, make, registry
from lrtasks.generators.preview import preview

TASKS = Path(__file__).parents[1] / "tasks"
FLOORS = TASKS / "floors.json"
SHORT_EXPRESSION = {"setting": "small", "min_length": 10, "max_length": 24}
PARAMETERS: dict[str, dict[str, Any]] = {
    "adding": {"length": 10},
    "chomsky": {"lengths": [9, 9]},
    "compression": {"length": 12},
    "copying": {"string": [8, 8]},
    "depo": {"law": "clean", "nodes": 4, "hops": 2, "queries": 2, "words": [8, 1, 1]},
    "dyck": {"kinds": 3, "depth": 4, "length": 16, "close": "generic"},
    "flip-flop": {"instructions": 10},
    "fuzzy-recall": {"law": "grid", "length": 25, "value_tokens": 2, "letters": 2},
    "in-context-language": {"length": 32, "strings": [3, 6], "states": [3, 4]},
    "induction-heads": {"length": 12},
    "joint-recall": {"contexts": 2, "keys": 2, "values": 8, "room": [2, 2]},
    "k-hop": {"law": "clean", "length": 13, "letters": 3, "hops": [1, 2]},
    "listops": SHORT_EXPRESSION,
    "listops-root": SHORT_EXPRESSION,
    "memorization": {"facts": 64, "pairs": 4},
    "mqar": {"length": 16, "pairs": 2, "vocab": 32},
    "noisy-recall": {"length": 20, "vocab": 12, "noise_vocab": 6, "noise": 0.4},
    "overwrite": {"keys": 3, "updates": 4, "vocab": 16},
    "pathfinder": {"res": 64},
    "pathfinder-classification": {"res": 64},
    "recall": {"length": 12},
    "select": {"length": 64, "marks": 8},
    "select-fixed": {"length": 64, "marks": 8},
    "selective-copying": {"noise": 8, "memorise": 3},
    "stack": {"stacks": 2, "values": 4, "operations": 10},
    "variable-tracking": {"statements": 8, "variables": 4, "constants": 6},
    "word-problem": {"length": 8},
}
"""Parameters of small examples, which a reader sees at a glance; all other tasks have a length of 64."""

WIDTH, DPI, COLOURS = 7.5, 130, 64


def example(name: str) -> Task:
    """Return the task with the parameters of its example."""
    return make(name, **PARAMETERS.get(name, {"length": 64}))


def text(name: str) -> str | None:
    """Return the first sample as text; ``None`` for tasks without a text form."""
    task = example(name)
    return task.text(task.batch([0]), 0)


def command(name: str) -> str:
    """Return the command that shows the example."""
    options = [word for key, value in PARAMETERS.get(name, {"length": 64}).items() for word in (_option(key), value)]
    return shlex.join(["lrtasks", "preview", name, *map(str, options), "--samples", "1"])


def picture(name: str) -> Image.Image:
    """Draw the first sample as ``lrtasks preview`` does, at the width of a page, in few colours for a small file."""
    figure, drawn = preview(example(name), samples=1), io.BytesIO()
    figure.suptitle("")
    figure.set_size_inches(WIDTH, WIDTH * figure.get_figheight() / figure.get_figwidth())
    figure.savefig(drawn, format="png", dpi=DPI)
    return Image.open(drawn).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)


def pictures() -> dict[Path, Image.Image]:
    """Return the images by file, for all tasks without a text form."""
    return {TASKS / "pictures" / f"{name}.png": picture(name) for name in registry.built_in() if text(name) is None}


def same_picture(one: Image.Image, other: Image.Image) -> bool:
    """Return whether two images are equal except for small differences, such as fonts and line smoothing."""
    if one.size != other.size:
        return False
    left, right = (np.asarray(image.convert("RGB"), dtype=np.float64) for image in (one, other))
    return float(np.abs(left - right).mean()) < 2


def baselines() -> str:
    """Return the floors of every task at the preset ``small``, as JSON: the baseline scores in a record of seed 0."""
    scores = {}
    for name in registry.built_in():
        task, training = make(name, preset="small"), budget(name, "small")
        train = list(itertools.islice(task.stream(training.batch_size, split="train"), BASELINE_BATCHES))
        test = list(itertools.islice(task.stream(training.batch_size, split="test"), training.test_batches))
        found = baseline_scores(task, train, test)
        scores[name] = {baseline: round(values[task.metric], 3) + 0.0 for baseline, values in found.items()}
    return json.dumps(scores, indent=1) + "\n"


def budget(name: str, preset: str) -> Budget:
    """Return the training budget of a task's preset, before a model changes it."""
    return Budget.make(**{**DEFAULTS.get(preset, {}), **registry.get(name).preset_values(preset)[1]})


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
