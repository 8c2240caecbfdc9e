"""The sample that stands for each task: its parameters, its picture, and the floors at the preset ``small``."""

from __future__ import annotations

import io
import itertools
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
from lrtasks.evaluation.presets import resolve
from PIL import Image

from lrtasks.evaluation.scoring import BASELINE_BATCHES, baseline_scores
from lrtasks.generators import Task, make, registry
from lrtasks.generators.preview import preview

TASKS = Path(__file__).parents[1] / "tasks"
FLOORS = TASKS / "floors.json"
SHORT_EXPRESSION = {"setting": "small", "min_length": 10, "max_length": 24}
PARAMETERS: dict[str, dict[str, Any]] = {
    "chomsky": {"lengths": (9, 9)},
    "copying": {"string": (8, 8)},
    "dyck": {"kinds": 3, "depth": 4, "length": 16, "close": "generic"},
    "flip-flop": {"instructions": 10},
    "induction-heads": {"length": 12},
    "listops": SHORT_EXPRESSION,
    "listops-root": SHORT_EXPRESSION,
    "mqar": {"length": 16, "pairs": 2, "vocab": 32},
    "pathfinder": {"res": 64},
    "pathfinder-classification": {"res": 64},
    "recall": {"length": 12},
    "select": {"length": 64, "marks": 8},
    "select-fixed": {"length": 64, "marks": 8},
    "selective-copying": {"noise": 8, "memorise": 3},
    "stack": {"stacks": 2, "values": 4, "operations": 10},
    "word-problem": {"length": 8},
}
"""Small enough to be taken in at a glance; the others have a length of 64."""

WIDTH, DPI, COLOURS = 7.5, 130, 64


def example(name: str) -> Task:
    """The task at the parameters of its example."""
    return make(name, **PARAMETERS.get(name, {"length": 64}))


def text(name: str) -> str | None:
    """The first sample as text, for tasks that are read."""
    task = example(name)
    return task.text(task.batch([0]), 0)


def command(name: str) -> str:
    """The command that shows the example."""
    options = [word for key, value in PARAMETERS.get(name, {"length": 64}).items() for word in (_option(key), value)]
    return shlex.join(["lrtasks", "preview", name, *map(str, options), "--samples", "1"])


def picture(name: str) -> Image.Image:
    """The first sample as ``lrtasks preview`` draws it, at the width of a page, in few colours for a small file."""
    figure, drawn = preview(example(name), samples=1), io.BytesIO()
    figure.suptitle("")
    figure.set_size_inches(WIDTH, WIDTH * figure.get_figheight() / figure.get_figwidth())
    figure.savefig(drawn, format="png", dpi=DPI)
    return Image.open(drawn).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)


def pictures() -> dict[Path, Image.Image]:
    """Pictures by file, of the tasks that are looked at rather than read."""
    return {TASKS / "pictures" / f"{name}.png": picture(name) for name in registry.built_in() if text(name) is None}


def same_picture(one: Image.Image, other: Image.Image) -> bool:
    """Whether two pictures show the same, up to how fonts and lines are smoothed."""
    if one.size != other.size:
        return False
    left, right = (np.asarray(image.convert("RGB"), dtype=np.float64) for image in (one, other))
    return float(np.abs(left - right).mean()) < 2


def baselines() -> str:
    """Floors of every task at the preset ``small``, as JSON: the scores that a run of seed 0 notes."""
    scores = {}
    for name in registry.built_in():
        plan = resolve(name, None, preset="small")
        size, tested = plan.budget.batch_size, plan.budget.test_batches
        train = list(itertools.islice(plan.task.stream(size, split="train"), BASELINE_BATCHES))
        test = list(itertools.islice(plan.task.stream(size, split="test"), tested))
        found = baseline_scores(plan.task, train, test)
        scores[name] = {floor: round(values[plan.task.metric], 3) + 0.0 for floor, values in found.items()}
    return json.dumps(scores, indent=1) + "\n"


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
