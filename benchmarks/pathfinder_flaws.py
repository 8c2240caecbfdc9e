"""Measure the three flaws of the paper's Pathfinder generator on both variants.

    python benchmarks/pathfinder_flaws.py                       # 128, 256 and 512, 500 images each
    python benchmarks/pathfinder_flaws.py --res 64 --images 2000

Columns: mean distance in pixels from a mark to the nearest end of its own path, for marks of main paths and for marks
of distractors; mean direction of the main paths' dashes, downwards and to the right, each -1..1, with the standard
error over images; fraction of the target's path pixels whose intensity is below a tenth of the maximum.
"""

from __future__ import annotations

import argparse

import numpy as np

from lrtasks.generators import make
from lrtasks.generators.pathfinder import RESOLUTIONS, VARIANTS
from lrtasks.generators.pathfinder.image import Layout, draw, lay_out


def beyond(layout: Layout) -> list[float]:
    """Return for each distractor's mark the distance to the nearer end of its path."""
    ends = layout.scene.others[: layout.distractors][:, [0, -1], :2]
    steps = ends - layout.marks[2:, None]
    distances: list[float] = np.hypot(steps[..., 0], steps[..., 1]).min(axis=1).tolist()
    return distances


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--res", type=int, nargs="+", default=[res for res in RESOLUTIONS if res != 64])
    parser.add_argument("--images", type=int, default=500)
    options = parser.parse_args()
    print(f"{'':10}{'main mark':>12}{'distractor':>12}{'down':>8}{'right':>8}{'+-':>8}{'faint':>8}")
    for res in options.res:
        for variant in VARIANTS:
            rng, settings = np.random.default_rng(0), make("pathfinder", res=res, variant=variant).settings
            main_marks, others, headings, faint = [], [], [], []
            for _ in range(options.images):
                layout = lay_out(settings, rng)
                picture = draw(layout)
                tips = np.vstack([layout.origin_tips, layout.terminal_tips])
                main_marks += [np.hypot(*(tips - mark).T).min() for mark in layout.marks[:2]]
                others += beyond(layout)
                angles = layout.kit.angle[layout.scene.main[:, :, 2]]
                headings.append((np.sin(angles).mean(), np.cos(angles).mean()))
                faint.append(np.mean(picture.image[picture.target > 0] < 25.5))
            down, right = np.mean(headings, axis=0)
            error = np.std(headings, axis=0).max() / np.sqrt(len(headings))
            print(
                f"{variant + ' ' + str(res):10}{np.mean(main_marks):12.2f}{np.mean(others):12.2f}"
                f"{down:8.3f}{right:8.3f}{error:8.3f}{np.mean(faint):8.3f}"
            )


if __name__ == "__main__":
    main()
