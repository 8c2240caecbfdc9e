"""Pathfinder: the law of the paper's generator, the three flaws that the clean variant is rid of, and bad settings."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pathfinder_statistics import compare, measure, reference, turned
from scipy import ndimage

import lrtasks
from lrtasks.errors import UsageError
from lrtasks.generators import make
from lrtasks.generators.pathfinder import compiling, image, placement, rendering
from lrtasks.generators.pathfinder.geometry import DEGREES, WEIGHT_UNIT, geometry
from lrtasks.generators.pathfinder.settings import RESOLUTIONS, Settings, complete
from lrtasks.generators.pathfinder.tables import empty

TASKS = ("pathfinder", "pathfinder-classification")
# what the fidelity test looks at, of all that benchmarks/pathfinder_fidelity.py reports
MEANS = (
    "P_label1",
    "frac_class1_given_label0",
    "frac_class1_given_label1",
    "frac_class2_given_label1",
    "frac_pixels_exactly_0",
    "frac_pixels_1_to_25",
    "frac_pixels_gt_0.5",
    "mean_intensity",
    "pre_normalisation_max",
    "marker_centre_value_uint8",
    "distractors_placed",
    "two_snakes_attempts_per_image",
    "tip_distance_origin_terminal",
    "origin_tips_distance",
    "terminal_tips_distance",
    "origin_tip0_yx.row",
    "origin_tip1_yx.col",
    "terminal_tip_yx.row",
    "terminal_tip_yx.col",
    "path_area_nonzero_px",
    "path_faint_fraction_le_0.1",
    "main_abs_turn_deg_all",
    "main_net_turn_deg",
    "distractor_abs_turn_deg_all",
    "distractor_marker_to_last_tip_px",
)


def of(res: int, variant: str = "paper", **given: Any) -> Settings:
    return complete(res, "clean" if variant == "clean" else "paper", given)


def layouts(chosen: Settings, count: int, seed: int = 0) -> list[image.Layout]:
    rng = np.random.default_rng(seed)
    return [image.lay_out(chosen, rng) for _ in range(count)]


# --- the law of the paper's generator


def test_means_are_those_of_the_reference() -> None:
    expected = reference(128)
    found = compare(measure(of(128), 300, seed=0), {name: expected[name] for name in MEANS})
    assert len(found) == 25
    assert not [comparison for comparison in found if not comparison.holds]


@pytest.mark.e2e
@pytest.mark.parametrize("res", [128, 256, 512])
def test_all_means_are_those_of_the_reference(res: int) -> None:
    found = compare(measure(of(res), 300, seed=1), reference(res))
    assert len(found) == 51
    assert not [comparison for comparison in found if not comparison.holds]


@pytest.fixture(scope="module")
def examples(data: Path) -> dict[str, np.ndarray]:
    """A few images of the paper's generator with what is known of them."""
    return dict(np.load(data / "pathfinder_reference.npz"))


EXAMPLES = [*((128, number) for number in range(8)), *((256, number) for number in range(4))]


@pytest.mark.parametrize(("res", "number"), EXAMPLES)
def test_reference_paths_are_redrawn_byte_for_byte(examples: dict[str, np.ndarray], res: int, number: int) -> None:
    """Some chain of our dashes, by our steps and candidates, is each path: all of its pixels, no other, its end."""
    known = {
        name.removesuffix(f"_{res}"): values[number] for name, values in examples.items() if name.endswith(str(res))
    }
    kit = image.kit(of(res), int(known["margin"]))
    target = np.zeros((res, res), int)
    for path in range(2):
        pixels = np.unpackbits(known[f"path{path}"]).reshape(res, res).astype(bool)
        drawn = [
            image.normalised(canvas, float(known["pre_norm_max"]))
            for chain in chains(kit, known, path, pixels)
            if (canvas := pasted(kit, chain)) is not None
        ]
        exact = [canvas for canvas in drawn if np.array_equal(canvas > 0, pixels)]
        assert exact
        # what differs lies under a mark or another path
        assert max(np.mean((canvas == known["image"])[pixels]) for canvas in exact) > 0.85
        both = known["label"] == 1 and known["marker_indices"][0] == path
        target = np.maximum(target, pixels * (2 if both else 1))
    assert np.array_equal(target, known["target"])


def pasted(kit: image.Kit, chain: list[tuple[int, int, int]]) -> np.ndarray:
    canvas = np.zeros((kit.settings.res, kit.settings.res), np.float32)
    image.paste_dashes(canvas, kit.patches, np.array(chain))
    return canvas


def chains(
    kit: image.Kit, known: dict[str, np.ndarray], path: int, pixels: np.ndarray
) -> Iterator[list[tuple[int, int, int]]]:
    """All chains of dashes from a path's known origin to its known end that stay within its pixels and the image."""
    shapes, res = kit.geometry, kit.settings.res
    origin, terminal = (tuple(known[name][path].tolist()) for name in ("origin_tips", "terminal_tips"))

    def possible(row: int, col: int, orientation: int) -> bool:
        if not (0 <= row < res and 0 <= col < res):
            return False
        dash = image.normalised(pasted(kit, [(row, col, orientation)]), float(known["pre_norm_max"]))
        return bool(np.all(dash <= known["image"]) and np.all(pixels[dash > 0]))

    def moved(point: tuple[int, int], step: np.ndarray) -> tuple[int, int]:
        return math.ceil(point[0] + step[0]), math.ceil(point[1] + step[1])

    def grown(chain: list[tuple[int, int, int]], pivot: tuple[int, int]) -> Iterator[list[tuple[int, int, int]]]:
        if len(chain) == kit.settings.dashes:
            if chain[-1][:2] == terminal:
                yield chain
            return
        last = chain[-1][2]
        pivot = moved(pivot, shapes.advance[last])
        for pixel in shapes.near[last, : shapes.near_count[last]].tolist():
            dash = (pivot[0] + int(shapes.ring[pixel, 0]), pivot[1] + int(shapes.ring[pixel, 1]), DEGREES + pixel)
            if possible(*dash):
                yield from grown([*chain, dash], pivot)

    for degree in range(DEGREES):
        if possible(*origin, degree):
            head = moved(origin, shapes.head[degree])
            yield from grown([(*origin, degree)], moved(head, shapes.back[degree]))


@pytest.mark.parametrize(("res", "number"), EXAMPLES)
def test_reference_marks_are_redrawn(examples: dict[str, np.ndarray], res: int, number: int) -> None:
    chosen = of(res)
    known = {name: examples[f"{name}_{res}"][number] for name in ("image", "marker_indices", "pre_norm_max")}
    for path, tips in zip(known["marker_indices"], ("origin_tips", "terminal_tips"), strict=True):
        row, col = examples[f"{tips}_{res}"][number, path].tolist()
        top, left, patch = rendering.mark(res, chosen.mark_radius, chosen.antialias, row, col)
        ours = image.normalised(np.maximum(patch, 0), float(known["pre_norm_max"]))
        theirs = known["image"][top : top + len(patch), left : left + len(patch)]
        assert np.all(ours <= theirs)
        assert np.mean((ours == theirs)[ours > 100]) > 0.7  # the rest lies under a dash


@pytest.mark.parametrize("position", [(0, 0), (3, 127), (126, 64), (64, 64)])
def test_mark_patch_is_a_crop_of_the_whole_image(position: tuple[int, int]) -> None:
    from PIL import Image

    res, radius, scale = 128, 2.1, 2
    rows, cols = np.ogrid[: res * scale, : res * scale]
    disc = (rows - position[0] * scale) ** 2 + (cols - position[1] * scale) ** 2 <= (radius * scale) ** 2
    whole = np.array(Image.fromarray(disc.astype(np.float32)).resize((res, res), Image.Resampling.LANCZOS))
    canvas = np.zeros_like(whole)
    top, left, patch = rendering.mark(res, radius, scale, *position)
    canvas[top : top + len(patch), left : left + len(patch)] = patch
    np.testing.assert_allclose(canvas, whole, atol=1e-7)


@pytest.mark.parametrize("variant", ["paper", "clean"])
def test_pictures_of_the_search_are_what_they_are_defined_to_be(variant: str) -> None:
    """Taken: maximum of the frame and the dashes' masks but the first path's last; reach: its dilation by a disc."""
    chosen = of(64, variant)
    kit = image.kit(chosen, 2)
    t = kit.tables
    canvas, scene = empty(t)
    placement.place(t, canvas, placement.seeded(np.arange(4, dtype=np.uint32)), scene)
    assert scene.counts[placement.TRIED] > 1, "nothing was taken back"
    placed = scene.others[: scene.counts[placement.DISTRACTORS]].reshape(-1, 3)
    dashes = np.vstack([scene.main[0, :-1], scene.main[1], placed])
    size = chosen.res + 2 * t.pad
    inside = slice(t.pad, -t.pad)
    taken = np.zeros((size, size), np.uint8)
    half = kit.patches.cover.shape[1] // 2
    for row, col, orientation in np.add(dashes, (t.pad, t.pad, 0)):
        view = taken[row - half : row + half + 1, col - half : col + half + 1]
        np.maximum(view, kit.patches.cover[orientation], out=view)
    framed = np.pad(taken[inside, inside][1:-1, 1:-1], 1, constant_values=255)
    assert np.array_equal(canvas.cover.reshape(size, size)[inside, inside], framed)
    axis = np.arange(-2, 3)
    disc = axis[:, None] ** 2 + axis**2 <= 4
    dilated = ndimage.grey_dilation(framed, footprint=disc, mode="constant", cval=0)
    assert np.array_equal(canvas.reach.reshape(size, size)[inside, inside], dilated)


def test_dashes_collide_where_they_take_1_8_of_a_pixel() -> None:
    kit = image.kit(of(64), 1)
    t, rng = kit.tables, np.random.default_rng(0)
    canvas, _ = empty(t)
    size = int(math.sqrt(len(canvas.cover)))
    half, centre = t.cover_half, t.pad + 32
    at = centre * (size + 1)
    outcomes = []
    for orientation in rng.integers(len(t.cover), size=200):
        canvas.cover[:] = rng.integers(190, 230, size=size * size)
        view = canvas.cover.reshape(size, size)[centre - half : centre + half + 1, centre - half : centre + half + 1]
        highest = (view / 255 + kit.patches.cover[orientation] / 255).max()
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
    kit = image.kit(of(64), 2)
    t = kit.tables
    canvas, _ = empty(t)
    size = t.res + 2 * t.pad
    cover = canvas.cover.reshape(size, size)
    cover[t.pad : -t.pad, t.pad : -t.pad] = 255
    cover[t.pad + 30 : t.pad + 30 + free, t.pad + 20 : t.pad + 20 + free] = placement.FREE
    half = t.cover_half
    for degree in (0, 45, 200):
        allowed = set()
        for row, col in itertools.product(range(15, 60), repeat=2):
            # shifted by a pixel, and pixels up to L + m from there
            solid = np.argwhere(kit.patches.cover[degree] == 255) - half
            solid = solid[(np.abs(solid + 1) <= t.cover_half - 2).all(axis=1)] + 1 + (row, col)
            if all(cover[i + t.pad, j + t.pad] <= placement.FREE for i, j in solid):
                allowed.add((row, col))
        state, first = placement.seeded(np.arange(4, dtype=np.uint32)), np.array([0, 0, degree])
        drawn = set()
        for _ in range(10 * len(allowed) + 1):
            if placement._start_pixel(t, canvas.cover, state, first):
                drawn.add((int(first[0]), int(first[1])))
        assert drawn == allowed
        assert bool(allowed) == bool(free)


def test_turning_weights() -> None:
    shapes = image.kit(of(128), 3).geometry
    for orientation in (0, 180, 359, 380):
        targets = np.arctan2(*shapes.ring.T)
        turn = np.abs(turned_between(shapes.angle[orientation], targets))
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


# --- samples


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
    x, target, meta = one.image(np.random.default_rng(5))
    sample = other.sample(np.random.default_rng(5))
    assert np.array_equal(sample.x, one.pixels(x))
    assert sample.y.tolist() == [int(2 in target)] == [meta["label"]]


def test_slices_and_floor() -> None:
    task = make("pathfinder", res=64)
    batch = task.batch(range(6))
    slices = task.slices(batch)
    assert set(slices) == {"label", "margin", "distractors"}
    assert {value.shape for value in slices.values()} == {(6, 1)}
    floor = task.floors()["all-background"]
    floor.fit([batch])
    assert not floor.predict(batch).any()


SMALL = {"res": 64, "dashes": 6, "gap_margins": (1, 2), "distractors": 4, "seed_distance": 8}
DIGEST = f"""
import hashlib
from lrtasks.generators import make
digest = hashlib.blake2b()
for variant in ("paper", "clean"):
    batch = make("pathfinder", variant=variant, **{SMALL!r}).batch(range(4))
    digest.update(batch.x.tobytes() + batch.y.tobytes())
print(digest.hexdigest())
"""


def run(code: str, **environment: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return done.stdout.strip(), done.stderr


def test_plain_python_makes_the_same_images() -> None:
    assert compiling.COMPILED
    digest = hashlib.blake2b()
    for variant in ("paper", "clean"):
        batch = make("pathfinder", variant=variant, **SMALL).batch(range(4))
        digest.update(batch.x.tobytes() + batch.y.tobytes())
    found, said = run(f"{DIGEST}\nimport sys; assert 'numba' not in sys.modules", LRTASKS_NO_NUMBA="1")
    assert found == digest.hexdigest()
    assert "plain Python" in said


@pytest.mark.e2e
def test_compilation_is_announced_and_kept(tmp_path: Path) -> None:
    first, said = run(DIGEST, NUMBA_CACHE_DIR=str(tmp_path))
    again, silent = run(DIGEST, NUMBA_CACHE_DIR=str(tmp_path))
    assert first == again
    assert said.count("compiling the pathfinder generator, once") == 1
    assert not silent


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


# --- the clean variant


@pytest.mark.parametrize("res", RESOLUTIONS[:3])
def test_clean_marks_are_at_the_same_place_on_every_path(res: int) -> None:
    """On the pixel where a first dash starts or a last one ends; the paper's distractor marks are off their dash."""
    ends = []
    for layout in layouts(of(res, "clean"), 12):
        for dashes, mark in zip(layout.scene.others[: layout.distractors], layout.marks[2:], strict=True):
            ends.append([np.array_equal(mark, dashes[0, :2]), np.array_equal(mark, dashes[-1, :2])])
    assert np.sum(ends, axis=1).tolist() == [1] * len(ends)
    assert 0.3 < np.mean(ends, axis=0)[0] < 0.7
    beyond = []
    for layout in layouts(of(res), 12):
        for dashes, mark in zip(layout.scene.others[: layout.distractors], layout.marks[2:], strict=True):
            beyond.append(math.dist(mark, dashes[0, :2]) - layout.kit.margin)
        main = np.vstack([layout.origin_tips, layout.terminal_tips]).tolist()
        assert all(mark in main for mark in layout.marks[:2].tolist())
    assert np.abs(beyond).max() < 2.5
    assert abs(np.mean(beyond)) < 0.5


@pytest.mark.parametrize(("res", "margin"), [(64, 1), (64, 2), (128, 2), (128, 3), (256, 4), (512, 7)])
def test_clean_geometry_is_its_own_mirror_image(res: int, margin: int) -> None:
    """Turned by 90°, and mirrored, every step and every candidate is another one's: no direction is preferred."""
    shapes = geometry(of(res, "clean"), margin)
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
    paper = geometry(of(res), margin)
    assert not np.array_equal(np.sort(paper.ring[:, 0]), np.sort(-paper.ring[:, 0]))


def test_clean_paths_do_not_drift() -> None:
    def heading(variant: str) -> tuple[np.ndarray, np.ndarray]:
        angles = [layout.kit.geometry.angle[layout.scene.main[:, :, 2]] for layout in layouts(of(64, variant), 400)]
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
        picture, target, _ = make("pathfinder", res=res, variant="clean").image(rng)
        assert picture[target > 0].min() >= image.VISIBLE > 255 / 4
        picture, target, _ = make("pathfinder", res=res).image(rng)
        faint.append(np.mean(picture[target > 0] < 255 / 10))
    assert np.mean(faint) > 0.5


# --- settings


@settings(max_examples=12, deadline=None)
@given(
    given_settings=st.fixed_dictionaries(
        {
            "res": st.integers(70, 90),
            "variant": st.sampled_from(["paper", "clean"]),
            "dashes": st.integers(2, 6),
            "distractor_dashes": st.integers(1, 3),
            "distractors": st.integers(0, 8),
            "dash_length": st.integers(2, 7),
            "dash_thickness": st.sampled_from([1.0, 1.5, 3.0]),
            "gap_margins": st.sampled_from([(1,), (3,), (1, 2)]),
            "continuity": st.floats(1, 4),
            "seed_distance": st.integers(8, 10),
            "antialias": st.just(2),
            "mark_radius": st.floats(0.5, 5),
            "contrast": st.floats(0.5, 1),
            "padding": st.integers(1, 3),
        }
    )
)
def test_any_setting_is_kept(given_settings: dict[str, Any]) -> None:
    task = make("pathfinder", **given_settings)
    chosen = task.settings
    assert make("pathfinder", **task.parameters()) == task
    layout, picture = task.picture(np.random.default_rng(0))
    assert layout.kit.margin in chosen.gap_margins
    assert layout.scene.main.shape == (2, chosen.dashes, 3)
    assert layout.distractors <= chosen.distractors
    assert layout.scene.others.shape[1] == chosen.distractor_dashes
    assert picture.image.shape == (chosen.res, chosen.res)
    for dashes in (*layout.scene.main, *layout.scene.others[: layout.distractors]):
        turns = turned(layout.kit.geometry.angle[dashes[:, 2]])
        assert np.all(np.abs(turns) <= 90 / chosen.continuity)
        assert np.all((dashes[1:, :2] >= chosen.padding) & (dashes[1:, :2] < chosen.res - chosen.padding))
    assert (2 in picture.target) == (layout.label == 1)


def test_table_settings_are_shown_and_can_be_changed() -> None:
    task = make("pathfinder", res=256)
    assert task.parameters()["gap_margins"] == [4]
    assert task.parameters()["continuity"] == 2.2
    assert make("pathfinder", res=200).settings.dash_length == make("pathfinder", res=128).settings.dash_length
    assert make("pathfinder", res=128, dashes=9).settings.distractor_dashes == 3
    assert make("pathfinder", res=128, dashes=9, distractor_dashes=5).settings.distractor_dashes == 5


@pytest.mark.parametrize(
    ("given_settings", "message"),
    [
        ({"res": 0}, r"res must be at least 1 and at most 2_048, found 0"),
        ({"res": -128}, "res must be at least 1 .* found -128"),
        ({"res": 12.5}, "res must be a whole number, found 12.5"),
        ({"variant": "cleen"}, "variant must be one of paper, clean, found 'cleen'; did you mean 'clean'"),
        ({"dashs": 3}, "no parameter 'dashs'; did you mean 'dashes'"),
        ({"dashes": 1}, "dashes must be at least 2 .* found 1"),
        ({"dash_length": 1}, "dash_length must be at least 2 .* found 1"),
        ({"gap_margins": []}, "gap_margins must hold at least one margin, found none"),
        ({"gap_margins": [2, 0]}, "gap_margins must be at least 1 .* found 0"),
        ({"continuity": 0.5}, "continuity must be at least 1 .* found 0.5"),
        ({"contrast": 1.5}, "contrast must be at least 0.5 and at most 1, found 1.5"),
        ({"mark_radius": 0}, "mark_radius must be above 0 .* found 0"),
        ({"dash_thickness": 1.3}, r"dash_thickness × antialias must be a whole number .* found 1.3 × 2 = 2.6"),
        ({"res": 40}, r"seed_distance=10 is too large for res=40: .* 0 pixels .* a dash with its margins needs 18"),
        ({"padding": 60}, "padding=60 is too large for res=128"),
        ({"continuity": 30}, "continuity=30 is too large for dash_length=5 and gap margin 2: .* at most 11.00"),
        ({"seed_distance": 30}, "seed_distance=30 is too large for res=128"),
    ],
)
@pytest.mark.parametrize("name", TASKS)
def test_bad_settings(name: str, given_settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        make(name, **given_settings)
    assert "\n" not in str(caught.value)


def test_paths_that_cannot_fit_end_in_an_error() -> None:
    task = make("pathfinder", res=64, dashes=40, gap_margins=[2])
    message = "no two paths found for res=64 .* dashes=40 of dash_length=4 with a gap margin of 2 do not fit"
    with pytest.raises(UsageError, match=message):
        task.batch([0])
