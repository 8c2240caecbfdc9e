"""The search for Pathfinder's paths, part by part, against plain definitions."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import ndimage

from lrtasks.generators import make
from lrtasks.generators.pathfinder import placement, tables
from lrtasks.generators.pathfinder.tables import WEIGHT_UNIT


@pytest.mark.parametrize("variant", ["paper", "clean"])
def test_pictures_of_the_search_are_what_they_are_defined_to_be(variant: str) -> None:
    """Taken: maximum of the frame and the dashes' masks but the first path's last; reach: its dilation by a disc."""
    chosen = make("pathfinder", res=64, variant=variant).settings
    kit = tables.kit(chosen, 2)
    t = kit.tables
    canvas, scene = placement.empty(t)
    placement.place(t, canvas, placement.seeded(np.arange(4, dtype=np.uint32)), scene)
    assert scene.counts[placement.TRIED] > 1, "nothing was taken back"
    placed = scene.others[: scene.counts[placement.DISTRACTORS]].reshape(-1, 3)
    dashes = np.vstack([scene.main[0, :-1], scene.main[1], placed])
    size = t.stride
    inside = slice(t.pad, -t.pad)
    taken = np.zeros((size, size), np.uint8)
    half = kit.cover.shape[1] // 2
    for row, col, orientation in np.add(dashes, (t.pad, t.pad, 0)):
        view = taken[row - half : row + half + 1, col - half : col + half + 1]
        np.maximum(view, kit.cover[orientation], out=view)
    framed = np.pad(taken[inside, inside][1:-1, 1:-1], 1, constant_values=255)
    assert np.array_equal(canvas.cover.reshape(size, size)[inside, inside], framed)
    axis = np.arange(-2, 3)
    disc = axis[:, None] ** 2 + axis**2 <= 4
    dilated = ndimage.grey_dilation(framed, footprint=disc, mode="constant", cval=0)
    assert np.array_equal(canvas.reach.reshape(size, size)[inside, inside], dilated)


def test_dashes_collide_where_they_take_1_8_of_a_pixel() -> None:
    kit = tables.kit(make("pathfinder", res=64).settings, 1)
    t, rng = kit.tables, np.random.default_rng(0)
    canvas, _ = placement.empty(t)
    size = int(math.sqrt(len(canvas.cover)))
    half, centre = kit.cover.shape[1] // 2, t.pad + 32
    at = centre * (size + 1)
    outcomes = []
    for orientation in rng.integers(len(kit.cover), size=200):
        canvas.cover[:] = rng.integers(190, 230, size=size * size)
        view = canvas.cover.reshape(size, size)[centre - half : centre + half + 1, centre - half : centre + half + 1]
        highest = (view / 255 + kit.cover[orientation] / 255).max()
        outcomes.append(placement._fits(t, canvas.cover, at, orientation))
        canvas.cover[:] = np.minimum(canvas.cover, 203)
        assert placement._fits(t, canvas.cover, at, orientation)
        assert outcomes[-1] == (highest < 1.8 - 1e-9) or abs(highest - 1.8) < 1e-6
    canvas.cover[at] = 255
    assert not all(outcomes)
    assert not placement._fits(t, canvas.cover, at, 0)


@pytest.mark.parametrize("free", [0, 20])
def test_start_pixels_are_uniform_among_the_free_ones(free: int) -> None:
    """Also when so few are free that blind draws miss them, and when there is none."""
    kit = tables.kit(make("pathfinder", res=64).settings, 2)
    t = kit.tables
    canvas, _ = placement.empty(t)
    size = t.res + 2 * t.pad
    cover = canvas.cover.reshape(size, size)
    cover[t.pad : -t.pad, t.pad : -t.pad] = 255
    cover[t.pad + 30 : t.pad + 30 + free, t.pad + 20 : t.pad + 20 + free] = placement.FREE
    half = kit.cover.shape[1] // 2
    for degree in (0, 45, 200):
        allowed = set()
        for row, col in itertools.product(range(15, 60), repeat=2):
            # shifted by a pixel, and pixels up to L + m from there
            solid = np.argwhere(kit.cover[degree] == 255) - half
            solid = solid[(np.abs(solid + 1) <= half - 2).all(axis=1)] + 1 + (row, col)
            if all(cover[i + t.pad, j + t.pad] <= placement.FREE for i, j in solid):
                allowed.add((row, col))
        state, first = placement.seeded(np.arange(4, dtype=np.uint32)), np.array([0, 0, degree])
        drawn = set()
        for _ in range(10 * len(allowed) + 1):
            if placement._start_pixel(t, canvas.cover, state, first):
                drawn.add((int(first[0]), int(first[1])))
        assert drawn == allowed
        assert bool(allowed) == bool(free)


def test_distractors_need_one_free_pixel_in_a_hundred() -> None:
    """The pixels around the image, none of which is taken, do not count."""
    t = tables.kit(make("pathfinder", res=64).settings, 2).tables
    canvas, _ = placement.empty(t)
    picture = canvas.cover.reshape(t.stride, t.stride)[t.pad : -t.pad, t.pad : -t.pad]
    for free in (40, 41):  # of 4,096
        picture[:] = placement.FREE + 1
        picture[-1, -free:] = placement.FREE
        assert placement._has_room(t, canvas.cover) == (free == 41)


def test_turning_weights() -> None:
    kit = tables.kit(make("pathfinder", res=128).settings, 3)
    shapes = kit.tables
    for orientation in (0, 180, 359, 380):
        targets = np.arctan2(*shapes.ring.T)
        turn = np.abs(turned_between(kit.angle[orientation], targets))
        expected = np.cos(np.minimum(1.8 * turn, np.pi / 2)) ** 2
        dense = np.zeros(len(targets))
        count = shapes.near_count[orientation]
        dense[shapes.near[orientation, :count]] = shapes.weight[orientation, :count] / WEIGHT_UNIT
        np.testing.assert_allclose(dense, expected, atol=1e-6)


def turned_between(angle: float, targets: np.ndarray) -> np.ndarray:
    return np.angle(np.exp(1j * (targets - angle)))


def test_random_numbers_are_those_of_sfc32() -> None:
    words = np.random.default_rng(0).integers(2**32, size=4, dtype=np.uint32)
    a, b, c, counter = (int(word) for word in words)
    mask, expected = 2**32 - 1, []
    for _ in range(200):
        mixed = (a + b + counter) & mask
        counter = (counter + 1) & mask
        a, b, c = b ^ (b >> 9), (c + (c << 3)) & mask, (((c << 21) | (c >> 11)) + mixed) & mask
        expected.append(mixed >> 1)
    state = placement.seeded(words)
    pairs = zip(expected[32::2], expected[33::2], strict=True)
    assert [placement.below(state, 10**12) for _ in range(84)] == [(one << 31 | two) % 10**12 for one, two in pairs]
