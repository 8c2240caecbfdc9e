"""Statistics of Pathfinder images, named as in ``tests/data/pathfinder_stats.json``; for tests and benchmarks."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy import ndimage

from lrtasks.generators.pathfinder import Settings
from lrtasks.generators.pathfinder.image import Layout, Picture, draw, lay_out
from lrtasks.generators.pathfinder.placement import TRIED

REFERENCE = Path(__file__).parents[1] / "data" / "pathfinder_stats.json"
EIGHT = np.ones((3, 3), int)
Values = dict[str, list[float]]


class Comparison(NamedTuple):
    """One mean against the reference: ours, theirs, the difference allowed, and how many samples we have."""

    name: str
    ours: float
    theirs: float
    allowed: float
    count: int

    @property
    def holds(self) -> bool:
        return abs(self.ours - self.theirs) <= self.allowed


def reference(res: int) -> dict[str, dict[str, float]]:
    """Mean, standard deviation and number of each statistic of the DLR paper's generator."""
    return json.loads(REFERENCE.read_text())[str(res)]


def measure(settings: Settings, images: int, seed: int) -> Values:
    """All statistics of ``images`` images drawn from one stream."""
    values: Values = defaultdict(list)
    rng = np.random.default_rng(seed)
    for _ in range(images):
        layout = lay_out(settings, rng)
        picture = draw(layout)
        _whole_image(values, layout, picture)
        _main_paths(values, layout, picture)
        _distractors(values, layout)
    return values


def compare(values: Values, expected: dict[str, dict[str, float]]) -> list[Comparison]:
    """Each measured mean against the expected one: within four standard errors of both, or 3 %, the larger."""
    found = []
    for name, theirs in expected.items():
        ours = np.asarray(values[name])
        error = math.hypot(ours.std() / math.sqrt(len(ours)), theirs["std"] / math.sqrt(theirs["n"]))
        allowed = max(4 * error, 0.03 * abs(theirs["mean"]))
        found.append(Comparison(name, float(ours.mean()), theirs["mean"], allowed, len(ours)))
    return found


def _whole_image(values: Values, layout: Layout, picture: Picture) -> None:
    image, target, label = picture.image, picture.target, layout.label
    values["P_label1"].append(label)
    for cls in range(3):
        values[f"frac_class{cls}"].append(np.mean(target == cls))
        values[f"frac_class{cls}_given_label{label}"].append(np.mean(target == cls))
    values["frac_pixels_exactly_0"].append(np.mean(image == 0))
    values["frac_pixels_1_to_25"].append(np.mean((image >= 1) & (image <= 25)))
    for level in (0.1, 0.2, 0.5):
        values[f"frac_pixels_gt_{level}"].append(np.mean(image > level * 255))
    values["mean_intensity"].append(image.mean() / 255)
    values["std_intensity"].append(image.std() / 255)
    values["pre_normalisation_max"].append(picture.peak)
    values["distractors_placed"].append(layout.distractors)
    values["markers_drawn_total_from_record"].append(len(layout.marks))
    values["two_snakes_attempts_per_image"].append(layout.scene.counts[TRIED])
    for name, structure in (("components4_of_image_gt_0.2", None), ("components8_of_image_gt_0.2", EIGHT)):
        values[name].append(ndimage.label(image > 51, structure)[1])
    for row, col in layout.marks[np.all((layout.marks >= 5) & (layout.marks < len(image) - 5), axis=1)]:
        values["marker_centre_value_uint8"].append(image[row, col])
    one, other = picture.paths
    values["two_paths_shared_pixels"].append(np.sum(one & other))
    values["two_paths_min_distance_px"].append(ndimage.distance_transform_edt(~one)[other].min())
    values["origin_tips_distance"].append(math.dist(*layout.origin_tips))
    values["terminal_tips_distance"].append(math.dist(*layout.terminal_tips))
    half = len(image) // 2
    for name, picture_of in (("main_path_pixels", target > 0), ("image_intensity", image)):
        total = picture_of.sum()
        for quadrant, rows, cols in (
            ("TL", slice(half), slice(half)),
            ("TR", slice(half), slice(half, None)),
            ("BL", slice(half, None), slice(half)),
            ("BR", slice(half, None), slice(half, None)),
        ):
            values[f"quadrant_share_of_{name}.{quadrant}"].append(picture_of[rows, cols].sum() / total)


def _main_paths(values: Values, layout: Layout, picture: Picture) -> None:
    for number, (path, dashes) in enumerate(zip(picture.paths, layout.scene.main, strict=True)):
        heads = dashes[1:, :2]
        origin, terminal = dashes[0, :2], dashes[-1, :2]
        for axis, name in enumerate(("row", "col")):
            values[f"origin_tip{number}_yx.{name}"].append(origin[axis])
            values[f"terminal_tip_yx.{name}"].append(terminal[axis])
        span = math.dist(origin, terminal)
        steps = np.hypot(*np.diff(heads, axis=0).T)
        values["tip_distance_origin_terminal"].append(span)
        values[f"tip_distance_by_path.{number}"].append(span)
        values["main_tip_to_tip_step_px"].extend(steps)
        # the first dash has no head before it to step from: its length stands for that step
        values["main_straightness_tipdist_over_steps"].append(span / (steps.sum() + layout.kit.settings.dash_length))
        visible = path & (picture.image > 51)
        values["path_area_nonzero_px"].append(path.sum())
        values["path_area_visible_gt0.2_px"].append(visible.sum())
        values["path_faint_fraction_le_0.1"].append(np.mean(picture.image[path] <= 25))
        values["path_8conn_components_of_visible"].append(ndimage.label(visible, EIGHT)[1])
        extent = sorted(np.ptp(np.argwhere(path), axis=0) + 1)
        values["path_bbox_short_side"].append(extent[0])
        values["path_bbox_long_side"].append(extent[1])
        angles = layout.kit.angle[dashes[:, 2]]
        turns = turned(angles)
        values["main_abs_turn_deg_all"].extend(np.abs(turns))
        values["main_mean_abs_turn_deg_per_path"].append(np.abs(turns).mean())
        values["main_net_turn_deg"].append(abs(turns.sum()))
        values["main_mean_heading_yx.row"].append(np.sin(angles).mean())
        values["main_mean_heading_yx.col"].append(np.cos(angles).mean())


def _distractors(values: Values, layout: Layout) -> None:
    placed = layout.scene.others[: layout.distractors]
    for dashes, mark in zip(placed, layout.marks[2:], strict=True):
        angles = layout.kit.angle[dashes[:, 2]]
        values["distractor_abs_turn_deg_all"].extend(np.abs(turned(angles)))
        values["distractor_marker_to_last_tip_px"].append(math.dist(mark, dashes[-1, :2]))
        values["distractor_marker_yx.row"].append(mark[0])
        values["distractor_marker_yx.col"].append(mark[1])
        values["distractor_mean_heading_yx.row"].append(np.sin(angles).mean())
        values["distractor_mean_heading_yx.col"].append(np.cos(angles).mean())


def turned(angles: np.ndarray) -> np.ndarray:
    """Signed turn at each joint of a path in degrees, -180..180."""
    return (np.degrees(np.diff(angles)) + 180) % 360 - 180
