"""Where the dashes go: the search for two main paths that fit, and for the distractors around them.

Everything here is whole-number arithmetic (apart from rounding a pivot up), so that compiled and plain runs, and all
platforms, place the same dashes. Points are (row, column); orientations are numbers of ``geometry.py``'s tables.

Two pictures are kept up to date: ``cover``, how much of each pixel is taken (0..255), and ``reach``, the same dilated
by a disc of the gap margin. The grey dilation of a maximum is the maximum of the dilations, so both grow by pasting
patches. A path's latest dash is pasted only when the next one has found its place.

The pictures are flat and have ``pad`` more pixels on each side of the image, so that no look-up needs a bounds check:
steps are offsets into the flat picture, and outside the image nothing is taken but nothing can be placed either.

All compiled code, and the types it works on, are in this one file: numba keeps machine code as long as the file of the
outermost function stays the same, and does not notice changes elsewhere.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lrtasks.generators.pathfinder.compiling import compiled, compiled_allocating
from lrtasks.generators.pathfinder.geometry import DEGREES

MAX_ATTEMPTS = 100_000
# outcomes of one step
PLACED, NO_START, OUTSIDE, DEAD_END, CROSSING = range(5)
# what a scene counts: pairs of main paths tried and found, distractors placed, dashes of the longest failed path, and
# from FAILED on how often a pair failed by each outcome, to say which setting is too tight
TRIED, FOUND, DISTRACTORS, LONGEST, FAILED = range(5)
MASK32 = 0xFFFFFFFF
FREE = 76  # a pixel is free when at most 0.3 of it is taken: 76/255 < 0.3 < 77/255
BLIND_TRIES = 256


class Tables(NamedTuple):
    """What the search looks up: one margin's geometry and patches as flat offsets, and the numbers of the settings.

    ``*_at`` are offsets into the flat pictures, padded beyond ``*_count``. ``*_box`` are first row, rows, first column
    and columns of the part of a patch that is above 0, its ``*_half`` the patch's centre.
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
    cover_half: int
    reach: np.ndarray
    reach_box: np.ndarray
    reach_half: int
    hard_at: np.ndarray  # pixels of a dash that can collide ...
    hard_limit: np.ndarray  # ... with a pixel that is taken this much
    hard_count: np.ndarray
    solid_at: np.ndarray
    solid_count: np.ndarray
    solid_box: np.ndarray
    least_weight: int
    res: int
    pad: int
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
    """The two pictures, their state before the unfinished path(s) (``kept_*``), and what was pasted since.

    ``pasted`` rows are (flat position, orientation), ``pending`` (1,) is their number.
    """

    cover: np.ndarray
    reach: np.ndarray
    kept_cover: np.ndarray
    kept_reach: np.ndarray
    pasted: np.ndarray
    pending: np.ndarray


class Scene(NamedTuple):
    """One placed image.

    Attributes:
        main: (2, N, 3) row, column, orientation of each dash of the two main paths, from the origin on.
        others: (slots, N', 3) the distractors' dashes; the first ``counts[DISTRACTORS]`` are placed.
        marks: (slots, 2) the distractors' marks.
        counts: (10,) ``TRIED``, ``FOUND``, ``DISTRACTORS``, ``LONGEST``, and failures from ``FAILED`` on.
    """

    main: np.ndarray
    others: np.ndarray
    marks: np.ndarray
    counts: np.ndarray


def seeded(words: np.ndarray) -> np.ndarray:
    """State of :func:`below` from four uint32 words: (4,) int64."""
    state = words.astype(np.int64)
    for _ in range(16):  # until every word depends on the whole seed
        below(state, 2)
    return state


@compiled
def _bits(state: np.ndarray) -> int:
    """Next 31 bits of SFC32, Chris Doty-Humphrey's "small fast counting" generator, in signed 64-bit arithmetic."""
    a, b, c = state[0], state[1], state[2]
    mixed = (a + b + state[3]) & MASK32
    state[3] = (state[3] + 1) & MASK32
    state[0] = b ^ (b >> 9)
    state[1] = (c + (c << 3)) & MASK32
    state[2] = ((((c << 21) | (c >> 11)) & MASK32) + mixed) & MASK32
    bits: int = mixed >> 1
    return bits


@compiled
def below(state: np.ndarray, limit: int) -> int:
    """A whole number in 0..limit-1, uniform up to limit / 2^62."""
    return ((_bits(state) << 31) | _bits(state)) % limit


@compiled
def _inside(t: Tables, row: int, col: int) -> bool:
    return 0 <= row < t.res and 0 <= col < t.res


@compiled
def _at(t: Tables, row: int, col: int) -> int:
    """Position in the flat pictures."""
    return (row + t.pad) * (t.res + 2 * t.pad) + col + t.pad


@compiled
def _moved(position: int, step: float) -> int:
    return math.ceil(position + step)


@compiled
def _fits(t: Tables, cover: np.ndarray, at: int, orientation: int) -> bool:
    """Whether no pixel would be taken by 1.8 or more in all."""
    offsets, limits = t.hard_at[orientation], t.hard_limit[orientation]
    for index in range(t.hard_count[orientation]):  # noqa: SIM110 - numba compiles no generator expressions
        if cover[at + offsets[index]] >= limits[index]:
            return False
    return True


@compiled
def _paste(t: Tables, picture: np.ndarray, patch: np.ndarray, box: np.ndarray, start: int) -> None:
    """Pixel-wise maximum of ``picture`` and the ``box`` of a ``patch`` whose first pixel lies at ``start``."""
    for i in range(box[0], box[0] + box[1]):
        first = start + i * (t.res + 2 * t.pad) + box[2]
        old, new = picture[first : first + box[3]], patch[i, box[2] : box[2] + box[3]]
        for j in range(box[3]):
            old[j] = max(old[j], new[j])


@compiled
def _merge(t: Tables, canvas: Canvas, dash: np.ndarray) -> None:
    """Paste a dash into both pictures."""
    at, orientation = _at(t, dash[0], dash[1]), dash[2]
    stride = t.res + 2 * t.pad
    _paste(t, canvas.cover, t.cover[orientation], t.cover_box[orientation], at - t.cover_half * (stride + 1))
    _paste(t, canvas.reach, t.reach[orientation], t.reach_box[orientation], at - t.reach_half * (stride + 1))
    canvas.pasted[canvas.pending[0], 0], canvas.pasted[canvas.pending[0], 1] = at, orientation
    canvas.pending[0] += 1


@compiled
def _copy(t: Tables, target: np.ndarray, source: np.ndarray, box: np.ndarray, start: int) -> None:
    for i in range(box[0], box[0] + box[1]):
        first = start + i * (t.res + 2 * t.pad) + box[2]
        new, old = target[first : first + box[3]], source[first : first + box[3]]
        for j in range(box[3]):
            new[j] = old[j]


@compiled
def _settle(t: Tables, canvas: Canvas, keep: bool) -> None:
    """Keep everything pasted since the last call, or take it away again."""
    stride = t.res + 2 * t.pad
    for index in range(canvas.pending[0]):
        at, orientation = canvas.pasted[index, 0], canvas.pasted[index, 1]
        cover_start, reach_start = at - t.cover_half * (stride + 1), at - t.reach_half * (stride + 1)
        if keep:
            _copy(t, canvas.kept_cover, canvas.cover, t.cover_box[orientation], cover_start)
            _copy(t, canvas.kept_reach, canvas.reach, t.reach_box[orientation], reach_start)
        else:
            _copy(t, canvas.cover, canvas.kept_cover, t.cover_box[orientation], cover_start)
            _copy(t, canvas.reach, canvas.kept_reach, t.reach_box[orientation], reach_start)
    canvas.pending[0] = 0


@compiled
def _extend(t: Tables, canvas: Canvas, state: np.ndarray, pivot: np.ndarray, dash: np.ndarray, last: np.ndarray) -> int:
    """Place the dash after ``last`` into ``dash``, move ``pivot`` (2,) on, and merge ``last``."""
    previous = last[2]
    row, col = _moved(pivot[0], t.advance[previous, 0]), _moved(pivot[1], t.advance[previous, 1])
    at = _at(t, row, col)
    offsets, weights, count = t.near_at[previous], t.weight[previous], t.near_count[previous]
    total = 0
    for index in range(count):
        total += weights[index] * (255 - int(canvas.reach[at + offsets[index]]))
    if total < t.least_weight:
        return DEAD_END
    for _ in range(t.dash_tries):
        left = below(state, total)
        choice = -1
        while left >= 0:
            choice += 1
            left -= weights[choice] * (255 - int(canvas.reach[at + offsets[choice]]))
        orientation = DEGREES + t.near[previous, choice]
        if _fits(t, canvas.cover, at + offsets[choice], orientation):
            _merge(t, canvas, last)
            pivot[0], pivot[1] = row, col
            dash[0] = row + t.ring[orientation - DEGREES, 0]
            dash[1] = col + t.ring[orientation - DEGREES, 1]
            dash[2] = orientation
            return PLACED
    return CROSSING


@compiled
def _pivot_of_first(t: Tables, first: np.ndarray, pivot: np.ndarray) -> bool:
    """Set the pivot behind a first dash; False if its head or the pivot is outside the image."""
    degree = first[2]
    head_row, head_col = _moved(first[0], t.head[degree, 0]), _moved(first[1], t.head[degree, 1])
    pivot[0], pivot[1] = _moved(head_row, t.back[degree, 0]), _moved(head_col, t.back[degree, 1])
    return _inside(t, head_row, head_col) and _inside(t, pivot[0], pivot[1])


@compiled
def _start_main(t: Tables, state: np.ndarray, first: np.ndarray, pivot: np.ndarray) -> int:
    """First dash of the first path: its fully covered pixels lie in the central window."""
    band = max(2 * t.seed_distance, t.padding)
    for _ in range(t.dash_tries):
        degree = below(state, DEGREES)
        box = t.solid_box[degree]
        rows = (t.res - band - box[1]) - (band - box[0])
        cols = (t.res - band - box[3]) - (band - box[2])
        if rows <= 0 or cols <= 0:
            return NO_START
        choice = below(state, rows * cols)
        first[0], first[1], first[2] = band - box[0] + choice // cols, band - box[2] + choice % cols, degree
        if _pivot_of_first(t, first, pivot):
            return PLACED
    return OUTSIDE


@compiled
def _start_second(t: Tables, state: np.ndarray, other: np.ndarray, first: np.ndarray, pivot: np.ndarray) -> int:
    """First dash of the second path: ``seed_distance`` from ``other`` in any direction, of any orientation."""
    for _ in range(t.dash_tries):
        first[2] = below(state, DEGREES)
        direction = below(state, DEGREES)
        first[0], first[1] = other[0] + t.second[direction, 0], other[1] + t.second[direction, 1]
        if _pivot_of_first(t, first, pivot):
            return PLACED
    return OUTSIDE


@compiled_allocating
def _main_pair(t: Tables, canvas: Canvas, state: np.ndarray, scene: Scene) -> int:
    """Two main paths, grown in turns; the second path's last dash is merged, the first path's never is."""
    pivots = np.zeros((2, 2), np.int64)
    outcome = _start_main(t, state, scene.main[0, 0], pivots[0])
    if outcome == PLACED:
        outcome = _start_second(t, state, scene.main[0, 0], scene.main[1, 0], pivots[1])
    number = 0
    while outcome == PLACED and number < t.dashes - 1:
        number += 1
        for path in range(2):
            if outcome == PLACED:
                dashes = scene.main[path]
                outcome = _extend(t, canvas, state, pivots[path], dashes[number], dashes[number - 1])
    if outcome == PLACED:
        _merge(t, canvas, scene.main[1, t.dashes - 1])
    else:
        scene.counts[LONGEST] = max(scene.counts[LONGEST], number)
    return outcome


@compiled
def _is_free(t: Tables, cover: np.ndarray, at: int, degree: int) -> bool:
    """Whether a first dash may start here: none of the pixels that it covers fully is taken."""
    offsets = t.solid_at[degree]
    for index in range(t.solid_count[degree]):  # noqa: SIM110
        if cover[at + offsets[index]] > FREE:
            return False
    return True


@compiled_allocating
def _start_pixel(t: Tables, cover: np.ndarray, state: np.ndarray, first: np.ndarray) -> bool:
    """Draw a start pixel uniformly among the free ones: blindly, or from their list if that fails often."""
    degree = first[2]
    for _ in range(BLIND_TRIES):
        first[0], first[1] = below(state, t.res), below(state, t.res)
        if _is_free(t, cover, _at(t, first[0], first[1]), degree):
            return True
    free = [0 for _ in range(0)]
    for pixel in range(t.res * t.res):
        if _is_free(t, cover, _at(t, pixel // t.res, pixel % t.res), degree):
            free.append(pixel)
    if len(free) == 0:
        return False
    choice = free[below(state, len(free))]
    first[0], first[1] = choice // t.res, choice % t.res
    return True


@compiled_allocating
def _distractor(t: Tables, canvas: Canvas, state: np.ndarray, dashes: np.ndarray, mark: np.ndarray) -> int:
    """One try at one distractor."""
    outside = 4 * t.pad * (t.res + t.pad)
    if (np.sum(canvas.cover <= FREE) - outside) * 100 < t.res * t.res:
        return NO_START
    pivot = np.zeros(2, np.int64)
    outcome = OUTSIDE
    for _ in range(t.dash_tries):
        dashes[0, 2] = below(state, DEGREES)
        if not _start_pixel(t, canvas.cover, state, dashes[0]):
            return NO_START
        if _pivot_of_first(t, dashes[0], pivot):
            outcome = PLACED
            break
    mark[0], mark[1] = pivot[0], pivot[1]
    for number in range(1, t.distractor_dashes):
        if outcome == PLACED:
            outcome = _extend(t, canvas, state, pivot, dashes[number], dashes[number - 1])
    if outcome == PLACED:
        last = dashes[t.distractor_dashes - 1]
        _merge(t, canvas, last)
        if t.marks_on_tips:  # as on the main paths: on the start of a first dash or the end of a last one
            marked = dashes[0] if below(state, 2) == 0 or t.distractor_dashes == 1 else last
            mark[0], mark[1] = marked[0], marked[1]
    return outcome


@compiled_allocating
def place(t: Tables, canvas: Canvas, state: np.ndarray, scene: Scene) -> None:
    """Fill ``scene``; it counts nothing as ``FOUND`` if no pair of main paths was, in ``MAX_ATTEMPTS``."""
    while scene.counts[FOUND] == 0 and scene.counts[TRIED] < MAX_ATTEMPTS:
        scene.counts[TRIED] += 1
        outcome = _main_pair(t, canvas, state, scene)
        scene.counts[FOUND if outcome == PLACED else FAILED + outcome] += 1
        _settle(t, canvas, outcome == PLACED)
    if scene.counts[FOUND] == 0:
        return
    for _slot in range(t.distractors):
        for _try in range(t.distractor_tries):
            number = scene.counts[DISTRACTORS]
            outcome = _distractor(t, canvas, state, scene.others[number], scene.marks[number])
            _settle(t, canvas, outcome == PLACED)
            if outcome == PLACED:
                scene.counts[DISTRACTORS] += 1
                break
