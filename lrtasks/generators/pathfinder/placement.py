"""Placement of the dashes: a search for two main paths that fit, and then for the distractors around these paths.

All arithmetic uses whole numbers (except that a pivot is rounded up), so that compiled code, plain Python and all
platforms place the same dashes. Points are (row, column). Orientations are indices into the tables of ``tables.py``.

The search updates two arrays: ``cover`` holds how much of each pixel is taken (0..255), and ``reach`` is ``cover``
dilated by a disc of the gap margin. The grey dilation of a maximum is the maximum of the dilations, so both arrays
can be updated by pasting patches. The latest dash of a path is pasted only after the next dash has found its place.

The arrays are flat and have ``pad`` additional pixels on each side of the image, so that no look-up needs a bounds
check: steps are offsets into the flat array. Outside the image no pixel is taken, but no dash can be placed there.

All compiled functions that call each other, and their types, are in this file. The reason: numba reuses cached machine
code as long as the file of the outermost function is unchanged, and does not notice changes in other files.
``NUMBA_DISABLE_JIT=1`` runs the code as plain Python, about a thousand times slower.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lrtasks.compiling import compiled, compiled_inner

DEGREES = 360
MAX_ATTEMPTS = 100_000
# indices of scene counts: pairs of main paths tried and found, distractors placed, dashes of the longest failed path
TRIED, FOUND, DISTRACTORS, LONGEST = range(4)
MASK32 = 0xFFFFFFFF
FREE = 76  # a pixel is free when at most 0.3 of it is taken: 76/255 < 0.3 < 77/255
BLIND_TRIES = 256
# Pixels in a vector register. Boxes are whole registers wide, and the loops over a row of a box use unsigned indices,
# which numba does not check for a negative sign. Machine code for such loops takes half the time.
REGISTER = 16


class Tables(NamedTuple):
    """Tables for the search: geometry and patches of one gap margin, and numbers of the settings.

    There are ``n`` orientations and ``k`` ring pixels. ``*_at`` are offsets into the flat arrays. A row that is
    shorter than others is padded with 0 beyond its ``*_count``. Steps are real numbers: a point moved by a step is
    rounded up. This has no effect in the clean variant, where steps are whole numbers.

    Attributes:
        head: (360, 2) step from the tail of a first dash to its head.
        back: (360, 2) step from that head to the first pivot, which is one gap margin m behind the tail.
        advance: (n, 2) step from a pivot to the next.
        second: (360, 2) whole steps between the two main paths' tails, by degrees 0..359.
        ring: (k, 2) whole steps from a pivot to the candidate heads.
        near: (n, j) for each orientation, the ring pixels that need a turn δ below 90°/c, with c the setting
            ``continuity``; ``near_at`` has their offsets.
        weight: (n, j) weights cos²(c δ) of these pixels, in units of ``1 / WEIGHT_UNIT``.
        cover: n patches, one after another, each row by row: how much a dash of each orientation takes of each pixel.
        cover_box: (n, 4) offset of a patch's first pixel from the dash; rows; columns, in units of ``REGISTER``; begin
            of the patch in ``cover``.
        reach: the patches of ``cover``, dilated by a disc of the margin; ``reach_box`` as ``cover_box``.
        spare: for each pixel of a dash, the largest ``cover`` value at which it does not collide (255: it never
            collides); ``spare_box`` as ``cover_box``.
        solid_at: (360, p) pixels that must be free for a first dash to start.
        solid_box: (360, 4) smallest and largest row step of these pixels, smallest and largest column step.
        smallest_weight: a path cannot go on if the total weight of all candidates is below this number.
        stride: number of pixels in a row of the flat arrays.
        marks_on_tips: a distractor's mark lies on the start of its first dash or on the end of its last dash; if False,
            it lies on the first pivot, behind the first dash.
    """

    head: np.ndarray
    back: np.ndarray
    advance: np.ndarray
    second: np.ndarray
    ring: np.ndarray
    near: np.ndarray
    near_at: np.ndarray
    near_count: np.ndarray
    weight: np.ndarray
    cover: np.ndarray
    cover_box: np.ndarray
    reach: np.ndarray
    reach_box: np.ndarray
    spare: np.ndarray
    spare_box: np.ndarray
    solid_at: np.ndarray
    solid_count: np.ndarray
    solid_box: np.ndarray
    smallest_weight: int
    res: int
    pad: int
    stride: int
    margin: int
    dashes: int
    distractor_dashes: int
    distractors: int
    seed_distance: int
    padding: int
    dash_tries: int
    distractor_tries: int
    marks_on_tips: bool


class Canvas(NamedTuple):
    """The two arrays, copies from before the unfinished paths (``kept_*``), and the dashes pasted since then.

    Each row of ``pasted`` is (flat position, orientation); ``pending`` (1,) is the number of rows in use. ``pivots``
    (2, 2) is the pivot of the latest dash of each path; the next pivot is one ``advance`` step further.
    """

    cover: np.ndarray
    reach: np.ndarray
    kept_cover: np.ndarray
    kept_reach: np.ndarray
    pasted: np.ndarray
    pending: np.ndarray
    pivots: np.ndarray


class Scene(NamedTuple):
    """One placed image.

    Attributes:
        main: (2, N, 3) row, column, orientation of each dash of the two main paths, in order from the origin. The
            point is the tail of a first dash, and the head of every other dash.
        others: (slots, N', 3) the distractors' dashes; the first ``counts[DISTRACTORS]`` are placed.
        marks: (slots, 2) the distractors' marks.
        counts: (4,) ``TRIED``, ``FOUND``, ``DISTRACTORS``, ``LONGEST``.
    """

    main: np.ndarray
    others: np.ndarray
    marks: np.ndarray
    counts: np.ndarray


def empty(t: Tables) -> tuple[Canvas, Scene]:
    """Return a canvas that holds only the frame, and an empty scene."""
    cover, reach = (np.full((t.stride, t.stride), 255, np.uint8) for _ in range(2))
    cover[: t.pad] = cover[-t.pad :] = 0
    cover[:, : t.pad] = cover[:, -t.pad :] = 0
    for array, edge in ((cover, t.pad + t.padding), (reach, t.pad + t.padding + t.margin)):
        array[edge:-edge, edge:-edge] = 0
    canvas = Canvas(
        cover.ravel(),
        reach.ravel(),
        cover.flatten(),
        reach.flatten(),
        pasted=np.zeros((2 * t.dashes + t.distractor_dashes, 2), np.int64),
        pending=np.zeros(1, np.int64),
        pivots=np.zeros((2, 2), np.int64),
    )
    scene = Scene(
        main=np.zeros((2, t.dashes, 3), np.int64),
        others=np.zeros((t.distractors, t.distractor_dashes, 3), np.int64),
        marks=np.zeros((t.distractors, 2), np.int64),
        counts=np.zeros(4, np.int64),
    )
    return canvas, scene


def seeded(words: np.ndarray) -> np.ndarray:
    """Return the initial state of :func:`below`, (4,) int64, from four uint32 words."""
    state = words.astype(np.int64)
    for _ in range(16):  # mixes the seed, until every word of the state depends on all of it
        below(state, 2)
    return state


@compiled_inner
def _bits(state: np.ndarray) -> int:
    """Return the next 31 bits of SFC32, Chris Doty-Humphrey's "small fast counting" generator, in int64 arithmetic."""
    a, b, c = state[0], state[1], state[2]
    mixed = (a + b + state[3]) & MASK32
    state[3] = (state[3] + 1) & MASK32
    state[0] = b ^ (b >> 9)
    state[1] = (c + (c << 3)) & MASK32
    state[2] = ((((c << 21) | (c >> 11)) & MASK32) + mixed) & MASK32
    return mixed >> 1


@compiled
def below(state: np.ndarray, limit: int) -> int:
    """Draw a whole number in 0..limit-1, uniform up to a relative error of limit / 2^62."""
    return ((_bits(state) << 31) | _bits(state)) % limit


@compiled_inner
def _inside(t: Tables, row: int, col: int) -> bool:
    return 0 <= row < t.res and 0 <= col < t.res


@compiled_inner
def _at(t: Tables, row: int, col: int) -> int:
    """Return the position of a pixel in the flat arrays."""
    return (row + t.pad) * t.stride + col + t.pad


@compiled_inner
def _moved(position: int, step: float) -> int:
    return math.ceil(position + step)


@compiled
def _fits(t: Tables, cover: np.ndarray, at: int, orientation: int) -> bool:
    """Check that a dash fits: at each pixel, dash and ``cover`` together take less than 1.8."""
    box = t.spare_box[orientation]
    first, cols, source = at + box[0], REGISTER * box[2], box[3]
    for _ in range(box[1]):
        collides = False
        for j in range(cols):
            collides |= cover[np.uint64(first + j)] > t.spare[np.uint64(source + j)]
        if collides:
            return False
        first += t.stride
        source += cols
    return True


@compiled_inner
def _paste(t: Tables, array: np.ndarray, patches: np.ndarray, box: np.ndarray, at: int) -> None:
    """Paste the patch of ``box``, centred at ``at``, into ``array`` as a pixel-wise maximum."""
    first, cols, source = at + box[0], REGISTER * box[2], box[3]
    for _ in range(box[1]):
        for j in range(cols):
            pixel = np.uint64(first + j)
            array[pixel] = max(array[pixel], patches[np.uint64(source + j)])
        first += t.stride
        source += cols


@compiled_inner
def _copy(t: Tables, target: np.ndarray, source: np.ndarray, box: np.ndarray, at: int) -> None:
    """Copy the pixels of a box centred at ``at`` from one array to another."""
    first, cols = at + box[0], REGISTER * box[2]
    for _ in range(box[1]):
        for j in range(cols):
            target[np.uint64(first + j)] = source[np.uint64(first + j)]
        first += t.stride


@compiled_inner
def _merge(t: Tables, canvas: Canvas, dash: np.ndarray) -> None:
    """Paste a dash into both arrays."""
    at, orientation = _at(t, dash[0], dash[1]), dash[2]
    _paste(t, canvas.cover, t.cover, t.cover_box[orientation], at)
    _paste(t, canvas.reach, t.reach, t.reach_box[orientation], at)
    canvas.pasted[canvas.pending[0], 0], canvas.pasted[canvas.pending[0], 1] = at, orientation
    canvas.pending[0] += 1


@compiled_inner
def _settle(t: Tables, canvas: Canvas, keep: bool) -> None:
    """Keep or remove all dashes that were pasted since the last call."""
    for index in range(canvas.pending[0]):
        at, orientation = canvas.pasted[index, 0], canvas.pasted[index, 1]
        cover, reach = (canvas.kept_cover, canvas.kept_reach) if keep else (canvas.cover, canvas.reach)
        _copy(t, cover, canvas.cover if keep else canvas.kept_cover, t.cover_box[orientation], at)
        _copy(t, reach, canvas.reach if keep else canvas.kept_reach, t.reach_box[orientation], at)
    canvas.pending[0] = 0


@compiled_inner
def _extend(
    t: Tables, canvas: Canvas, state: np.ndarray, pivot: np.ndarray, dash: np.ndarray, last: np.ndarray
) -> bool:
    """Place the dash after ``last`` into ``dash``, advance ``pivot`` (2,) and merge ``last``; False if none fits."""
    previous = last[2]
    row, col = _moved(pivot[0], t.advance[previous, 0]), _moved(pivot[1], t.advance[previous, 1])
    at = _at(t, row, col)
    offsets, weights, count = t.near_at[previous], t.weight[previous], t.near_count[previous]
    total = 0
    for index in range(count):
        total += weights[index] * (255 - int(canvas.reach[np.uint64(at + offsets[index])]))
    if total < t.smallest_weight:
        return False
    for _ in range(t.dash_tries):
        left = below(state, total)
        choice = -1
        while left >= 0:
            choice += 1
            left -= weights[choice] * (255 - int(canvas.reach[np.uint64(at + offsets[choice])]))
        orientation = DEGREES + t.near[previous, choice]
        if _fits(t, canvas.cover, at + offsets[choice], orientation):
            _merge(t, canvas, last)
            pivot[0], pivot[1] = row, col
            dash[0] = row + t.ring[orientation - DEGREES, 0]
            dash[1] = col + t.ring[orientation - DEGREES, 1]
            dash[2] = orientation
            return True
    return False


@compiled_inner
def _pivot_of_first(t: Tables, first: np.ndarray, pivot: np.ndarray) -> bool:
    """Set the pivot behind a first dash; return False if the head of the dash or the pivot is outside the image."""
    degree = first[2]
    head_row, head_col = _moved(first[0], t.head[degree, 0]), _moved(first[1], t.head[degree, 1])
    pivot[0], pivot[1] = _moved(head_row, t.back[degree, 0]), _moved(head_col, t.back[degree, 1])
    return _inside(t, head_row, head_col) and _inside(t, pivot[0], pivot[1])


@compiled_inner
def _start_main(t: Tables, state: np.ndarray, first: np.ndarray, pivot: np.ndarray) -> bool:
    """Draw the first dash of the first path, with its fully covered pixels in the central window; False if it fails."""
    band = max(2 * t.seed_distance, t.padding)
    for _ in range(t.dash_tries):
        degree = below(state, DEGREES)
        box = t.solid_box[degree]
        rows = (t.res - band - box[1]) - (band - box[0])
        cols = (t.res - band - box[3]) - (band - box[2])
        if rows <= 0 or cols <= 0:
            return False
        choice = below(state, rows * cols)
        first[0], first[1], first[2] = band - box[0] + choice // cols, band - box[2] + choice % cols, degree
        if _pivot_of_first(t, first, pivot):
            return True
    return False


@compiled_inner
def _start_second(t: Tables, state: np.ndarray, other: np.ndarray, first: np.ndarray, pivot: np.ndarray) -> bool:
    """Draw the first dash of the second path: ``seed_distance`` from ``other``, in any direction and orientation."""
    for _ in range(t.dash_tries):
        first[2] = below(state, DEGREES)
        direction = below(state, DEGREES)
        first[0], first[1] = other[0] + t.second[direction, 0], other[1] + t.second[direction, 1]
        if _pivot_of_first(t, first, pivot):
            return True
    return False


@compiled_inner
def _main_pair(t: Tables, canvas: Canvas, state: np.ndarray, scene: Scene) -> bool:
    """Grow two main paths in turns. The last dash of the second path is merged, the last of the first path is not."""
    one, other = scene.main[0], scene.main[1]
    if not _start_main(t, state, one[0], canvas.pivots[0]):
        return False
    if not _start_second(t, state, one[0], other[0], canvas.pivots[1]):
        return False
    for number in range(1, t.dashes):
        for path in range(2):
            dashes = scene.main[path]
            if not _extend(t, canvas, state, canvas.pivots[path], dashes[number], dashes[number - 1]):
                scene.counts[LONGEST] = max(scene.counts[LONGEST], number)
                return False
    _merge(t, canvas, other[t.dashes - 1])
    return True


@compiled_inner
def _is_free(t: Tables, cover: np.ndarray, at: int, degree: int) -> bool:
    """Check that a first dash may start here: all pixels that the dash covers fully are free."""
    offsets = t.solid_at[degree]
    for index in range(t.solid_count[degree]):  # noqa: SIM110
        if cover[at + offsets[index]] > FREE:
            return False
    return True


@compiled
def _start_pixel(t: Tables, cover: np.ndarray, state: np.ndarray, first: np.ndarray) -> bool:
    """Draw a start pixel uniformly from the free pixels: by random tries, and if all fail, by counting free pixels."""
    degree = first[2]
    for _ in range(BLIND_TRIES):
        first[0], first[1] = below(state, t.res), below(state, t.res)
        if _is_free(t, cover, _at(t, first[0], first[1]), degree):
            return True
    free = 0
    for pixel in range(t.res * t.res):
        free += _is_free(t, cover, _at(t, pixel // t.res, pixel % t.res), degree)
    if free == 0:
        return False
    left = below(state, free)
    for pixel in range(t.res * t.res):
        first[0], first[1] = pixel // t.res, pixel % t.res
        left -= _is_free(t, cover, _at(t, first[0], first[1]), degree)
        if left < 0:
            break
    return True


@compiled
def _has_room(t: Tables, cover: np.ndarray) -> bool:
    """Check that at least one in a hundred of the image's pixels is free."""
    free = 0
    for row in range(t.res):
        first = _at(t, row, 0)
        for col in range(t.res):
            free += cover[np.uint64(first + col)] <= FREE
        if free * 100 >= t.res * t.res:
            return True
    return False


@compiled_inner
def _distractor(t: Tables, canvas: Canvas, state: np.ndarray, dashes: np.ndarray, mark: np.ndarray) -> bool:
    """Try once to place one distractor; return False if this fails."""
    pivot, started = canvas.pivots[0], False
    for _ in range(t.dash_tries):
        dashes[0, 2] = below(state, DEGREES)
        if not _start_pixel(t, canvas.cover, state, dashes[0]):
            return False
        started = _pivot_of_first(t, dashes[0], pivot)
        if started:
            break
    if not started:
        return False
    mark[0], mark[1] = pivot[0], pivot[1]
    for number in range(1, t.distractor_dashes):
        if not _extend(t, canvas, state, pivot, dashes[number], dashes[number - 1]):
            return False
    last = dashes[t.distractor_dashes - 1]
    _merge(t, canvas, last)
    if t.marks_on_tips:  # as on main paths: the start of the first dash or the end of the last dash
        marked = dashes[0] if below(state, 2) == 0 or t.distractor_dashes == 1 else last
        mark[0], mark[1] = marked[0], marked[1]
    return True


@compiled
def place(t: Tables, canvas: Canvas, state: np.ndarray, scene: Scene) -> None:
    """Fill ``scene``; its count ``FOUND`` stays 0 if ``MAX_ATTEMPTS`` attempts find no pair of main paths."""
    while scene.counts[FOUND] == 0:
        if scene.counts[TRIED] == MAX_ATTEMPTS:
            return
        scene.counts[TRIED] += 1
        found = _main_pair(t, canvas, state, scene)
        scene.counts[FOUND] += found
        _settle(t, canvas, found)
    for _slot in range(t.distractors):
        if not _has_room(t, canvas.cover):
            return
        for _try in range(t.distractor_tries):
            number = scene.counts[DISTRACTORS]
            placed = _distractor(t, canvas, state, scene.others[number], scene.marks[number])
            _settle(t, canvas, placed)
            if placed:
                scene.counts[DISTRACTORS] += 1
                break
