"""What a task is: a frozen dataclass of parameters that draws sample ``i`` from a generator of its own.

A new task is one file in ``generators/tasks/``: a class that subclasses :class:`Task`, states ``input`` and ``target``,
and writes :meth:`Task.sample`, and a line in the table below.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, SupportsIndex

import numpy as np

from lrtasks.config import Config
from lrtasks.errors import UsageError, require_whole, unknown
from lrtasks.generators import randomness as random
from lrtasks.generators import tables
from lrtasks.generators.baselines import Baseline, MajorityClass, PositionMean, bin_starts
from lrtasks.generators.fingerprint import instances
from lrtasks.registry import Registry, file_of
from lrtasks.spec import Batch, Sample, Spec

if TYPE_CHECKING:
    from lrtasks.generators.torch_dataset import TaskSamples, TaskStream

Split = Literal["train", "val", "test"]
Slices = dict[str, list[dict[str, Any]]]
"""Breakdowns of a score: by name, a row per group with its label, score and number of elements."""
Rngs = random.Generators | Sequence[np.random.Generator]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
MAX_LENGTH = 2**24
MAX_SEED = 2**63 - 1

LOSSES = {"real": ("mse",), "token": ("cross-entropy", "balanced-cross-entropy")}
"""Names of the losses that a task may declare, by the kind of its target; the first is the usual one."""
METRICS = {"real": ("r2",), "token": ("accuracy", "macro_f1")}
"""Names of the metrics that a task may declare, by the kind of its target; the first is the usual one."""

GROUPS = (
    "state",
    "structure",
    "copying",
    "retrieval",
    "hops",
    "capacity",
    "latching",
    "algorithms",
    "geometry",
    "other",
)
"""Capabilities that tasks test, in the order in which they are shown."""

registry: Registry[Task] = Registry(
    "task",
    group="lrtasks.tasks",
    base="lrtasks.generators:Task",
    package="lrtasks.generators.tasks",
    built_in={
        "adding": "adding:Adding",
        "chomsky": "chomsky:Chomsky",
        "compression": "compression:Compression",
        "context-shift": "context_shift:ContextShift",
        "copying": "copying:Copying",
        "cummax": "cummax:Cummax",
        "cumsum": "cumsum:Cumsum",
        "depo": "depo:Depo",
        "dyck": "dyck:Dyck",
        "flip-flop": "flip_flop:FlipFlop",
        "fuzzy-recall": "fuzzy_recall:FuzzyRecall",
        "in-context-language": "in_context_language:InContextLanguage",
        "induction-heads": "induction_heads:InductionHeads",
        "joint-recall": "joint_recall:JointRecall",
        "k-hop": "k_hop:KHop",
        "listops": "listops:ListOps",
        "listops-root": "listops:ListOpsRoot",
        "memorization": "memorization:Memorization",
        "mips": "mips:Mips",
        "mqar": "mqar:Mqar",
        "noisy-recall": "noisy_recall:NoisyRecall",
        "overwrite": "overwrite:Overwrite",
        "pathfinder": "pathfinder:Pathfinder",
        "pathfinder-classification": "pathfinder:PathfinderClassification",
        "recall": "recall:Recall",
        "reverse": "reverse:Reverse",
        "select": "select:Select",
        "select-fixed": "select:SelectFixed",
        "selective-copying": "selective_copying:SelectiveCopying",
        "shift": "shift:Shift",
        "solve": "solve:Solve",
        "solve-fixed": "solve:SolveFixed",
        "sort": "sort:Sort",
        "stack": "stack:Stack",
        "variable-tracking": "variable_tracking:VariableTracking",
        "word-problem": "word_problem:WordProblem",
    },
    lists={"fingerprint": instances()},
)


@dataclasses.dataclass(frozen=True)
class Task(Config):
    """Base of all tasks.

    Class attributes:
        name: the task's name, set by registration.
        version: raised whenever the samples of the same parameters and seed change.
        causal: whether models are to be causal (the papers run the atomic tasks so).
        loss: ``"mse"``, ``"cross-entropy"`` or ``"balanced-cross-entropy"`` (weighted by inverse class counts).
        metric: ``"r2"``, ``"accuracy"`` or ``"macro_f1"``; the headline score.
        group: the capability that the task tests, one of :data:`GROUPS`.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    causal: ClassVar[bool] = True
    loss: ClassVar[str] = "mse"
    metric: ClassVar[str] = "r2"
    group: ClassVar[str] = "other"

    @property
    def input(self) -> Spec:
        """What a model receives."""
        raise NotImplementedError

    @property
    def target(self) -> Spec:
        """What a model returns."""
        raise NotImplementedError

    def sample(self, rng: np.random.Generator) -> Sample:
        """Draw one sample; ``rng`` is the only source of randomness."""
        raise NotImplementedError

    def samples(self, rngs: Rngs) -> Batch:
        """Draw one sample from each generator. A vectorised override must return the same arrays.

        ``rngs`` yields one re-used object: take all draws from a generator before asking for the next.
        """
        return stack([self.sample(rng) for rng in rngs])

    def batch(
        self, indices: Sequence[int] | np.ndarray, seed: int = 0, split: Split = "train", *, attempt: int = 0
    ) -> Batch:
        """Samples ``indices`` of ``split``: sample i depends on task, parameters, version, seed, split and i alone.

        Args:
            indices: sample numbers, each at least 0; any order, repeats allowed.
            seed: any whole number in 0..2^63-1.
            split: ``"train"``, ``"val"`` or ``"test"``; splits share no randomness.
            attempt: 0, or the number of the replacement when a stored set draws an index again.

        Raises:
            UsageError: if an argument is outside its range.
        """
        if isinstance(indices, (int, np.integer)):
            raise UsageError(f"batch takes sample numbers such as range({indices}), found {indices}")
        if len(indices) == 0:
            raise UsageError("batch needs at least one index")
        for index in indices:
            require_whole("sample index", index, 0, MAX_SEED)
        require_whole("attempt", attempt, 0, MAX_SEED)
        return self.samples(random.generators(self.key(seed, split), indices, attempt))

    def stream(self, batch_size: int, seed: int = 0, split: Split = "train", *, start: int = 0) -> Iterator[Batch]:
        """Endless batches of samples 0, 1, 2, ...; ``start`` is the number of the first batch.

        Raises:
            UsageError: if an argument is outside its range.
        """
        require_whole("batch_size", batch_size, 1, MAX_SEED)
        require_whole("start", start, 0, MAX_SEED)
        self.key(seed, split)  # an error now rather than at the first batch
        first = (step * batch_size for step in itertools.count(start))
        return (self.batch(range(index, index + batch_size), seed, split) for index in first)

    def torch_dataset(
        self, split: Split = "train", *, samples: int | None = None, seed: int = 0, batch_size: int | None = None
    ) -> TaskSamples | TaskStream:
        """The samples as a PyTorch dataset, for ``torch.utils.data.DataLoader`` with any number of workers.

        Each item is a tuple of tensors ``(x, y)``, or ``(x, y, mask)`` if the task has padding, shaped as in
        :meth:`batch` without the batch axis. Sample ``i`` is that of :meth:`batch`, whatever worker draws it.

        Args:
            split: ``"train"``, ``"val"`` or ``"test"``.
            samples: how many, for a map-style dataset (shuffling, several epochs); without it an endless iterable one.
            seed: any whole number in 0..2^63-1.
            batch_size: of the endless dataset: make each item a whole batch, for ``DataLoader(..., batch_size=None)``;
                the batches then come in the same order for every number of workers.

        Raises:
            UsageError: if an argument is outside its range.
        """
        from lrtasks.generators.torch_dataset import make_dataset

        return make_dataset(self, split, seed=seed, samples=samples, batch_size=batch_size)

    def key(self, seed: int, split: str) -> np.ndarray:
        """Philox key of one stream of samples.

        Raises:
            UsageError: for an unknown split, or a seed outside 0..2^63-1.
        """
        if split not in SPLITS:
            raise UsageError(f"split must be one of {', '.join(SPLITS)}, found {split!r}")
        require_whole("seed", seed, 0, MAX_SEED)
        return random.derive_key(**self.identity(), seed=int(seed), split=split)

    def layout_rng(self, **parts: Any) -> np.random.Generator:
        """Generator for what is the same in every sample and split (fixed positions, matrices); keyed by ``parts``."""
        return random.generator(random.derive_key(task=self.name, version=self.version, layout=parts))

    def identity(self) -> dict[str, Any]:
        """Name, version and parameters: what identifies the task's data, JSON-ready."""
        return {"task": self.name, "version": self.version, "parameters": self.identifying()}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as class, name and parameters: without what is cached, and with a name that an entry point gave."""
        return _restore, (type(self), self.name, self.parameters())

    def baselines(self) -> Mapping[str, Baseline]:
        """Predictors that need no learning, by name; their scores stand beside every model's."""
        if self.target.kind == "real":
            return {"constant": PositionMean()}
        return {"majority": MajorityClass(self.target.width)}

    def slices(self, batch: Batch) -> dict[str, np.ndarray]:
        """Breakdowns for error analysis: by name, a label for each element of ``y`` (or broadcastable to it).

        Signals are broken down by position: eight equal parts of the target, each labelled with its first position.
        """
        if self.target.kind == "real":
            length = self.target.length
            return {"position": bin_starts(np.arange(length), length)[:, None]}
        return {}

    def derived_scores(self, scores: Mapping[str, float], slices: Slices) -> dict[str, float]:
        """Further scores of a test, by name, from its scores and its breakdowns; none unless a subclass says so."""
        return {}

    @property
    def nominal_length(self) -> int | None:
        """The length that :meth:`at_length` changes: the parameter ``length``, or ``None`` if there is none."""
        length = getattr(self, "length", None)
        return length if isinstance(length, int) else None

    def at_length(self, length: int) -> Task:
        """This task at another length, for a model that was trained on this one: kinds and widths stay the same.

        Raises:
            UsageError: if the task has no length, or cannot have this one.
        """
        if self.nominal_length is None:
            raise UsageError(
                f"{self.name} has no tests at other lengths: there a model would have another task to learn"
            )
        other = self.make(**{**self.parameters(), "length": length})
        for mine, its in ((self.input, other.input), (self.target, other.target)):
            if (mine.kind, mine.width, mine.pooled) != (its.kind, its.width, its.pooled):
                raise UsageError(f"{self.name} at length {length} needs another model: {its} in place of {mine}")
        return other

    def longer(self) -> dict[str, Task]:
        """This task at two, four and eight times its length, named ``"2x"`` and so on; impossible ones are left out."""
        found: dict[str, Task] = {}
        for times in (2, 4, 8):
            with contextlib.suppress(UsageError):
                found[f"{times}x"] = self.at_length(times * (self.nominal_length or 0))
        return found

    def further(self, changes: Mapping[str, Mapping[str, Any]]) -> dict[str, Task]:
        """This task with other parameters, by name of the test.

        Those that the task refuses, that equal it, or that would be longer than ``MAX_LENGTH``, are left out.
        """
        found: dict[str, Task] = {}
        for name, values in changes.items():
            with contextlib.suppress(UsageError):
                task = dataclasses.replace(self, **values)
                if task != self and task.input.length <= MAX_LENGTH:
                    found[name] = task
        return found

    def scaled(self, *names: str, by: Sequence[int] = (2, 4, 8)) -> dict[str, Task]:
        """:meth:`further` with the parameters ``names`` multiplied by each number, named ``"2x"`` and so on."""

        def times(n: int, value: Any) -> Any:
            return tuple(n * part for part in value) if isinstance(value, tuple) else n * value

        return self.further({f"{n}x": {name: times(n, getattr(self, name)) for name in names} for n in by})

    def checked_tests(self) -> dict[str, Task]:
        """What :meth:`tests` gives.

        Raises:
            UsageError: unless these are tasks for the same models, under names that no other score has.
        """
        tests: object = self.tests()
        if not isinstance(tests, Mapping):
            raise UsageError(f"{self.name}: tests() must map names to tasks, found {tests!r}")
        for name, test in tests.items():
            if not isinstance(test, Task):
                raise UsageError(f"{self.name}: test {name} must be a task, found {test!r}")
            if name in SPLITS:
                raise UsageError(f"{self.name}: a test cannot be called {name!r}, as a split is; rename it")
            self.require_same_widths(test, f"test {name} of {self.name}")
            if not hasattr(test, "name"):  # another class of the user's file
                type(test).name = type(test).__name__
        return dict(tests)

    def require_same_widths(self, other: Task, what: str) -> None:
        """Raise :class:`UsageError` if ``other`` needs another model: only lengths may differ."""
        for mine, its in ((self.input, other.input), (self.target, other.target)):
            if (mine.kind, mine.width, mine.pooled) != (its.kind, its.width, its.pooled):
                raise UsageError(f"{what} needs another model: {its} in place of {mine}")

    def tests(self) -> Mapping[str, Task]:
        """Further tests of the trained model, by name: tasks of the same widths with another length or distribution.

        None unless a subclass says so; most return :meth:`longer`, :meth:`scaled` or :meth:`further`.
        """
        return {}

    def answer(self, x: np.ndarray) -> np.ndarray:
        """The target ``y`` of any input ``x`` of one sample, for tasks whose target is a function of the input.

        Args:
            x: ``(length, channels)`` real values or ``(length,)`` tokens, without batch axis.

        Returns:
            What :meth:`sample` gives beside this ``x``, to the bit.

        Raises:
            UsageError: if the task has no such function, or ``x`` is no input of it.
        """
        raise UsageError(f"{self.name} has no exact answer to a given input")

    def checked_input(self, x: Any) -> np.ndarray:
        """``x`` as an input of one sample: float32 ``(length, channels)``, or int64 ``(length,)``.

        Raises:
            UsageError: for another shape, values that are not finite, or tokens that are not in the vocabulary.
        """
        spec, array = self.input, np.asarray(x)
        if array.shape != spec.shape(1)[1:] or array.dtype.kind not in "iuf":
            raise UsageError(
                f"an input of {self.name} has numbers of shape {spec.shape(1)[1:]},"
                f" found shape {array.shape} of {array.dtype}"
            )
        if spec.kind == "real":
            if not np.isfinite(array).all():
                raise UsageError(f"an input of {self.name} holds finite numbers, found {array[~np.isfinite(array)][0]}")
            return array.astype(np.float32)
        wrong = (array != np.rint(array)) | (array < 0) | (array >= spec.width)
        if wrong.any():
            raise UsageError(
                f"an input of {self.name} holds whole numbers in 0..{spec.width - 1}, found {array[wrong][0]}"
            )
        return array.astype(np.int64)

    def refuse(self, what: str) -> NoReturn:
        """Raise a :class:`UsageError` about an input or a parameter of the user's; the task's name comes first."""
        raise UsageError(f"{self.name}: {what}")

    def text(self, batch: Batch, index: int) -> str | None:
        """Sample ``index`` of a batch as readable text, for tasks that are read rather than plotted."""
        return None

    def to_row(self, batch: Batch, index: int) -> dict[str, str]:
        """Sample ``index`` of a batch as a row of a text table, cells by column name; for tasks of tokens."""
        return tables.to_row(batch, index)

    def from_row(self, row: tables.Row) -> Sample:
        """The sample of which :meth:`to_row` gave the cells.

        Raises:
            UsageError: for a missing column, or a token, label or position out of range.
        """
        return tables.from_row(row, self.input, self.target)

    def image_shape(self) -> tuple[int, int] | None:
        """Rows and columns of the picture whose pixels are the positions, for image tasks."""
        return None

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        # another process cannot import a class of the user's file by name
        cls, file = type(self), file_of(type(self))
        if file is None:
            return super().__reduce_ex__(protocol)
        return _remade, (f"{file}:{cls.__qualname__}", cls.__module__, vars(self))

    def fingerprint(self, batch: Batch, index: int) -> bytes | None:
        """What no two samples of a stored set may share, for sample ``index``; ``None`` allows duplicates."""
        return None


def _restore(cls: type[Task], name: str, parameters: dict[str, Any]) -> Task:
    if "name" not in vars(cls):
        registry.register(name)(cls)
    return cls.make(**parameters)


def misdeclared(task: Task) -> Iterator[str]:
    """Problems with the loss or metric that a task declares: those that do not fit the kind of its target."""
    for field, allowed in (("loss", LOSSES[task.target.kind]), ("metric", METRICS[task.target.kind])):
        if getattr(task, field) not in allowed:
            names = " or ".join(repr(name) for name in allowed)
            yield (
                f"{field} of a {task.target.kind} target must be {names}, found {getattr(task, field)!r}; write"
                f" {field} = {allowed[0]!r} in the class"
            )


def _remade(address: str, module: str, state: dict[str, Any]) -> Task:
    """A task of the user's file ``address``, as another process unpickles it; ``module`` stands for the content."""
    cls = registry.get(address)
    if cls.__module__ != module:
        raise UsageError(f"{address.rpartition(':')[0]} was edited while it was in use; start again")
    made = object.__new__(cls)
    vars(made).update(state)
    return made


def stack(samples: Sequence[Sample]) -> Batch:
    """Stack samples to a batch; meta entries of equal shape become arrays, others lists."""
    mask = None if samples[0].mask is None else np.stack([sample.mask for sample in samples if sample.mask is not None])
    meta: dict[str, Any] | None = None
    if samples[0].meta is not None:
        columns = {name: [sample.meta[name] for sample in samples if sample.meta] for name in samples[0].meta}
        meta = {name: column(values) for name, values in columns.items()}
    return Batch(np.stack([s.x for s in samples]), np.stack([s.y for s in samples]), mask, meta)


def column(values: Sequence[Any]) -> Any:
    """One value per sample as an array, or as the sequence that they are in if their shapes differ."""
    shapes = {np.shape(value) for value in values}
    return np.asarray(values) if len(shapes) == 1 else values


def budget(**settings: Any) -> dict[str, Any]:
    """Settings of the training budget, as a preset holds them.

    >>> budget(steps=1500, lr=1e-3)
    {'budget.steps': 1500, 'budget.lr': 0.001}
    """
    return {f"budget.{name}": value for name, value in settings.items()}


def make(name: str, *, preset: str | None = None, **parameters: Any) -> Task:
    """Build the task called ``name``; see ``lrtasks describe NAME`` for its parameters and presets.

    Without a preset the parameters have their defaults, mostly the papers' sizes; :func:`lrtasks.evaluate` and
    ``lrtasks eval`` take preset ``small``, which trains in minutes on two CPU cores.

    Args:
        name: a registered name, or the address ``FILE.py:NAME`` of your own class.
        preset: fills in the parameters that are left open; without it they have their defaults.
        parameters: values by name.

    Raises:
        UsageError: for an unknown name, preset or parameter (the close ones are suggested) or a value out of range.
    """
    cls = registry.get(name)
    if preset is None:
        return cls.make(**parameters)
    if preset not in cls.presets:
        raise unknown(f"preset of {name}", preset, cls.presets)
    return cls.make(**{**cls.preset_values(preset)[0], **parameters})


def names(group: str | None = None) -> list[str]:
    """Names of all tasks, built in and installed, or of the usable ones of a capability group (:data:`GROUPS`).

    Without a group no task is imported.

    Raises:
        UsageError: for an unknown group.
    """
    if group is None:
        return registry.names()
    if group not in GROUPS:
        raise unknown("group", group, GROUPS)
    return [name for name in registry.usable() if registry.get(name).group == group]
