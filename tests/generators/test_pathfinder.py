"""Pathfinder's samples: contract, targets, and the same images whether compiled or not."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import lrtasks
from lrtasks import compiling
from lrtasks.generators import make
from lrtasks.generators.tables import from_bytes

TASKS = ("pathfinder", "pathfinder-classification")


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize(("name", "variant"), [(TASKS[0], "paper"), (TASKS[1], "clean")])
def test_contract(name: str, variant: str) -> None:
    lrtasks.check_task(make(name, res=64, variant=variant))


@pytest.mark.parametrize("variant", ["paper", "clean"])
def test_target_says_what_the_marks_say(variant: str) -> None:
    task = make("pathfinder", res=64, variant=variant)
    batch = task.batch(range(40))
    assert batch.meta is not None
    assert set(batch.meta["label"]) == {0, 1}
    for index in range(40):
        meta = {name: values[index] for name, values in batch.meta.items()}
        image_of = np.rint((batch.x[index] * 0.5 + 0.5) * 255).reshape(64, 64)
        target = batch.y[index].reshape(64, 64)
        assert (image_of.min(), image_of.max()) == (0, 255)
        origin, terminal = meta["marked_paths"]
        assert (origin == terminal) == meta["label"] == (2 in target)
        assert np.array_equal(meta["marks"][0], meta["origin_tips"][origin])
        assert np.array_equal(meta["marks"][1], meta["terminal_tips"][terminal])
        assert meta["main_mark"].tolist() == [True, True] + [False] * meta["distractors"]
        assert len(meta["marks"]) == 2 + meta["distractors"]
        for row, col in meta["marks"]:
            assert image_of[row, col] > 150
        for path, tips in enumerate(zip(meta["origin_tips"], meta["terminal_tips"], strict=True)):
            own = 2 if meta["label"] and origin == path else 1
            for row, col in tips:  # the tip may be under the other path
                assert own in target[max(row - 1, 0) : row + 2, max(col - 1, 0) : col + 2]


def test_both_tasks_read_the_same_generator() -> None:
    one, other = (make(name, res=64) for name in TASKS)
    layout, picture = one.picture(np.random.default_rng(5))
    sample = other.sample(np.random.default_rng(5))
    assert np.array_equal(sample.x, from_bytes(picture.image).reshape(-1, 1))
    assert sample.y.tolist() == [int(2 in picture.target)] == [layout.label]


def test_slices_and_floor() -> None:
    task = make("pathfinder", res=64)
    batch = task.batch(range(6))
    slices = task.slices(batch)
    assert set(slices) == {"label", "margin", "distractors"}
    assert {name: values.tolist() for name, values in slices.items()} == {
        name: batch.meta[name][:, None].tolist() for name in slices
    }
    assert len({tuple(values[:, 0].tolist()) for values in slices.values()}) == 3
    floor = task.baselines()["all-background"]
    floor.fit([batch])
    assert not floor.predict(batch).any()


SMALL = {"res": 64, "dashes": 6, "gap_margins": (1, 2), "distractors": 4, "seed_distance": 8}
DIGEST = f"""
import hashlib
from lrtasks.generators import make
digest = hashlib.blake2b()
for variant in ("paper", "clean"):
    batch = make("pathfinder", variant=variant, **{SMALL!r}).batch(range(2))
    digest.update(batch.x.tobytes() + batch.y.tobytes())
print(digest.hexdigest())
"""


def run(code: str, **environment: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return done.stdout.strip(), done.stderr


def test_plain_python_makes_the_same_images() -> None:
    digest = hashlib.blake2b()
    for variant in ("paper", "clean"):
        batch = make("pathfinder", variant=variant, **SMALL).batch(range(2))
        digest.update(batch.x.tobytes() + batch.y.tobytes())
    found, said = run(DIGEST, NUMBA_DISABLE_JIT="1")
    assert found == digest.hexdigest()
    assert not said


def test_without_a_folder_for_the_cache_it_compiles_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    import numba

    def njit(cache: bool = False, **options: Any) -> Any:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return original(**options)

    original = numba.njit
    monkeypatch.setattr(numba, "njit", njit)
    assert compiling.compiled(lambda number: number + 1)(2) == 3


def test_tables_are_made_when_the_first_image_is() -> None:
    code = "import sys; from lrtasks.generators import make; make('pathfinder').key(0, 'val')"
    assert run(f"{code}; print([name for name in ('numba', 'PIL', 'scipy') if name in sys.modules])")[0] == "[]"


def test_an_inner_function_is_called_by_compiled_functions_and_has_no_entry_for_python() -> None:
    inner = compiling.compiled(lambda number: number + 1, inner=True)
    assert compiling.compiled(lambda number: 2 * inner(number))(2) == 6
    assert inner.targetoptions["no_cpython_wrapper"]
