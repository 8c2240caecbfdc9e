"""Make the images of docs/tasks/pathfinder.md: images with targets for each resolution, and the three flaws.

python docs/scripts/pathfinder_pictures.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from lrtasks.generators import make
from lrtasks.generators.pathfinder import RESOLUTIONS, VARIANTS
from lrtasks.generators.pathfinder.image import Layout, Picture, draw, lay_out

FOLDER = Path(__file__).parents[1] / "tasks"
# colours of label 0, 1 and 2 of stored label maps: no path, a path, the path with both marks
COLOURS = np.array([(0, 0, 0), (230, 159, 0), (86, 180, 233)], np.uint8)
GAP = 6


def example(res: int, variant: str, label: int) -> tuple[Layout, Picture]:
    """Return layout and drawing of the first image with this label in a fixed stream."""
    rng = np.random.default_rng(0)
    while True:
        layout = lay_out(make("pathfinder", res=res, variant=variant).settings, rng)
        if layout.label == label:
            return layout, draw(layout)


def grey(image: np.ndarray) -> np.ndarray:
    return np.repeat(image[:, :, None], 3, axis=2)


def enlarged(picture: np.ndarray, side: int) -> np.ndarray:
    return np.asarray(Image.fromarray(picture).resize((side, side), Image.Resampling.NEAREST))


def table(rows: list[list[np.ndarray]]) -> Image.Image:
    """Arrange images of equal size in rows and columns, with a white gap between them."""
    framed = [np.hstack([np.pad(p, ((0, GAP), (0, GAP), (0, 0)), constant_values=255) for p in row]) for row in rows]
    return Image.fromarray(np.vstack(framed)[:-GAP, :-GAP])


def resolution(res: int) -> Image.Image:
    """Draw image and target: `paper` above `clean`; label 0 on the left, label 1 on the right."""
    rows = []
    for variant in VARIANTS:
        pictures = [example(res, variant, label)[1] for label in (0, 1)]
        rows.append([enlarged(p, max(res, 256)) for one in pictures for p in (grey(one.image), COLOURS[one.target])])
    return table(rows)


def flaws() -> Image.Image:
    """Draw `paper` above `clean`: a main mark, a distractor's mark, a path with its target, ends of 3,000 paths."""
    rows = []
    for variant in VARIANTS:
        layout, picture = example(128, variant, 1)
        own = picture.target[:, :, None] > 0
        shown = np.where(own, COLOURS[picture.target] // 2 + grey(picture.image) // 2, grey(picture.image))
        crops = [around(grey(picture.image), layout.marks[index], 9) for index in (0, 2)]
        crops.append(around(shown.astype(np.uint8), layout.origin_tips[0], 18))
        rows.append([enlarged(crop, 256) for crop in (*crops, grey(ends(variant)))])
    return table(rows)


def around(picture: np.ndarray, centre: np.ndarray, reach: int) -> np.ndarray:
    padded = np.pad(picture, ((reach, reach), (reach, reach), (0, 0)))
    row, col = centre
    return padded[row : row + 2 * reach + 1, col : col + 2 * reach + 1]


def ends(variant: str) -> np.ndarray:
    """Draw how often main paths end in each 8 x 8 block of the image; the most frequent block is white."""
    rng, settings = np.random.default_rng(1), make("pathfinder", res=128, variant=variant).settings
    tips = np.concatenate([lay_out(settings, rng).terminal_tips for _ in range(1500)])
    count, _, _ = np.histogram2d(*tips.T, bins=16, range=[(0, 128), (0, 128)])
    return (255 * count / count.max()).astype(np.uint8)


if __name__ == "__main__":
    for res in RESOLUTIONS:
        resolution(res).quantize(16, dither=Image.Dither.NONE).save(FOLDER / f"pathfinder_{res}.png", optimize=True)
    flaws().quantize(128, dither=Image.Dither.NONE).save(FOLDER / "pathfinder_flaws.png", optimize=True)
