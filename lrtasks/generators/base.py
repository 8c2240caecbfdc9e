"""Base class of tasks: a frozen dataclass of parameters that draws each sample from its own random generator.

A new task needs one file in ``generators/tasks/``. It registers a subclass of :class:`Task` that defines ``input``,
``target`` and :meth:`Task.sample`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

import numpy as np

from lrtasks.config import Config
from lrtasks.errors import UsageError, require_known, require_whole
from lrtasks.generators import randomness as random
from lrtasks.generators import tables
from lrtasks.generators.baselines import Baseline, MajorityClass, PositionMean, bin_starts
from lrtasks.generators.fingerprint import FINGERPRINT, instances
from lrtasks.registry import Registry, file_of, misnamed
from lrtasks.spec import Batch, Sample, Spec

if TYPE_CHECKING:
    from lrtasks.generators.torch_dataset import TaskSamples, TaskStream

Split = Literal["train", "val", "test"]
Slices = dict[str, list[dict[str, Any]]]
"""Slices of a score by name: for each group of elements, a row with label, score and number of elements."""
Rngs = random.Generators | Sequence[np.random.Generator]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
MAX_LENGTH = 2**24
MAX_SEED = 2**63 - 1

LOSSES = {"real": ("mse",), "token": ("cross-entropy", "balanced-cross-entropy")}
"""Losses that a task may declare, by the kind of its target; the first loss is the usual one."""
METRICS = {"real": ("r2",), "token": ("accuracy", "macro_f1")}
"""Metrics that a task may declare, by the kind of its target; the first metric is the usual one."""

GROUPS = (*FINGERPRINT, "algorithms", "geometry", "other")
"""Groups of tasks, one for each capability that is tested, in the order in which lists show them."""


registry: Registry[Task] = Registry(
    "task",
    base="lrtasks.generators:Task",
    package="lrtasks.generators.tasks",
    lists={"fingerprint": instances()},
)


@dataclasses.dataclass(frozen=True)
class Task(Config):
    """Base of all tasks.

    Class attributes:
        name: the task's name, set by registration.
        version: a number that must be raised whenever the same parameters and seed give different samples.
        causal: whether models are built as causal models (as in the papers' experiments on the atomic tasks).
        loss: ``"mse"``, ``"cross-entropy"`` or ``"balanced-cross-entropy"`` (weighted by inverse class counts).
        metric: the main score, ``"r2"``, ``"accuracy"`` or ``"macro_f1"``.
        group: the capability that the task tests, one of :data:`GROUPS`.
        grows: parameters that the further tests multiply by 2, 4 and 8; without any, there are no such tests.
        any_length: whether :meth:`answer` takes inputs of any length.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    causal: ClassVar[bool] = True
    loss: ClassVar[str] = "mse"
    metric: ClassVar[str] = "r2"
    group: ClassVar[str] = "other"
    grows: ClassVar[tuple[str, ...]] = ()
    any_length: ClassVar[bool] = False

    @property
    def input(self) -> Spec:
        """Kind, length and width of the input that a model receives."""
        raise UsageError("input is missing: write a property that returns a lrtasks.generators.Spec")

    @property
    def target(self) -> Spec:
        """Kind, length and width of the output that a model must return."""
        raise UsageError("target is missing: write a property that returns a lrtasks.generators.Spec")

    @property
    def pad(self) -> int:
        """Token of the padding, which rows of a text table leave out (:meth:`from_row`)."""
        return 0

    def sample(self, rng: np.random.Generator) -> Sample:
        """Draw one sample; ``rng`` is the only source of randomness. A task defines this method or :meth:`samples`."""
        if type(self).samples is Task.samples:
            raise UsageError("sample() is missing: write sample(self, rng), which returns a lrtasks.generators.Sample")
        return self.samples([rng]).sample(0)

    def samples(self, rngs: Rngs) -> Batch:
        """Draw one sample from each generator. If a task has both methods, they must return the same arrays.

        ``rngs`` resets and yields one object: draw all numbers of a sample before you take the next generator.
        """
        return stack([self.sample(rng) for rng in rngs])

    def batch(
        self, indices: Sequence[int] | np.ndarray, seed: int = 0, split: Split = "train", *, attempt: int = 0
    ) -> Batch:
        """Return samples ``indices``. Sample i depends only on task, parameters, version, seed, split, i and attempt.

        Args:
            indices: sample numbers, each at least 0; any order, repeats allowed.
            seed: any whole number in 0..2^63-1.
            split: ``"train"``, ``"val"`` or ``"test"``; splits share no randomness.
            attempt: 0 for the sample itself; k for its k-th replacement, when a stored set draws an index again.

        Raises:
            UsageError: if an argument is outside its range, or if the class has no name.
        """
        require_indices(indices)
        for index in indices:
            require_whole("sample index", index, 0, MAX_SEED)
        require_whole("attempt", attempt, 0, MAX_SEED)
        return self.samples(random.Generators(self.key(seed, split), indices, attempt))

    def stream(self, batch_size: int, seed: int = 0, split: Split = "train", *, start: int = 0) -> Iterator[Batch]:
        """Return an endless iterator over batches of samples 0, 1, 2, ...; ``start`` is the number of the first batch.

        Raises:
            UsageError: if an argument is outside its range.
        """
        require_whole("batch_size", batch_size, 1, MAX_SEED)
        require_whole("start", start, 0, MAX_SEED)
        self.key(seed, split)  # raise an error now, not at the first batch
        size = int(batch_size)  # a whole number of eight bits would overflow
        first = (step * size for step in itertools.count(int(start)))
        return (self.batch(range(index, index + size), seed, split) for index in first)

    def torch_dataset(
        self, split: Split = "train", *, samples: int | None = None, seed: int = 0, batch_size: int | None = None
    ) -> TaskSamples | TaskStream:
        """Return the samples as a PyTorch dataset for ``torch.utils.data.DataLoader`` with any number of workers.

        Each item is a tuple of tensors ``(x, y)``, or ``(x, y, mask)`` if the task has padding. The tensors have the
        shapes of :meth:`batch` without the batch axis. Every worker draws the same sample ``i`` as :meth:`batch`.

        Args:
            split: ``"train"``, ``"val"`` or ``"test"``.
            samples: size of a map-style dataset (for shuffling and epochs); ``None``: an endless iterable dataset,
                which the processes of ``torch.distributed`` share (a map-style one needs a ``DistributedSampler``).
            seed: any whole number in 0..2^63-1.
            batch_size: for the endless dataset only: each item is a whole batch of this size. Load such a dataset with
                ``DataLoader(..., batch_size=None)``: the order of the batches is then the same for every number of
                workers.

        Raises:
            UsageError: if an argument is outside its range, or if both ``samples`` and ``batch_size`` are given.
        """
        from lrtasks.generators.torch_dataset import TaskSamples, TaskStream

        self.key(seed, split)  # raise an error now, not in a worker
        for name, value in (("samples", samples), ("batch_size", batch_size)):
            if value is not None:
                require_whole(name, value, 1, MAX_SEED)
        if samples is None:
            return TaskStream(self, split, seed, batch_size)
        if batch_size is not None:
            raise UsageError("batch_size belongs to the endless stream; with samples, give it to the DataLoader")
        return TaskSamples(self, split, seed, samples)

    def key(self, seed: int, split: str) -> np.ndarray:
        """Return the Philox key of the samples of one seed and split.

        Raises:
            UsageError: for an unknown split, or a seed outside 0..2^63-1.
        """
        require_known("split", split, SPLITS)
        require_whole("seed", seed, 0, MAX_SEED)
        return random.derive_key(**self.identity(), seed=int(seed), split=split)

    def layout_rng(self, **parts: Any) -> np.random.Generator:
        """Return a generator, keyed by ``parts``, for fixed positions or matrices that all samples and splits share."""
        return random.generator(random.derive_key(task=self.name, version=self.version, layout=parts))

    def require_name(self) -> None:
        """Raise :class:`UsageError` if the class has no name, on which all samples depend."""
        if not hasattr(self, "name"):
            hint = "register the class with @lrtasks.generators.registry.register(NAME), or take the task from"
            made = "lrtasks.make('FILE.py:NAME'), or lrtasks.make(NAME) where an entry point names it"
            raise UsageError(f"{type(self).__name__} has no name; {hint} {made}")

    def identity(self) -> dict[str, Any]:
        """Return name, version and parameters, which together identify the task's data, as JSON-ready values.

        Raises:
            UsageError: if the class has no name.
        """
        self.require_name()
        return {"task": self.name, "version": self.version, "parameters": self.identifying()}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle class, name and parameters: cached values are left out, a name from an entry point is kept."""
        cls, file = type(self), file_of(type(self))
        # another process cannot import a class from the user's file by its name
        where = cls if file is None else f"{file}:{cls.__qualname__}"
        return _restore, (where, cls.__module__, self.name, self.parameters())

    def baselines(self) -> Mapping[str, Baseline]:
        """Return the baselines by name: simple predictors whose scores are shown next to the scores of every model."""
        if self.target.kind == "real":
            return {"constant": PositionMean()}
        return {"majority": MajorityClass(self.target.width)}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """Return the slices by name: labels that group the elements of ``y``, in an array broadcastable to ``y``.

        The default for signals is a slice by position: the target is divided into eight equal parts, each labelled
        with its first position.
        """
        if self.target.kind == "real":
            length = self.target.length
            return {"position": bin_starts(np.arange(length), length)[:, None]}
        return {}

    def derived_scores(self, scores: Mapping[str, float], slices: Slices) -> dict[str, float]:
        """Return additional scores of a test by name, computed from its scores and slices (default: none)."""
        return {}

    @property
    def nominal_length(self) -> int | None:
        """The length that :meth:`at_length` changes: the parameter ``length``, or ``None`` if there is none."""
        length = getattr(self, "length", None)
        return length if isinstance(length, int) else None

    def at_length(self, length: int) -> Task:
        """Return this task at another length, to test a model trained on this task. Kinds and widths stay the same.

        Raises:
            UsageError: if the task has no length, or refuses this length.
        """
        if self.nominal_length is None:
            raise UsageError(
                f"{self.name} has no tests at other lengths: it has no length, or another length is another map"
            )
        other = self.make(**{**self.parameters(), "length": length})
        self.require_same_widths(other, f"{self.name} at length {length}")
        return other

    def longer(self) -> dict[str, Task]:
        """Return this task at 2, 4 and 8 times its length as ``"2x"`` and so on; leave out lengths that it refuses."""
        found: dict[str, Task] = {}
        for times in (2, 4, 8):
            with contextlib.suppress(UsageError):
                found[f"{times}x"] = self.at_length(times * (self.nominal_length or 0))
        return found

    def further(self, changes: Mapping[str, Mapping[str, Any]]) -> dict[str, Task]:
        """Return this task with other parameters: ``changes`` maps the name of each test to its parameters.

        A test is left out if the task refuses the parameters, if it equals this task, or if its input would be longer
        than ``MAX_LENGTH``.
        """
        found: dict[str, Task] = {}
        for name, values in changes.items():
            with contextlib.suppress(UsageError):
                task = dataclasses.replace(self, **values)
                if task != self and task.input.length <= MAX_LENGTH:
                    found[name] = task
        return found

    def scaled(self, *names: str, by: Sequence[int] = (2, 4, 8)) -> dict[str, Task]:
        """Return :meth:`further` with parameters ``names`` times each number of ``by``, as ``"2x"`` and so on."""

        def times(n: int, value: Any) -> Any:
            return tuple(n * part for part in value) if isinstance(value, tuple) else n * value

        return self.further({f"{n}x": {name: times(n, getattr(self, name)) for name in names} for n in by})

    def checked_tests(self) -> dict[str, Task]:
        """Return the result of :meth:`tests`, checked.

        Raises:
            UsageError: if the result is not a mapping, or if a test is not a task, needs another model or has the
                name of a split.
        """
        tests: object = self.tests()
        if not isinstance(tests, Mapping):
            raise UsageError(f"{self.name}: tests() must map names to tasks, found {tests!r}")
        for name, test in tests.items():
            if not isinstance(test, Task):
                raise UsageError(f"{self.name}: test {name} must be a task, found {test!r}")
            if name in SPLITS:
                raise UsageError(f"{self.name}: a test cannot be called {name!r}, the name of a split; rename it")
            self.require_same_widths(test, f"test {name} of {self.name}")
            if not hasattr(test, "name"):  # another class in the user's file
                type(test).name = type(test).__name__
        return dict(tests)

    def checked_baselines(self) -> Mapping[str, Baseline]:
        """Return the result of :meth:`baselines`, checked.

        Raises:
            UsageError: if the result is not a mapping, or an entry lacks a method of :class:`Baseline`.
        """
        baselines: object = self.baselines()
        if not isinstance(baselines, Mapping):
            kind = type(baselines).__name__
            raise UsageError(f"{self.name}: baselines() must return a dictionary of predictors by name, found {kind}")
        for name, entry in baselines.items():
            if not (hasattr(entry, "fit") and hasattr(entry, "predict")):
                raise UsageError(f"{self.name}: baseline {name} must have the methods fit and predict, found {entry!r}")
        return baselines

    def require_same_widths(self, other: Task, what: str) -> None:
        """Raise :class:`UsageError` if ``other`` needs another model; only lengths of unpooled specs may differ.

        A model computes all values of a pooled target from one vector, so its decoder depends on their number.
        """
        for mine, its in ((self.input, other.input), (self.target, other.target)):
            if mine != (its if its.pooled else dataclasses.replace(its, length=mine.length)):
                raise UsageError(f"{what} needs another model: {its} in place of {mine}")

    def tests(self) -> Mapping[str, Task]:
        """Return further tests of a trained model by name: same widths, but another length or distribution.

        Subclasses name parameters in ``grows``, or return :meth:`longer`, :meth:`scaled` or :meth:`further`.
        """
        return self.scaled(*self.grows) if self.grows else {}

    def answer(self, x: np.ndarray) -> np.ndarray:
        """Return the target ``y`` of an input ``x`` of your own, for tasks whose target is a function of the input.

        Args:
            x: ``(length, channels)`` real values or ``(length,)`` tokens, without batch axis.

        Returns:
            The ``y`` of a test sample with this ``x``, bit for bit. A training sample may have more labels.

        Raises:
            UsageError: if the target is not a function of the input, or ``x`` is not an input of the task.
        """
        raise UsageError(f"{self.name} has no exact answer to a given input")

    def checked_input(self, x: Any) -> np.ndarray:
        """Return ``x`` as the input of one sample: float32 ``(length, channels)``, or int64 ``(length,)``.

        Raises:
            UsageError: for another shape or type, values that are not finite, or tokens that are not in the vocabulary.
        """
        real, width, shape = self.input.kind == "real", self.input.width, self.input.shape(1)[1:]
        try:
            array = np.asarray(x)
        except ValueError:
            self.refuse("an input is one array of numbers, found a ragged list")
        alike = array.ndim == len(shape) and array.shape[1:] == shape[1:] and array.size > 0
        fits = alike and (self.any_length or len(array) == shape[0])
        if not fits or array.dtype.kind not in ("iuf" if real else "iu"):
            wanted = str(("length" if self.any_length else shape[0], *shape[1:])).replace("'", "")
            numbers, found = "numbers" if real else "whole numbers", f"shape {array.shape} of {array.dtype}"
            self.refuse(f"an input has {numbers} of shape {wanted}, found {found}")
        wrong = ~np.isfinite(array) if real else (array < 0) | (array >= width)
        if wrong.any():
            what, at = "numbers must be finite" if real else f"tokens must be in 0..{width - 1}", np.argwhere(wrong)[0]
            self.refuse(f"{what}, found {array[tuple(at)]} at position {at[0]}")
        return array.astype(np.float32 if real else np.int64)

    def refuse(self, what: str) -> NoReturn:
        """Raise a :class:`UsageError` about the user's input or parameter; the message begins with the task's name."""
        raise UsageError(f"{self.name}: {what}")

    def text(self, batch: Batch, index: int) -> str | None:
        """Return sample ``index`` of a batch as readable text; ``None`` (default): a preview plots the sample."""
        return None

    def to_row(self, batch: Batch, index: int) -> dict[str, str]:
        """Return sample ``index`` of a batch as a row of a text table: cells by column name. Only for token tasks."""
        return tables.to_row(batch, index)

    def from_row(self, row: tables.Row) -> Sample:
        """Return the sample of a row that :meth:`to_row` made.

        Raises:
            UsageError: for a missing column, or a token, label or position out of range.
        """
        tokens, labels, places = (tables.numbers(row, name) for name in ("Source", "Target", "TargetInds"))
        sample = tables.padded(tokens, labels, places, self.input, self.target, self.pad)
        return sample if self._has_masks or len(tokens) < self.input.length else sample._replace(mask=None)

    @functools.cached_property
    def _has_masks(self) -> bool:
        """Return whether every sample has a mask, even a sample without padding."""
        return self.batch([0]).mask is not None

    def image_shape(self) -> tuple[int, int] | None:
        """Return rows and columns of the image whose pixels are the positions; ``None`` if the task has no images."""
        return None

    def duplicate_key(self, batch: Batch, index: int) -> bytes | None:
        """Return bytes of sample ``index`` that no two stored samples may share; ``None`` allows duplicates."""
        return None


def _restore(where: type[Task] | str, module: str, name: str, parameters: dict[str, Any]) -> Task:
    """Unpickle a task from its class or address; an edit of the user's file changes the name ``module``."""
    cls = registry.get(where) if isinstance(where, str) else where
    # a class of the main script is found by its name, and its module is called __mp_main__ in a spawned process
    if isinstance(where, str) and cls.__module__ != module:
        raise UsageError(f"{where.rpartition(':')[0]} was edited while it was in use; start again")
    if "name" not in vars(cls):
        registry.register(name)(cls)
    return cls.make(**parameters)


def misdeclared(task: Task) -> Iterator[str]:
    """Yield a message for the name of a task, and for its loss and metric if they do not fit the kind of the target."""
    yield from misnamed(task.name, "task")
    for field, allowed in (("loss", LOSSES[task.target.kind]), ("metric", METRICS[task.target.kind])):
        if getattr(task, field) not in allowed:
            names = " or ".join(repr(name) for name in allowed)
            yield (
                f"{field} of a {task.target.kind} target must be {names}, found {getattr(task, field)!r}; write"
                f" {field} = {allowed[0]!r} in the class"
            )


def mislabelled(slices: Mapping[str, Any], shape: tuple[int, ...]) -> Iterator[str]:
    """Yield a message for each slice whose labels do not fit targets of ``shape``."""
    for name, values in slices.items():
        labels = np.asarray(values)
        try:
            np.broadcast_to(labels, shape)
        except ValueError:
            mend = "; one label per sample needs axes for the others: labels[:, None]" * (labels.shape == shape[:1])
            yield f"slice {name!r} must broadcast to y, {shape}, found {labels.shape}{mend}"
            continue
        if labels.dtype.kind not in "biufU" or (labels.dtype.kind == "f" and not np.isfinite(labels).all()):
            found = f"{labels.dtype} {labels.flat[0]!r}"
            yield f"slice {name!r} must be labelled by finite numbers or strings, found {found}"


def overlap(task: Task, train_samples: int, test_samples: int, seed: int = 0) -> float:
    """Return the share of test inputs that also occur among the training inputs, 0..1.

    The share is 0 for real-valued inputs, which are assumed to be all different. For tokens, all samples are drawn.

    >>> import lrtasks
    >>> overlap(lrtasks.make("recall", length=2, vocab=8), 1000, 100)
    1.0
    >>> overlap(lrtasks.make("recall", length=64), 1000, 100)
    0.0
    """
    if task.input.kind == "real":
        return 0.0

    def batches(samples: int, split: Split) -> Iterator[Batch]:
        return (task.batch(range(at, min(at + 512, samples)), seed, split) for at in range(0, samples, 512))

    return share_among(batches(test_samples, "test"), batches(train_samples, "train"))


def share_among(tested: Iterable[Batch], trained: Iterable[Batch]) -> float:
    """Return the share of the inputs of ``tested`` that also occur in ``trained``, 0..1."""
    inputs = [x.tobytes() for batch in tested for x in batch.x]
    unseen = set(inputs)
    for batch in trained:
        unseen.difference_update(map(np.ndarray.tobytes, batch.x))
        if not unseen:
            break
    return float(np.mean([x not in unseen for x in inputs]))


def stack(samples: Sequence[Sample]) -> Batch:
    """Stack samples into a batch; meta entries of equal shape become arrays, all others lists.

    Raises:
        UsageError: if ``x``, ``y`` or ``mask`` has several shapes, or if only some samples have a mask or an entry of
            ``meta``.
    """
    for sample in samples:
        require_sample(sample)
    masks = [sample.mask for sample in samples if sample.mask is not None]
    metas = [sample.meta for sample in samples if sample.meta is not None]
    if masks and len(masks) < len(samples):
        hint = "give np.ones(length, bool) where nothing is padded"
        raise UsageError(f"either all samples have a mask or none, found both ({hint})")
    for names in [(sample.meta or {}).keys() for sample in samples] if metas else []:
        if names != metas[0].keys():
            found = f"{sorted(names)} and {sorted(metas[0])}"
            raise UsageError(f"meta must have the same names in all samples, found {found}")
    try:
        x, y = np.stack([sample.x for sample in samples]), np.stack([sample.y for sample in samples])
        mask = np.stack(masks) if masks else None
    except ValueError:
        shapes = sorted({str([np.asarray(array).shape for array in sample[:3]]) for sample in samples})
        found = " and ".join(shapes[:2])
        raise UsageError(f"x, y and mask must have the same shapes in all samples, found {found}") from None
    return Batch(x, y, mask, columns(metas) if metas else None)


def require_indices(indices: Any) -> None:
    """Raise :class:`UsageError` unless ``indices``, which ``batch`` received, is a list of at least one entry."""
    if not hasattr(indices, "__len__") or getattr(indices, "ndim", 1) != 1:
        raise UsageError(f"batch takes a list of sample numbers such as range(16), found {indices!r}")
    if len(indices) == 0:
        raise UsageError("batch needs at least one index")


def require_sample(sample: object) -> None:
    """Raise :class:`UsageError` unless ``sample``, which a task's ``sample`` returned, is a :class:`Sample`."""
    if not isinstance(sample, Sample):
        found = type(sample).__name__
        raise UsageError(f"sample() must return lrtasks.generators.Sample(x, y), found {found}")
    if sample.meta is not None and not isinstance(sample.meta, dict):
        raise UsageError(f"meta must be a dictionary or None, found {type(sample.meta).__name__}")


def columns(details: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the details of several samples as columns, by name; see :func:`column`."""
    return {name: column([detail[name] for detail in details]) for name in details[0]}


def column(values: Sequence[Any]) -> Any:
    """Return one value per sample as an array; if the shapes differ, return the sequence ``values`` unchanged."""
    if len({np.shape(value) for value in values}) != 1:
        return values
    array = np.asarray(values)
    # NumPy rounds whole numbers above 2^63 beside smaller ones
    rounded = array.dtype.kind == "f" and all(isinstance(value, int | np.integer) for value in values)
    return np.asarray(values, object) if rounded else array


def budget(**settings: Any) -> dict[str, Any]:
    """Return settings of the training budget in the form in which a preset holds them.

    >>> budget(steps=1500, lr=1e-3)
    {'budget.steps': 1500, 'budget.lr': 0.001}
    """
    return {f"budget.{name}": value for name, value in settings.items()}


def make(name: str, *, preset: str | None = None, **parameters: Any) -> Task:
    """Build the task called ``name``; see ``lrtasks describe NAME`` for its parameters and presets.

    Without a preset, the parameters have their default values, mostly the sizes in the papers. In contrast,
    :func:`lrtasks.evaluate` and ``lrtasks eval`` use preset ``small``, which trains in minutes on two CPU cores.

    Args:
        name: a registered name, or the address ``FILE.py:NAME`` of your own class.
        preset: name of the preset that sets the parameters not given here; ``None``: these have their default values.
        parameters: values by name.

    Raises:
        UsageError: for an unknown name, preset or parameter (the message suggests similar names) or a wrong value.
    """
    cls = registry.get(name)
    if preset is None:
        return cls.make(**parameters)
    require_known(f"preset of {name}", preset, cls.presets)
    return cls.make(**{**cls.preset_values(preset)[0], **parameters})


def names(group: str | None = None) -> list[str]:
    """Return the names of all tasks, built-in and installed, or of the usable tasks of one group of :data:`GROUPS`.

    No task is imported if ``group`` is ``None``.

    Raises:
        UsageError: for an unknown group.
    """
    if group is None:
        return registry.names()
    require_known("group", group, GROUPS)
    return [name for name in registry.usable() if registry.get(name).group == group]
