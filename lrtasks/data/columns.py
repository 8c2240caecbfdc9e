"""Samples as columns of a table, and back: the same arrays as the generator gives; docs/data.md lists the columns."""

from __future__ import annotations

import itertools
import json
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from lrtasks.data import pixels
from lrtasks.errors import UsageError, in_one_line
from lrtasks.generators.base import Split, Task
from lrtasks.generators.pixels import from_bytes
from lrtasks.spec import IGNORED, Batch, Sample, Spec

if TYPE_CHECKING:
    import pyarrow as pa

INDEX = "index"
PROBED = 8
"""Samples from which the types of the metadata are read."""


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        name: as in the table.
        role: ``"x"``, ``"y"``, ``"mask"`` (padding) or ``"meta"``: where it goes in a batch.
        kind: ``"list"``, ``"png"``, ``"labels-png"`` or, for metadata, ``"value"``.
        dtype: NumPy type of the array in a batch.
        shape: of one sample; for metadata of varying size, the sizes of the probed sample.
        classes: number of classes, of label maps.
    """

    name: str
    role: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    classes: int = 0

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> Column:
        """Build from the manifest's entry; :class:`TypeError` or :class:`ValueError` if it is none."""
        column = cls(**{**entry, "shape": tuple(map(operator.index, entry["shape"]))})
        if not all(0 <= size < 2**31 for size in column.shape):
            raise ValueError(f"column {column.name} has the shape {column.shape}")
        np.dtype(column.dtype)
        return column

    @property
    def elements(self) -> int:
        """Number of values in one sample."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def is_picture(self) -> bool:
        """Whether the column holds PNG files."""
        return self.kind.endswith("png")

    def values(self, batch: Batch) -> Any:
        """The array or list of a batch that the column stores."""
        if self.role == "meta":
            return (batch.meta or {})[self.name]
        values = getattr(batch, self.role)
        return np.ones((len(batch.x), *self.shape), bool) if values is None else values

    def picture(self, values: np.ndarray) -> bytes:
        """PNG of one sample."""
        if self.kind == "labels-png":
            return pixels.encode_labels(values.reshape(self.shape), self.classes)
        return pixels.encode_grey(pixels.to_bytes(values.reshape(self.shape)))


def layout(task: Task) -> tuple[Column, ...]:
    """The columns of a task's stored sets: a function of the task alone, read from its specs and first samples.

    Raises:
        UsageError: if a sample does not fit the specs, or metadata has the name or type of no column.
    """
    probe = draw(task, range(PROBED), 0, "train")
    columns = declared(task)
    if probe.mask is not None:
        columns.append(Column("attention_mask", "mask", "list", "bool", probe.mask.shape[1:]))
    taken = {INDEX, *(column.name for column in columns)}
    for name, values in (probe.meta or {}).items():
        if name in taken:
            raise UsageError(f"{task.name}: metadata cannot be called {name!r}, which is a column of its own")
        columns.append(_meta(task, name, values))
    return tuple(columns)


def declared(task: Task) -> list[Column]:
    """The columns of input and target, which follow from the specs."""
    x, y, image = task.input, task.target, task.image_shape()
    columns = []
    if image is not None and x.kind == "real" and x.width == 1:
        columns.append(Column("image", "x", "png", "float32", image))
    else:
        columns.append(_array("x", "input_ids", x))
    if image is not None and y.kind == "token" and y.length == image[0] * image[1]:
        columns.append(Column("mask", "y", "labels-png", "int64", image, y.width))
    else:
        columns.append(_array("y", "labels", y))
    return columns


def draw(task: Task, indices: Sequence[int], seed: int, split: str, attempt: int = 0) -> Batch:
    """Samples of a task, compared with its specs.

    Raises:
        UsageError: naming the first sample whose arrays do not fit.
    """
    try:
        batch = task.batch(indices, seed, cast(Split, split), attempt=attempt)
        problem = _misfit(task, batch, len(indices))
    except UsageError:
        raise
    except (ValueError, TypeError, AttributeError) as error:  # as from stacking arrays of different shapes
        problem = in_one_line(error)
    if problem is None:
        return batch
    if len(indices) > 1:
        for index in indices:
            draw(task, [index], seed, split, attempt)
    which = f"sample {indices[0]}" if len(indices) == 1 else f"samples {indices[0]} to {indices[-1]}"
    raise UsageError(f"{task.name}: {which} of {split} cannot be stored: {problem}")


def _misfit(task: Task, batch: Batch, count: int) -> str | None:
    for name, spec, values in (("x", task.input, batch.x), ("y", task.target, batch.y)):
        dtype = np.dtype(np.float32 if spec.kind == "real" else np.int64)
        if values.shape != spec.shape(count) or values.dtype != dtype:
            wanted = f"{dtype} of shape {spec.shape(count)[1:]}"
            return f"{name} must be {wanted}, found {values.dtype} of shape {values.shape[1:]}"
        if spec.kind == "token":
            outside = values[(values < 0) | (values >= spec.width)]
            outside = outside[outside != IGNORED] if name == "y" else outside
            if outside.size:
                ignored = f", and {IGNORED} where a label is ignored" if name == "y" else ""
                return f"{name} holds {outside[0]}; allowed: 0..{spec.width - 1}{ignored}"
    if batch.mask is not None and (batch.mask.shape != (count, task.input.length) or batch.mask.dtype != bool):
        return f"mask must be bool of shape {(task.input.length,)}, found {batch.mask.dtype} of {batch.mask.shape[1:]}"
    return None


def schema(columns: Sequence[Column], metadata: dict[str, str] | None = None) -> pa.Schema:
    """Arrow schema; its metadata tell Hugging Face ``datasets`` which columns are pictures."""
    import pyarrow as pa

    fields = [pa.field(INDEX, pa.int64()), *(pa.field(column.name, _arrow_type(column)) for column in columns)]
    pictures = {column.name: {"_type": "Image"} for column in columns if column.is_picture}
    if pictures:
        # Hugging Face datasets reads the types of the other columns from the table
        metadata = {**(metadata or {}), "huggingface": json.dumps({"info": {"features": pictures}})}
    return pa.schema(fields, metadata=metadata)


def encode(columns: Sequence[Column], batch: Batch, indices: Sequence[int], table_schema: pa.Schema) -> pa.Table:
    """A batch as a table."""
    import pyarrow as pa

    arrays = [pa.array(np.asarray(indices, np.int64))]
    for column in columns:
        arrays.append(_encode(column, column.values(batch), table_schema.field(column.name).type))
    return pa.Table.from_arrays(arrays, schema=table_schema)


def decode(columns: Sequence[Column], table: pa.Table) -> list[Sample]:
    """The samples of which ``table`` holds the columns."""
    rows: dict[str, Any] = {"mask": [None] * len(table)}
    meta: dict[str, Any] = {}
    for column in columns:
        values = _decode(column, table.column(column.name).combine_chunks())
        if column.role == "meta":
            meta[column.name] = values
        else:
            rows[column.role] = values
    return [
        Sample(x, y, mask, {name: values[row] for name, values in meta.items()} or None)
        for row, (x, y, mask) in enumerate(zip(rows["x"], rows["y"], rows["mask"], strict=True))
    ]


def sample_bytes(columns: Sequence[Column]) -> int:
    """Rough number of bytes of one sample in the table; a function of the layout alone, since it sizes shards."""
    # pictures of thin lines on an empty ground compress tenfold
    return max(1, sum(column.elements // 8 if column.is_picture else column.elements * 4 for column in columns))


def array_bytes(columns: Sequence[Column]) -> int:
    """Number of bytes of one sample as the generator's arrays."""
    return sum(column.elements * 8 for column in columns) or 1


def _array(real: str, token: str, spec: Spec) -> Column:
    """The column of an array, which is called ``real`` or ``token`` by its kind; its role is ``real``."""
    if spec.kind == "real":
        return Column(real, real, "list", "float32", (spec.length, spec.width))
    return Column(token, real, "list", "int64", (spec.length,))


def _meta(task: Task, name: str, values: Any) -> Column:
    entries = [np.asarray(value) for value in values]
    filled = [entry for entry in entries if entry.size] or entries
    dtype = np.result_type(*filled) if filled[0].dtype.kind in "biuf" else filled[0].dtype
    if dtype.kind not in "biufU" or len({entry.ndim for entry in filled}) != 1:
        raise UsageError(
            f"{task.name}: metadata {name!r} must be numbers, truth values, texts or arrays of them, each with the same"
            f" number of axes in every sample; found {values[0]!r}"
        )
    kind = "str" if dtype.kind == "U" else dtype.name
    return Column(name, "meta", "value", kind, filled[0].shape)


def _arrow_type(column: Column) -> pa.DataType:
    import pyarrow as pa

    if column.is_picture:
        return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    if column.role == "meta":
        kind = pa.string() if column.dtype == "str" else pa.from_numpy_dtype(np.dtype(column.dtype))
    else:
        # tokens and labels are far below 2^31
        kind = pa.int32() if column.dtype == "int64" else pa.from_numpy_dtype(np.dtype(column.dtype))
    for _ in column.shape:
        kind = pa.list_(kind)
    return kind


def _encode(column: Column, values: Any, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if column.is_picture:
        data = pa.array([column.picture(value) for value in values], pa.binary())
        return pa.StructArray.from_arrays([data, pa.nulls(len(data), pa.string())], fields=list(kind))
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return _nested(values, kind)
    return pa.array([value.tolist() if isinstance(value, np.ndarray) else value for value in values], kind)


def _nested(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Nested lists of a rectangular array, without a Python object per element."""
    import pyarrow as pa

    innermost = kind
    for _ in values.shape[1:]:
        innermost = innermost.value_type
    array = pa.array(np.ascontiguousarray(values).ravel(), innermost)
    for axis in range(values.ndim - 1, 0, -1):
        count = int(np.prod(values.shape[:axis], dtype=np.int64))
        array = pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32) * values.shape[axis]), array)
    return array


def _decode(column: Column, array: pa.Array) -> Any:
    if column.kind == "png":
        grey = np.stack([pixels.decode(data.as_py()) for data in array.field("bytes")])
        return from_bytes(grey).reshape(len(array), column.elements, 1)
    if column.kind == "labels-png":
        labels = np.stack([pixels.decode_labels(data.as_py()) for data in array.field("bytes")])
        return labels.reshape(len(array), column.elements)
    if column.role != "meta":
        count = len(array)
        for _ in column.shape:
            array = array.flatten()
        return array.to_numpy(zero_copy_only=False).astype(column.dtype).reshape(count, *column.shape)
    if column.dtype == "str":
        return [np.asarray(value) if column.shape else value for value in array.to_pylist()]
    return _numeric(column, array)


def _numeric(column: Column, array: pa.Array) -> list[Any]:
    """Metadata of numbers, one entry per sample."""
    dtype = np.dtype(column.dtype)
    if not column.shape:
        return list(array.to_numpy(zero_copy_only=False).astype(dtype))
    if len(column.shape) == 1:
        offsets = array.offsets.to_numpy()
        flat = array.values.to_numpy(zero_copy_only=False).astype(dtype)
        return [flat[start:stop] for start, stop in itertools.pairwise(offsets)]
    # an empty array keeps its other axes
    entries = (np.asarray(value, dtype) for value in array.to_pylist())
    return [entry if entry.size else entry.reshape(0, *column.shape[1:]) for entry in entries]
