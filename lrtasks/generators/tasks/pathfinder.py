"""Pathfinder: label the pixels of two long paths (Pathfinder-Segmentation), or say whether one carries both marks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import Rngs, Task, budget, columns, registry
from lrtasks.generators.baselines import Baseline, MajorityClass
from lrtasks.generators.pathfinder import MAX_RESOLUTION, RESOLUTIONS, TABLE, VARIANTS, Settings, check
from lrtasks.generators.tables import from_bytes
from lrtasks.spec import Batch, Spec

if TYPE_CHECKING:
    from lrtasks.generators.pathfinder.image import Layout, Picture

_BY_RES = "none: the value of the DLR paper for this res (for 64: our value)"


@dataclass(frozen=True)
class PathfinderTask(Task):
    """Base of the Pathfinder tasks: ``res`` chooses all settings, but each setting can also be given.

    A setting that is not given has the value of the DLR paper's generator for ``res`` (for 64: our own value). For a
    ``res`` other than 64, 128, 256 or 512, it has the value for the next smaller of these (below 64: for 64). After
    construction every field holds the value in use.
    """

    causal: ClassVar[bool] = False
    group: ClassVar[str] = "geometry"

    presets: ClassVar[Presets] = {
        # Settings of our own at 64 x 64.
        "small": {"res": 64, **budget(batch_size=4, test_batches=100)},
        # DLR paper, Table 3.
        "paper": {"res": 128}
        | budget(steps=150_000, schedule="cosine", warmup_steps=3000, eval_every=5000, test_batches=125),
    }

    res: int = parameter(128, "height and width of the image in pixels", at_least=1, at_most=MAX_RESOLUTION)
    variant: str = parameter("paper", "generator of the DLR paper, or the same without its flaws", choices=VARIANTS)
    dashes: int | None = parameter(None, f"number of dashes of each main path; {_BY_RES}", at_least=2, at_most=200)
    distractor_dashes: int | None = parameter(
        None, "dashes of each distractor; none: a third of `dashes`, rounded down, at least 1", at_least=1, at_most=200
    )
    distractors: int | None = parameter(
        None, f"maximum number of distractors (some may not fit); {_BY_RES}", at_least=0, at_most=1000
    )
    dash_length: int | None = parameter(None, f"length of a dash, pixels; {_BY_RES}", at_least=2, at_most=64)
    dash_thickness: float | None = parameter(
        None, f"thickness of a dash, pixels, whole when multiplied by antialias; {_BY_RES}", above=0, at_most=32
    )
    gap_margins: tuple[int, ...] | None = parameter(
        None, f"gap margins in pixels; each image has one; gaps are twice as wide; {_BY_RES}", at_least=1, at_most=16
    )
    continuity: float | None = parameter(
        None, f"angle limit: consecutive dashes turn by less than 90°/continuity; {_BY_RES}", at_least=1, at_most=90
    )
    seed_distance: int | None = parameter(
        None, f"pixels between the starts of the main paths; {_BY_RES}", at_least=1, at_most=MAX_RESOLUTION // 4
    )
    antialias: int | None = parameter(
        None, f"enlargement factor for drawing dashes and marks; {_BY_RES}", at_least=1, at_most=4
    )
    mark_radius: float | None = parameter(None, f"radius of a mark, pixels; {_BY_RES}", above=0, at_most=64)
    contrast: float | None = parameter(
        None, f"intensity of dashes; marks have intensity 1; {_BY_RES}", at_least=0.5, at_most=1
    )
    padding: int = parameter(1, "width of the empty frame without dashes, pixels", at_least=1, at_most=64)
    dash_tries: int = parameter(3, "number of draws for each dash before the path fails", at_least=1, at_most=100)
    distractor_tries: int = parameter(5, "attempts for each distractor before it is left out", at_least=1, at_most=100)

    def check(self) -> None:
        row = TABLE[max((known for known in RESOLUTIONS if known <= self.res), default=RESOLUTIONS[0])]
        defaults = dict(zip(Settings._fields[2:], row, strict=False))
        if self.dashes is not None:
            defaults["distractor_dashes"] = max(1, self.dashes // 3)
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        check(self.settings)

    @property
    def settings(self) -> Settings:
        """The settings in use."""
        return Settings(*(getattr(self, name) for name in Settings._fields))

    @property
    def input(self) -> Spec:
        return Spec("real", self.res**2, 1)

    def image_shape(self) -> tuple[int, int]:
        return self.res, self.res

    def picture(self, rng: np.random.Generator) -> tuple[Layout, Picture]:
        """Draw one image; return its layout, and the image with its target.

        Raises:
            UsageError: if no two main paths that fit are found within the allowed attempts.
        """
        from lrtasks.generators.pathfinder.image import draw, lay_out  # imports numba and Pillow

        layout = lay_out(self.settings, rng)
        return layout, draw(layout)

    def label(self, layout: Layout, picture: Picture) -> np.ndarray | int:
        """Return the target of an image: the class of each of its pixels, or its own class."""
        raise NotImplementedError

    def samples(self, rngs: Rngs) -> Batch:
        # write each image into the batch: keeping all images and stacking them would take new memory for each
        x = np.empty(self.input.shape(len(rngs)), np.float32)
        y = np.empty(self.target.shape(len(rngs)), np.int64)
        details = []
        for rng, one_x, one_y in zip(rngs, x, y, strict=True):
            layout, picture = self.picture(rng)
            from_bytes(picture.image.ravel(), out=one_x[:, 0])
            one_y[:] = self.label(layout, picture)
            details.append(layout.meta())
        return Batch(x, y, meta=columns(details))

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """Break scores down by gap margin and by number of distractors; each ``(batch, 1)``."""
        meta = batch.meta or {}
        return {name: np.asarray(meta[name])[:, None] for name in ("margin", "distractors")}


@registry.register("pathfinder")
@dataclass(frozen=True)
class Pathfinder(PathfinderTask):
    """Label each pixel: 0 outside the two long dashed paths, 1 on a path, 2 on a path that carries both marks.

    In half of the images both marks are on one path: this path is class 2, the other path class 1. In the other images
    both paths are class 1. Short paths, each with one mark, are distractors. The input has the image's pixels row by
    row, ``x[res r + c] = (byte[r, c] / 255 - 0.5) / 0.5``. Source: DLR paper (arXiv:2212.00768), section 3.2; Linsley
    et al., "Learning long-range spatial dependencies with horizontal gated recurrent units" (arXiv:1805.08315).

    >>> task = Pathfinder(res=64)
    >>> task.input, task.target
    (Spec(kind='real', length=4096, width=1, pooled=False), Spec(kind='token', length=4096, width=3, pooled=False))
    >>> batch = task.batch([1, 2])
    >>> batch.meta["label"].tolist(), [int(y.max()) for y in batch.y]  # both marks on one path: a class 2
    ([1, 0], [2, 1])
    """

    loss: ClassVar[str] = "balanced-cross-entropy"
    metric: ClassVar[str] = "macro_f1"

    presets: ClassVar[Presets] = {
        # The largest image that one of our models has solved; the model is DLR with three layers.
        "small": {"res": 32, "variant": "clean", "dashes": 2, "distractors": 0, "seed_distance": 4}
        | {"gap_margins": (1,), "mark_radius": 1.5, "dash_thickness": 1.0}
        | budget(batch_size=16, steps=5000, schedule="linear", test_batches=100),
        "small-hard": PathfinderTask.presets["small"],
        "paper": PathfinderTask.presets["paper"],
    }

    @property
    def target(self) -> Spec:
        return Spec("token", self.res**2, 3)

    def label(self, layout: Layout, picture: Picture) -> np.ndarray:
        return picture.target.ravel()

    def baselines(self) -> dict[str, Baseline]:
        # the background is by far the most frequent class
        return {"all-background": MajorityClass(3)}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """Break scores down by both marks on one path (1 or 0), margin and distractors; the metric adds classes."""
        meta = batch.meta or {}
        return {"label": np.asarray(meta["label"])[:, None], **super().slices(batch)}


@registry.register("pathfinder-classification")
@dataclass(frozen=True)
class PathfinderClassification(PathfinderTask):
    """Label the whole image: 1 if both marks of the two long paths are on the same path, else 0.

    This is the question of Pathfinder and Path-X in the Long Range Arena (Tay et al., arXiv:2011.04006, sections 2.2.5
    and 2.2.6), on the images and settings of ``pathfinder``. Distractors carry marks too; only the two marks at the
    ends of long paths count.

    >>> task = PathfinderClassification(res=64)
    >>> task.target
    Spec(kind='token', length=1, width=2, pooled=True)
    >>> batch = task.batch([0, 1])
    >>> (batch.y[:, 0] == batch.meta["label"]).tolist()
    [True, True]
    """

    loss: ClassVar[str] = "cross-entropy"
    metric: ClassVar[str] = "accuracy"

    @property
    def target(self) -> Spec:
        return Spec("token", 1, 2, pooled=True)

    def label(self, layout: Layout, picture: Picture) -> int:
        return layout.label
