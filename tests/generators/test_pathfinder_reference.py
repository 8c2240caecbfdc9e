"""Pathfinder has the distribution of the paper's generator: statistics of many images, and some images rebuilt."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from pathfinder_statistics import compare, measure, reference

from lrtasks.generators import make
from lrtasks.generators.pathfinder import image
from lrtasks.generators.pathfinder.placement import DEGREES
from lrtasks.generators.pathfinder.tables import Kit, kit

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


def test_means_are_those_of_the_reference() -> None:
    expected = reference(128)
    found = compare(
        measure(make("pathfinder", res=128).settings, 300, seed=0), {name: expected[name] for name in MEANS}
    )
    assert len(found) == 25
    assert not [comparison for comparison in found if not comparison.holds]


@pytest.mark.e2e
@pytest.mark.parametrize("res", [128, 256, 512])
def test_all_means_are_those_of_the_reference(res: int) -> None:
    found = compare(measure(make("pathfinder", res=res).settings, 300, seed=1), reference(res))
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
    shared = kit(make("pathfinder", res=res).settings, int(known["margin"]))
    target = np.zeros((res, res), int)
    for path in range(2):
        pixels = np.unpackbits(known[f"path{path}"]).reshape(res, res).astype(bool)
        drawn = [
            image.normalised(canvas, float(known["pre_norm_max"]))
            for chain in chains(shared, known, path, pixels)
            if (canvas := pasted(shared, chain)) is not None
        ]
        exact = [canvas for canvas in drawn if np.array_equal(canvas > 0, pixels)]
        assert exact
        # what differs lies under a mark or another path
        assert max(np.mean((canvas == known["image"])[pixels]) for canvas in exact) > 0.85
        both = known["label"] == 1 and known["marker_indices"][0] == path
        target = np.maximum(target, pixels * (2 if both else 1))
    assert np.array_equal(target, known["target"])


def pasted(shared: Kit, chain: list[tuple[int, int, int]]) -> np.ndarray:
    canvas = np.zeros((shared.settings.res, shared.settings.res), np.float32)
    image.paste_dashes(canvas, shared.ink, shared.ink_box, np.array(chain))
    return canvas


def chains(
    shared: Kit, known: dict[str, np.ndarray], path: int, pixels: np.ndarray
) -> Iterator[list[tuple[int, int, int]]]:
    """All chains of dashes from a path's known origin to its known end that stay within its pixels and the image."""
    shapes, res = shared.tables, shared.settings.res
    origin, terminal = (tuple(known[name][path].tolist()) for name in ("origin_tips", "terminal_tips"))

    def possible(row: int, col: int, orientation: int) -> bool:
        if not (0 <= row < res and 0 <= col < res):
            return False
        dash = image.normalised(pasted(shared, [(row, col, orientation)]), float(known["pre_norm_max"]))
        return bool(np.all(dash <= known["image"]) and np.all(pixels[dash > 0]))

    def moved(point: tuple[int, int], step: np.ndarray) -> tuple[int, int]:
        return math.ceil(point[0] + step[0]), math.ceil(point[1] + step[1])

    def grown(chain: list[tuple[int, int, int]], pivot: tuple[int, int]) -> Iterator[list[tuple[int, int, int]]]:
        if len(chain) == shared.settings.dashes:
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
    chosen = make("pathfinder", res=res).settings
    known = {name: examples[f"{name}_{res}"][number] for name in ("image", "marker_indices", "pre_norm_max")}
    for path, tips in zip(known["marker_indices"], ("origin_tips", "terminal_tips"), strict=True):
        row, col = examples[f"{tips}_{res}"][number, path].tolist()
        top, left, patch = image.mark(res, chosen.mark_radius, chosen.antialias, row, col)
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
    top, left, patch = image.mark(res, radius, scale, *position)
    canvas[top : top + len(patch), left : left + len(patch)] = patch
    np.testing.assert_allclose(canvas, whole, atol=1e-7)
