"""Pictures of tasks: written, not blank, one panel for each thing shown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lrtasks.errors import UsageError
from lrtasks.generators import Batch, Sample, Task, make
from lrtasks.generators.preview import preview
from lrtasks.results import style
from lrtasks.spec import Spec


@dataclass(frozen=True)
class Tokens(Task):
    """Six tokens and their classes, the first two not labelled."""

    name = "tokens"

    @property
    def input(self) -> Spec:
        return Spec("token", 6, 3)

    target = input

    def sample(self, rng: np.random.Generator) -> Sample:
        tokens = rng.integers(3, size=6)
        return Sample(tokens, np.where(np.arange(6) < 2, -100, tokens))


class Readable(Tokens):
    """The same as text that a formula parser would choke on."""

    def text(self, batch: Batch, index: int) -> str:
        return f"$_{batch.x[index]}"


class Picture(Tokens):
    """The same as an image of two rows."""

    def image_shape(self) -> tuple[int, int]:
        return 2, 3


class PictureOfOneClass(Picture):
    """The same with one class for the whole picture."""

    @property
    def target(self) -> Spec:
        return Spec("token", 1, 3, pooled=True)

    def sample(self, rng: np.random.Generator) -> Sample:
        return Sample(rng.integers(3, size=6), np.array([2]))


@pytest.mark.parametrize("extension", ["png", "PNG", "pdf", "svg"])
def test_picture_is_written(tmp_path: Path, extension: str) -> None:
    path = tmp_path / f"shift.{extension}"
    style.save(preview(make("shift", length=64), samples=1), path)
    assert path.stat().st_size > 5000


@pytest.mark.parametrize(
    "task", [make("cumsum", length=32), make("mips", length=32), Tokens(), Readable(), Picture()], ids=repr
)
def test_picture_is_not_blank(tmp_path: Path, task: Task) -> None:
    style.save(preview(task, samples=1), tmp_path / "task.png")
    with Image.open(tmp_path / "task.png") as image:
        pixels = np.asarray(image.convert("RGB"))
    assert pixels.std() > 1
    assert not np.array_equal(pixels[:, : pixels.shape[1] // 2], pixels[:, pixels.shape[1] // 2 :])


@pytest.mark.parametrize(
    ("task", "panels"),
    [(make("select", length=32), 6), (Tokens(), 6), (Picture(), 6), (Readable(), 3)],
    ids=["signal", "token", "image", "text"],
)
def test_each_sample_has_its_panels(task: Task, panels: int) -> None:
    assert len(preview(task, samples=3).axes) == panels


def test_panels_show_the_samples() -> None:
    task = make("select", length=32, marks=5)
    batch = task.batch(range(2), 3)
    panels = preview(task, samples=2, seed=3).axes
    for channel, line in enumerate(panels[2].lines):
        assert np.array_equal(line.get_ydata(), batch.x[1, :, channel])
    (line,) = panels[3].lines
    assert np.array_equal(line.get_ydata(), batch.y[1, :, 0])
    assert np.asarray(line.get_xdata()).tolist() == list(range(37, 42)), (
        "the target stands at the last positions of the input"
    )


def test_wide_signals_are_heat_maps_and_ignored_labels_are_left_out() -> None:
    task = make("shift", length=32)
    (image,) = preview(task, samples=1).axes[1].images
    assert np.array_equal(np.asarray(image.get_array()), task.batch([0]).y[0].T)
    (points,) = preview(Tokens(), samples=1).axes[1].lines
    assert np.asarray(points.get_xdata()).tolist() == [2, 3, 4, 5]


def test_images_stand_beside_their_classes() -> None:
    batch = Picture().batch([0])
    left, right = preview(Picture(), samples=1).axes
    assert np.array_equal(np.asarray(left.images[0].get_array()), batch.x[0].reshape(2, 3))
    legend = right.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["class 0", "class 1", "class 2"]


def test_an_image_with_one_class_stands_beside_that_class() -> None:
    left, right = preview(PictureOfOneClass(), samples=1).axes
    assert np.asarray(left.images[0].get_array()).shape == (2, 3)
    assert [text.get_text() for text in right.texts] == ["class 2"]


@pytest.mark.parametrize("samples", [0, 17])
def test_number_of_samples_is_limited(samples: int) -> None:
    with pytest.raises(UsageError, match=f"samples must be a whole number in 1..16, found {samples}"):
        preview(make("shift", length=32), samples=samples)
