"""The three flaws of the paper's Pathfinder, which the clean variant is rid of."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lrtasks.generators import make
from lrtasks.generators.pathfinder import RESOLUTIONS, image
from lrtasks.generators.pathfinder.placement import DEGREES
from lrtasks.generators.pathfinder.tables import kit


def layouts(res: int, variant: str, count: int) -> list[image.Layout]:
    rng, chosen = np.random.default_rng(0), make("pathfinder", res=res, variant=variant).settings
    return [image.lay_out(chosen, rng) for _ in range(count)]


@pytest.mark.parametrize("res", RESOLUTIONS[:3])
def test_clean_marks_are_at_the_same_place_on_every_path(res: int) -> None:
    """On the pixel where a first dash starts or a last one ends; the paper's distractor marks are off their dash."""
    ends = []
    for layout in layouts(res, "clean", 12):
        for dashes, mark in zip(layout.scene.others[: layout.distractors], layout.marks[2:], strict=True):
            ends.append([np.array_equal(mark, dashes[0, :2]), np.array_equal(mark, dashes[-1, :2])])
    assert np.sum(ends, axis=1).tolist() == [1] * len(ends)
    assert 0.3 < np.mean(ends, axis=0)[0] < 0.7
    beyond = []
    for layout in layouts(res, "paper", 12):
        for dashes, mark in zip(layout.scene.others[: layout.distractors], layout.marks[2:], strict=True):
            beyond.append(math.dist(mark, dashes[0, :2]) - layout.kit.margin)
        main = np.vstack([layout.origin_tips, layout.terminal_tips]).tolist()
        assert all(mark in main for mark in layout.marks[:2].tolist())
    assert np.abs(beyond).max() < 2.5
    assert abs(np.mean(beyond)) < 0.5


@pytest.mark.parametrize(
    ("res", "margin"), [(64, 1), (64, 2), (128, 2), (128, 3), (256, 4), pytest.param(512, 7, marks=pytest.mark.e2e)]
)
def test_clean_geometry_is_its_own_mirror_image(res: int, margin: int) -> None:
    """Turned by 90°, and mirrored, every step and every candidate is another one's: no direction is preferred."""
    shapes = kit(make("pathfinder", res=res, variant="clean").settings, margin).tables
    ring = {tuple(pixel) for pixel in shapes.ring.tolist()}
    assert ring == {(col, -row) for row, col in ring} == {(-row, col) for row, col in ring}
    for table in (shapes.head, shapes.back, np.roll(shapes.second, 180, axis=0)):
        degrees = table.astype(int)  # by degree -180..179
        turned_by_90 = np.roll(degrees, -90, axis=0)
        assert np.array_equal(turned_by_90, np.stack([degrees[:, 1], -degrees[:, 0]], axis=1))
        mirrored = np.roll(degrees[::-1], 1, axis=0)
        assert np.array_equal(mirrored, degrees * (-1, 1))
    advance = {
        tuple(pixel): tuple(step)
        for pixel, step in zip(shapes.ring.tolist(), shapes.advance[DEGREES:].tolist(), strict=True)
    }
    for (row, col), (down, right) in advance.items():
        assert advance[col, -row] == (right, -down)
        assert advance[-row, col] == (-down, right)
    paper = kit(make("pathfinder", res=res).settings, margin).tables
    assert not np.array_equal(np.sort(paper.ring[:, 0]), np.sort(-paper.ring[:, 0]))


def test_clean_paths_do_not_drift() -> None:
    def heading(variant: str) -> tuple[np.ndarray, np.ndarray]:
        angles = [layout.kit.angle[layout.scene.main[:, :, 2]] for layout in layouts(64, variant, 400)]
        means = np.array([(np.sin(angle).mean(), np.cos(angle).mean()) for angle in angles])
        return means.mean(axis=0), means.std(axis=0) / math.sqrt(len(means))

    mean, error = heading("clean")
    assert np.all(np.abs(mean) < 4 * error)
    mean, error = heading("paper")
    assert np.all(mean < -8 * error)


@pytest.mark.parametrize("res", RESOLUTIONS[:3])
def test_clean_path_pixels_are_visible(res: int) -> None:
    rng, faint = np.random.default_rng(0), []
    for _ in range(6):
        _, clean = make("pathfinder", res=res, variant="clean").picture(rng)
        assert clean.image[clean.target > 0].min() >= image.VISIBLE > 255 / 4
        _, paper = make("pathfinder", res=res).picture(rng)
        faint.append(np.mean(paper.image[paper.target > 0] < 255 / 10))
    assert np.mean(faint) > 0.5
