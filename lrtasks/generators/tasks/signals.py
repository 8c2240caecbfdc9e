"""Tasks on signals: the atomic tasks of the DLR paper (arXiv:2212.00768, section 3.1), and the adding problem."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from lrtasks.config import Presets, parameter
from lrtasks.generators.base import MAX_LENGTH, MAX_SEED, Rngs, Task, budget, registry
from lrtasks.generators.baselines import Baseline, Rule, ScaledFirstValue, bin_starts, octave
from lrtasks.spec import Batch, Sample, Spec

BLOCK = 4096
"""Positions whose targets ``shift`` writes together; these stay in a core's own cache."""
MIPS_BLOCK = 2**17
"""Inner products that ``mips`` holds at once; this many float64 fit into a core's own cache."""
MIPS_LONGEST = 2**17
"""``mips`` compares all pairs of positions: at this length a sample takes several seconds."""

# no model of the package leaves its floor at small-hard in 2,000 steps of 16 samples
HARD: dict[str, dict[str, Any]] = {"small-hard": {"length": 256}, "paper": {"length": 4096}}
EASY = budget(batch_size=64, steps=3000)


@dataclass(frozen=True)
class SignalTask(Task):
    """Base of the atomic tasks: L values of noise, and a target that is a function of them.

    The last two channels of an input of T positions hold cos(2πt/T) and sin(2πt/T). A subclass writes :meth:`respond`;
    one whose signal is more than a channel of noise overrides :meth:`draw`.
    """

    presets: ClassVar[Presets] = {"small": {"length": 256}, "paper": {"length": 4096}}

    length: int = parameter(4096, "sequence length L", at_least=2, at_most=MAX_LENGTH)

    @property
    def input(self) -> Spec:
        return Spec("real", self.length, 3)

    @property
    def target(self) -> Spec:
        return Spec("real", self.length, 1)

    def respond(self, x: np.ndarray, y: np.ndarray) -> None:
        """Write the target of one input ``x`` into ``y``, which holds zeros; both float32, without batch axis."""
        raise NotImplementedError

    def draw(self, rng: np.random.Generator, x: np.ndarray, y: np.ndarray) -> dict[str, Any] | None:
        """Write one sample into ``x`` and ``y``, which hold zeros but for the positional channels; return its details.

        Noise at the first L positions of channel 0, unless a subclass says otherwise.
        """
        x[: self.length, 0] = noise(rng, self.length)
        self.respond(x, y)
        return None

    def sample(self, rng: np.random.Generator) -> Sample:
        x, y = (np.zeros(spec.shape(1)[1:], np.float32) for spec in (self.input, self.target))
        return Sample(x, y, meta=self._draw(rng, x, y))

    def samples(self, rngs: Rngs) -> Batch:
        x, y = (np.zeros(spec.shape(len(rngs)), np.float32) for spec in (self.input, self.target))
        details = [self._draw(*parts) for parts in zip(rngs, x, y, strict=True)]
        names = details[0] or ()
        meta = {name: np.array([detail[name] for detail in details if detail]) for name in names}
        return Batch(x, y, meta=meta or None)

    def _draw(self, rng: np.random.Generator, x: np.ndarray, y: np.ndarray) -> dict[str, Any] | None:
        x[:, -2], x[:, -1] = _positions(len(x))  # column by column: six times as fast as both at once
        return self.draw(rng, x, y)

    def answer(self, x: np.ndarray) -> np.ndarray:
        y = np.zeros(self.target.shape(1)[1:], np.float32)
        self.respond(self.checked_input(x), y)
        return y

    def tests(self) -> Mapping[str, Task]:
        return self.longer()


def noise(rng: np.random.Generator, length: int) -> np.ndarray:
    """White Gaussian noise divided by its largest absolute value; ``(length,)`` float32."""
    signal = rng.standard_normal(length)
    signal /= max(signal.max(), -signal.min())
    return signal.astype(np.float32)


def unit_vectors(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Vectors drawn uniformly from the unit sphere of the last axis; float64."""
    vectors = rng.standard_normal(shape)
    vectors /= np.sqrt(np.einsum("...d,...d->...", vectors, vectors))[..., None]
    return vectors


@functools.lru_cache(maxsize=8)
def _positions(length: int) -> np.ndarray:
    angle = 2 * np.pi * np.arange(length) / length
    table = np.stack([np.cos(angle), np.sin(angle)]).astype(np.float32)
    table.setflags(write=False)
    return table


@registry.register("cummax")
@dataclass(frozen=True)
class Cummax(SignalTask):
    """Give the largest value seen so far.

    ``y[t] = max(x[0], ..., x[t])``. Source: DLR paper (arXiv:2212.00768), section 3.1.

    >>> x = np.array([[0.5, 0, 0], [-1, 0, 0], [0.75, 0, 0], [0.25, 0, 0]])
    >>> Cummax(length=4).answer(x)[:, 0].tolist()
    [0.5, 0.5, 0.75, 0.75]
    """

    group: ClassVar[str] = "latching"

    def respond(self, x: np.ndarray, y: np.ndarray) -> None:
        np.maximum.accumulate(x[:, 0], out=y[:, 0])


@registry.register("cumsum")
@dataclass(frozen=True)
class Cumsum(SignalTask):
    """Sum everything seen so far, scaled to the same variance at every position.

    ``y[t] = (x[0] + ... + x[t]) / sqrt(t + 1)``. Source: DLR paper (arXiv:2212.00768), section 3.1.

    >>> x = np.array([[0.5, 0, 0], [-1, 0, 0], [0.25, 0, 0], [0.75, 0, 0]])
    >>> [f"{y:.3f}" for y in Cumsum(length=4).answer(x)[:, 0]]
    ['0.500', '-0.354', '-0.144', '0.250']
    """

    group: ClassVar[str] = "latching"

    def respond(self, x: np.ndarray, y: np.ndarray) -> None:
        # sums of up to millions of terms: accumulated in float64, rounded once
        y[:, 0] = np.cumsum(x[:, 0], dtype=np.float64) / np.sqrt(np.arange(1, len(x) + 1))


@registry.register("reverse")
@dataclass(frozen=True)
class Reverse(SignalTask):
    """Read L values, then, over L further positions that hold zeros, give them back in reverse order.

    ``y[t] = x[L - 1 - t]`` for t = 0..L-1, at input positions L..2L-1. Source: DLR paper (arXiv:2212.00768),
    section 3.1.

    >>> x = np.zeros((6, 3))
    >>> x[:3, 0] = 0.5, -1, 0.25
    >>> Reverse(length=3).answer(x)[:, 0].tolist()
    [0.25, -1.0, 0.5]
    """

    group: ClassVar[str] = "copying"

    length: int = parameter(4096, "number of values L; the input has 2L positions", at_least=2, at_most=MAX_LENGTH)

    @property
    def input(self) -> Spec:
        return Spec("real", 2 * self.length, 3)

    def respond(self, x: np.ndarray, y: np.ndarray) -> None:
        y[:, 0] = x[: self.length, 0][::-1]


@registry.register("sort")
@dataclass(frozen=True)
class Sort(SignalTask):
    """Read L values, then give them back in ascending order of ``|x[i] - x[0]|``, ties in order of position.

    The targets stand at input positions L..2L-1, where the input holds zeros. Source: DLR paper (arXiv:2212.00768),
    section 3.1.

    >>> x = np.zeros((8, 3))
    >>> x[:4, 0] = 0.5, -1, 0.25, 0.625
    >>> Sort(length=4).answer(x)[:, 0].tolist()
    [0.5, 0.625, 0.25, -1.0]
    """

    group: ClassVar[str] = "algorithms"
    presets: ClassVar[Presets] = {"small": {"length": 32, **EASY}, **HARD}

    length: int = parameter(4096, "number of values L; the input has 2L positions", at_least=2, at_most=MAX_LENGTH)

    @property
    def input(self) -> Spec:
        return Spec("real", 2 * self.length, 3)

    def respond(self, x: np.ndarray, y: np.ndarray) -> None:
        values = x[: self.length, 0]
        # in float64, where differences of float32 values hardly round and so make no false ties
        distance = np.abs(values.astype(np.float64) - float(values[0]))
        y[:, 0] = values[np.argsort(distance, kind="stable")]

    def baselines(self) -> Mapping[str, Baseline]:
        return {**super().baselines(), "first-value": ScaledFirstValue()}


@registry.register("select")
@dataclass(frozen=True)
class Select(SignalTask):
    """Read L + M values of which M are marked, then, over M zeros, give the marked ones in order of position.

    The second channel holds 1 at the marked positions, drawn uniformly without repeats, and 0 elsewhere; M = ``marks``.
    ``y[n]`` is the value at the n-th marked position. The further tests keep M. Source: DLR paper (arXiv:2212.00768),
    section 3.1.

    >>> x = np.zeros((6, 4))
    >>> x[:4, 0] = 0.5, -1, 0.25, 0.75
    >>> x[:4, 1] = 0, 1, 0, 1
    >>> Select(length=2, marks=2).answer(x)[:, 0].tolist()
    [-1.0, 0.75]
    """

    group: ClassVar[str] = "copying"
    presets: ClassVar[Presets] = {"small": {"length": 256, "marks": 16}, "paper": {"length": 4096, "marks": 32}}

    length: int = parameter(
        4096, "number of unmarked values L; the input has L + 2M positions", at_least=2, at_most=MAX_LENGTH
    )
    marks: int = parameter(32, "number of marked values M", at_least=1, at_most=MAX_LENGTH)

    @property
    def input(self) -> Spec:
        return Spec("real", self.length + 2 * self.marks, 4)

    @property
    def target(self) -> Spec:
        return Spec("real", self.marks, 1)

    def draw(self, rng: np.random.Generator, x: np.ndarray, y: np.ndarray) -> None:
        count = self.length + self.marks
        x[:count, 0] = noise(rng, count)
        x[self.positions(rng), 1] = 1
        self.respond(x, y)

    def respond(self, x: np.ndarray, y: np.ndarray) -> None:
        marked = np.flatnonzero(x[:, 1] == 1)
        if len(marked) != self.marks or marked[-1] >= self.length + self.marks:
            self.refuse(
                f"the second channel holds 1 at {self.marks} of the first {self.length + self.marks}"
                f" positions, found it at {len(marked)} positions"
            )
        y[:, 0] = x[marked, 0]

    def positions(self, rng: np.random.Generator) -> np.ndarray:
        """The marked positions of one sample, ``(marks,)``, ascending, in ``0..L+M-1``."""
        return np.sort(rng.choice(self.length + self.marks, self.marks, replace=False, shuffle=False))


@registry.register("select-fixed")
@dataclass(frozen=True)
class SelectFixed(Select):
    """As ``select``, with the same positions marked in every sample of every split, whatever the seed.

    ``y[n] = x[p_n]`` with positions p_0 < ... < p_{M-1} drawn once. Source: DLR paper (arXiv:2212.00768), section 3.1.
    There are no further tests: another length has other positions.

    >>> batch = SelectFixed(length=2, marks=2).batch([0, 1])
    >>> batch.x[:, :4, 1].tolist()
    [[0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 0.0, 1.0]]
    >>> batch.y[1, :, 0].tolist() == batch.x[1, [1, 3], 0].tolist()
    True
    """

    layout_seed: int = parameter(0, "seed of the marked positions", at_least=0, at_most=MAX_SEED)

    @property
    def nominal_length(self) -> None:
        return None

    def positions(self, rng: np.random.Generator) -> np.ndarray:
        return self._positions

    @functools.cached_property
    def _positions(self) -> np.ndarray:
        return super().positions(self.layout_rng(**self.identifying()))


@registry.register("solve")
@dataclass(frozen=True)
class Solve(SignalTask):
    """Read a system AX = B row by row, then give its solution X.

    A is an N×N orthogonal matrix, X a unit vector, both uniformly random; the signal is the concatenation of the rows
    (a_i, b_i), then zeros. N is the largest number with N² + 2N <= L, so that the rightmost N positions, where X is
    read, come after all coefficients; it grows with the length of the further tests. Source: DLR paper
    (arXiv:2212.00768), section 3.1.

    >>> task = Solve(length=8)
    >>> task.unknowns
    2
    >>> batch = task.batch([0])
    >>> rows = batch.x[0, :6, 0].reshape(2, 3)  # (a_0, b_0) and (a_1, b_1)
    >>> np.allclose(np.linalg.solve(rows[:, :2], rows[:, 2]), batch.y[0, :, 0])
    True
    """

    group: ClassVar[str] = "algorithms"
    presets: ClassVar[Presets] = {"small": {"length": 36, **EASY}, **HARD}

    length: int = parameter(4096, "sequence length L", at_least=3, at_most=MAX_LENGTH)

    @property
    def unknowns(self) -> int:
        """The number N of equations and unknowns: N² + 2N <= L is (N + 1)² <= L + 1."""
        return math.isqrt(self.length + 1) - 1

    @property
    def target(self) -> Spec:
        return Spec("real", self.unknowns, 1)

    def draw(self, rng: np.random.Generator, x: np.ndarray, y: np.ndarray) -> None:
        matrix = self.matrix(rng)
        solution = unit_vectors(rng, self.unknowns)
        rows = np.column_stack([matrix, matrix @ solution])
        x[: rows.size, 0] = rows.ravel()
        y[:, 0] = solution

    answer = Task.answer  # the solution is drawn first, and what is read of the system is rounded

    def matrix(self, rng: np.random.Generator) -> np.ndarray:
        """The orthogonal matrix A of one sample, ``(N, N)`` float64, from the Haar distribution.

        The Q of a Gaussian matrix's QR decomposition is uniform once the diagonal of R is made positive (Mezzadri, "How
        to generate random matrices from the classical compact groups", Notices of the AMS 54(5), 2007, section 5).
        """
        q, r = np.linalg.qr(rng.standard_normal((self.unknowns, self.unknowns)))
        return q * np.copysign(1.0, np.diag(r))


@registry.register("solve-fixed")
@dataclass(frozen=True)
class SolveFixed(Solve):
    """As ``solve``, with the same matrix A in every sample of every split, whatever the seed.

    X = AᵀB with one A. Source: DLR paper (arXiv:2212.00768), section 3.1. There are no further tests: another length
    has another matrix.

    >>> batch = SolveFixed(length=8).batch([0, 1])
    >>> matrix = batch.x[:, :6, 0].reshape(2, 2, 3)[..., :2]
    >>> bool((matrix[0] == matrix[1]).all()), np.allclose(matrix[0] @ batch.y[1], batch.x[1, [2, 5], :1])
    (True, True)
    """

    presets: ClassVar[Presets] = SignalTask.presets

    layout_seed: int = parameter(0, "seed of the matrix A", at_least=0, at_most=MAX_SEED)

    @property
    def nominal_length(self) -> None:
        return None

    def matrix(self, rng: np.random.Generator) -> np.ndarray:
        return self._matrix

    @functools.cached_property
    def _matrix(self) -> np.ndarray:
        return super().matrix(self.layout_rng(**self.identifying()))


class _Lagged(SignalTask):
    """A task that keeps the lags of the trained length, ``coded``, at other lengths."""

    lags_of: int | None

    def check(self) -> None:
        if self.lags_of == self.length:
            object.__setattr__(self, "lags_of", None)

    @property
    def coded(self) -> int:
        return self.lags_of or self.length

    def at_length(self, length: int) -> Task:
        return self.make(**{**self.parameters(), "length": length, "lags_of": self.coded})


@registry.register("shift")
@dataclass(frozen=True)
class Shift(_Lagged):
    """Copy the input to ``shifts`` outputs, each delayed by another lag between 0 and L - L/C.

    With C = ``shifts``: ``y[t, c] = x[t - s_c]`` if ``t >= s_c`` else 0, where ``s_c = floor(c (L - L/C) / (C - 1))``.
    At another length, the further tests keep the lags of the trained length: other lags would be another map.
    Source: Gupta, Mehta and Berant, "Simplifying and Understanding State Space Models with Diagonal Linear RNNs" (DLR
    paper, arXiv:2212.00768), section 3.1.

    >>> task = Shift(length=4, shifts=2)
    >>> task.lags().tolist()
    [0, 2]
    >>> batch = task.batch([0])
    >>> a, b, c, d = batch.x[0, :, 0].tolist()
    >>> batch.y[0].tolist() == [[a, 0], [b, 0], [c, a], [d, b]]
    True
    >>> task.at_length(8).lags().tolist()
    [0, 2]
    """

    group: ClassVar[str] = "copying"
    presets: ClassVar[Presets] = {
        "small": {"length": 256},
        "paper": {"length": 4096},
        # DLR paper, Table 2: lengths 2^14 to 2^20.
        "long": {
            "length": 16384,
            **budget(steps=86400, batch_size=4, eval_every=7200, val_batches=80, test_batches=800),
        },
        # The trend of Table 2 on a CPU: lengths 2^10 to 2^14.
        "trend": {"length": 1024, **budget(steps=400, batch_size=4, eval_every=100)},
    }

    shifts: int = parameter(8, "number of delayed copies C", at_least=1)
    lags_of: int | None = parameter(
        None, "length whose lags are taken; none: this length", at_least=1, at_most=MAX_LENGTH, later=True
    )

    def check(self) -> None:
        super().check()
        if self.shifts > self.coded:
            limit = f"length ({self.length})" if self.lags_of is None else f"lags_of ({self.lags_of})"
            self.refuse(f"shifts must be at most {limit}, found {self.shifts}")

    @property
    def target(self) -> Spec:
        return Spec("real", self.length, self.shifts)

    def lags(self) -> np.ndarray:
        """The delays s_c in positions, ``(shifts,)``: the formula above is cL/C, taken in whole numbers."""
        return np.arange(self.shifts) * self.coded // self.shifts

    def respond(self, x: np.ndarray, y: np.ndarray) -> None:
        signal = x[:, 0].copy()
        lags = self.lags().tolist()
        for start in range(0, len(y), BLOCK):
            stop = min(start + BLOCK, len(y))
            for channel, lag in enumerate(lags):
                first = max(start, lag)
                if first < stop:
                    y[first:stop, channel] = signal[first - lag : stop - lag]

    def baselines(self) -> Mapping[str, Baseline]:
        return {**super().baselines(), "copy": Rule(lambda x: np.where(np.arange(self.shifts) == 0, x[..., :1], 0.0))}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        return {**super().slices(batch), "shift": self.lags()}


@registry.register("context-shift")
@dataclass(frozen=True)
class ContextShift(_Lagged):
    """Delay the whole sequence by s positions, where its first two values are cos(2πs/L) and sin(2πs/L).

    s is uniform in ``0..L-3``; the other L - 2 values are noise; ``y[t] = x[t - s]`` if ``t >= s`` else 0. At another
    length, the further tests keep the code and the lags of the trained length.
    Source: DLR paper (arXiv:2212.00768), section 3.1.

    >>> x = np.array([[0, 0, 0], [1, 0, 0], [0.5, 0, 0], [-1, 0, 0]])  # cos and sin of 2π/4: one position late
    >>> ContextShift(length=4).answer(x)[:, 0].tolist()
    [0.0, 0.0, 1.0, 0.5]
    """

    group: ClassVar[str] = "algorithms"
    presets: ClassVar[Presets] = {"small": {"length": 64, **EASY}, **HARD}

    length: int = parameter(4096, "sequence length L", at_least=3, at_most=MAX_LENGTH)
    lags_of: int | None = parameter(
        None, "length whose lags and code are taken; none: this length", at_least=3, at_most=MAX_LENGTH, later=True
    )

    def draw(self, rng: np.random.Generator, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
        lag = int(rng.integers(self.coded - 2))
        angle = 2 * np.pi * lag / self.coded
        x[:2, 0] = np.cos(angle), np.sin(angle)
        x[2:, 0] = noise(rng, self.length - 2)
        self.respond(x, y)
        return {"shift": lag}

    def respond(self, x: np.ndarray, y: np.ndarray) -> None:
        cos, sin = x[:2, 0].astype(np.float64)
        turns = np.arctan2(sin, cos) / (2 * np.pi) * self.coded
        lag = round(turns) % self.coded
        if abs(turns - round(turns)) > 0.25 or lag > self.coded - 3 or abs(cos**2 + sin**2 - 1) > 1e-3:
            self.refuse(
                f"the first two values are cos(2πs/{self.coded}) and sin(2πs/{self.coded}) of a whole"
                f" number s in 0..{self.coded - 3}, found {cos:g} and {sin:g}"
            )
        y[lag:, 0] = x[: max(len(x) - lag, 0), 0]

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        assert batch.meta is not None
        lags = bin_starts(batch.meta["shift"], self.coded - 2)
        return {**super().slices(batch), "shift": lags[:, None, None]}


@registry.register("mips")
@dataclass(frozen=True)
class Mips(SignalTask):
    """At each position, give the value whose key, among those so far, is nearest to the query.

    Each position holds a query q, a key k and a value v, random unit vectors of dimension D = ``dim``;
    ``y[t] = v[argmax_{j <= t} q_t·k_j]``. Source: DLR paper (arXiv:2212.00768), section 3.1.

    >>> q, k, v = [1, 1, -1], [1, -1, -1], [0.5, 0.25, 0.75]
    >>> x = np.column_stack([q, k, v, np.zeros((3, 2))])
    >>> Mips(length=3, dim=1).answer(x)[:, 0].tolist()  # keys 0, 0 and 1
    [0.5, 0.5, 0.25]
    """

    group: ClassVar[str] = "retrieval"
    presets: ClassVar[Presets] = {
        "small": {"length": 256},
        # DLR paper: batches of 4 where the other atomic tasks have 16, over as many samples.
        "paper": {
            "length": 4096,
            **budget(steps=172800, batch_size=4, eval_every=14400, val_batches=160, test_batches=1600),
        },
    }

    length: int = parameter(4096, "sequence length L; time grows with its square", at_least=2, at_most=MIPS_LONGEST)
    dim: int = parameter(4, "dimension D of queries, keys and values", at_least=1, at_most=4096)

    @property
    def input(self) -> Spec:
        return Spec("real", self.length, 3 * self.dim + 2)

    @property
    def target(self) -> Spec:
        return Spec("real", self.length, self.dim)

    def draw(self, rng: np.random.Generator, x: np.ndarray, y: np.ndarray) -> None:
        x[:, :-2] = unit_vectors(rng, self.length, 3, self.dim).reshape(self.length, -1)
        self.respond(x, y)

    def respond(self, x: np.ndarray, y: np.ndarray) -> None:
        queries, keys, values = x[:, :-2].reshape(self.length, 3, self.dim).transpose(1, 0, 2)
        y[:] = values[nearest_so_far(queries, keys)]


def nearest_so_far(queries: np.ndarray, keys: np.ndarray, block: int = MIPS_BLOCK) -> np.ndarray:
    """``argmax_{j <= t} q_t·k_j`` for each t, the first of equal ones; ``(length,)`` from two ``(length, dim)``.

    Queries are taken a few at a time, so that about ``block`` inner products are held at once (``length`` if that is
    more). Computed in float64: with float32 products, near ties would depend on the platform's summation.
    """
    length = len(queries)
    rows = max(1, min(length, block // length))
    queries = queries.astype(np.float64)
    keys = np.ascontiguousarray(keys.T, dtype=np.float64)
    future = np.triu(np.ones((rows, rows), bool), 1)
    best = np.empty(length, np.int64)
    for start in range(0, length, rows):
        stop = min(start + rows, length)
        scores = queries[start:stop] @ keys[:, :stop]
        scores[:, start:][future[: stop - start, : stop - start]] = -np.inf
        scores.argmax(axis=1, out=best[start:stop])
    return best


@registry.register("adding")
@dataclass(frozen=True)
class Adding(Task):
    """Add the two marked numbers of a long sequence.

    Input: L = ``length`` numbers, independent and uniform over [0, 1), and beside each a mark, 1 for two of them and 0
    for the others. Target: one number for the sequence, the sum of the two.

    ``law="halves"``: one mark uniform among the first ⌊L/2⌋ positions, one among the others. Source: Arjovsky et al.,
    "Unitary Evolution Recurrent Neural Networks" (arXiv:1511.06464), section 5, after Hochreiter and Schmidhuber;
    code of Gu et al., "Efficiently Modeling Long Sequences with Structured State Spaces" (S4, arXiv:2111.00396).
    ``law="anywhere"``: the marks are at two distinct positions, uniform. Source: Bai et al., "An Empirical Evaluation
    of Generic Convolutional and Recurrent Networks for Sequence Modeling" (TCN, arXiv:1803.01271), section 4.

    The papers give the mean squared error; with R² as the score it is (1 - R²)/6.

    >>> task = Adding(length=4)
    >>> task.answer([[0.5, 1], [0.25, 0], [0.125, 0], [0.75, 1]]).tolist()
    [[1.25]]
    """

    group: ClassVar[str] = "latching"
    presets: ClassVar[Presets] = {"small": {"length": 200, "budget.batch_size": 64}, "paper": {"length": 400}}

    length: int = parameter(400, "sequence length L", at_least=2, at_most=MAX_LENGTH)
    law: Literal["halves", "anywhere"] = parameter("halves", "where the two marks are")

    @property
    def input(self) -> Spec:
        return Spec("real", self.length, 2)

    @property
    def target(self) -> Spec:
        return Spec("real", 1, 1, pooled=True)

    def sample(self, rng: np.random.Generator) -> Sample:
        x = np.zeros((self.length, 2), dtype=np.float32)
        x[:, 0] = rng.random(self.length, dtype=np.float32)
        if self.law == "halves":
            half = self.length // 2
            one, two = int(rng.integers(half)), half + int(rng.integers(self.length - half))
        else:
            one, two = int(rng.integers(self.length)), int(rng.integers(self.length - 1))
            two += two >= one
        x[[one, two], 1] = 1
        return Sample(x, (x[one, :1] + x[two, :1])[None])

    def answer(self, x: np.ndarray) -> np.ndarray:
        """The target ``(1, 1)`` of ``x`` ``(length, 2)``, numbers and marks, any length.

        Raises:
            UsageError: for another shape, values that are not finite, or marks other than 0 and exactly two 1.
        """
        try:
            given = np.asarray(x, dtype=np.float32)
        except (TypeError, ValueError):
            self.refuse(f"an input holds numbers, found {x!r:.60}")
        if given.ndim != 2 or given.shape[1] != 2:
            self.refuse(f"an input has shape (length, 2), numbers and marks, found {given.shape}")
        if not np.isfinite(given).all():
            self.refuse(f"an input holds finite numbers, found {given[~np.isfinite(given)][0]}")
        marked = np.flatnonzero(given[:, 1])
        if len(marked) != 2 or not (given[marked, 1] == 1).all():
            self.refuse(f"two marks must be 1 and all others 0, found {given[marked, 1].tolist()[:5]} beside zeros")
        return given[marked[:1], :1] + given[marked[1:], :1]

    def baselines(self) -> Mapping[str, Baseline]:
        """The mean of all sums; the number marked last plus 1/2, for a model that misses the first."""

        def second(x: np.ndarray) -> np.ndarray:
            last = x.shape[1] - 1 - x[:, ::-1, 1].argmax(axis=1)
            return np.asarray(x[np.arange(len(x)), last, 0] + 0.5)[:, None, None]

        return {**super().baselines(), "second": Rule(second)}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """By distance from the first mark to the end, in octaves."""
        first = batch.x[:, :, 1].argmax(axis=1)
        return {"distance": octave(batch.x.shape[1] - first)[:, None, None]}

    def tests(self) -> Mapping[str, Task]:
        """2, 4 and 8 times the length."""
        return self.scaled("length")

    def text(self, batch: Batch, index: int) -> str:
        """The marked numbers with their positions, and the sum."""
        x = batch.x[index]
        marked = np.flatnonzero(x[:, 1]).tolist()
        return " + ".join(f"{x[at, 0]:.3f}@{at}" for at in marked) + f" of {len(x)} = {batch.y[index, 0, 0]:.3f}"
