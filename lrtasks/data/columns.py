"""Convert samples to columns of a table and back, without loss. docs/data.md lists the columns."""

from __future__ import annotations

import io
import json
import operator
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pyarrow as pa
from PIL import Image

from lrtasks.errors import UsageError, with_line
from lrtasks.generators.base import Split, Task
from lrtasks.generators.tables import from_bytes
from lrtasks.spec import IGNORED, Batch, Sample, misfit

INDEX = "index"
PROBED = 8
"""Number of samples from which the types of the metadata are derived."""
SEARCHED = 1000
"""Number of samples that are searched for a label if the first :data:`PROBED` samples have none."""
IGNORED_BYTE = 255
"""Pixel value that stands for the label -100."""
_COLOURS = ((0, 0, 0), (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0))
"""Colours of the classes, repeated: black, then a palette for colour-blind readers (Okabe and Ito, 2008)."""


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        role: field of a batch that the column stores: ``"x"``, ``"y"``, ``"mask"`` (padding) or ``"meta"``.
        kind: ``"list"``, ``"png"``, ``"labels-png"`` or, for metadata, ``"value"``.
        dtype: NumPy type of the array in a batch.
        shape: shape of one sample; for metadata of varying size, the shape in the first non-empty probed sample.
        classes: for label maps, the number of classes.
    """

    name: str
    role: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    classes: int = 0

    @classmethod
    def from_json(cls, entry: dict[str, Any]) -> Column:
        """Build a column from a manifest entry; raise an exception such as :class:`ValueError` if it is not valid."""
        column = cls(**{**entry, "shape": tuple(map(operator.index, entry["shape"]))})
        if not all(0 <= size < 2**31 for size in column.shape):
            raise ValueError(f"column {column.name} has the shape {column.shape}")
        np.dtype(column.dtype)
        return column

    @property
    def elements(self) -> int:
        """Return the number of values in one sample."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def is_image(self) -> bool:
        """Return whether the column holds PNG files."""
        return self.kind.endswith("png")

    def values(self, batch: Batch) -> Any:
        """Return the array or list of a batch that the column stores."""
        if self.role == "meta":
            return (batch.meta or {})[self.name]
        values = getattr(batch, self.role)
        return np.ones((len(batch.x), *self.shape), bool) if values is None else values

    def png(self, values: np.ndarray) -> bytes:
        """Return the PNG file of one sample."""
        values = values.reshape(self.shape)
        return encode_labels(values, self.classes) if self.kind == "labels-png" else encode_png(to_bytes(values))


def layout(task: Task) -> tuple[Column, ...]:
    """Return the columns of a task's datasets. They depend only on the task: on its specs and first samples.

    Raises:
        UsageError: if a sample does not fit the specs, no sample has a label, or metadata has a name or type that a
            column cannot have.
    """
    probe = draw(task, range(PROBED), 0, "train")
    unlabelled = task.target.kind == "token" and np.all(probe.y == IGNORED)
    if unlabelled and np.all(draw(task, range(SEARCHED), 0, "train").y == IGNORED):
        raise UsageError(f"{task.name}: the first {SEARCHED:,} samples have no label, so there is nothing to score")
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
    """Return the columns of input and target, which follow from the specs."""
    x, y, image, columns = task.input, task.target, task.image_shape(), []
    for role, of_tokens, spec in (("x", "input_ids", x), ("y", "labels", y)):
        name, dtype = (role, "float32") if spec.kind == "real" else (of_tokens, "int64")
        columns.append(Column(name, role, "list", dtype, spec.shape(1)[1:]))
    if image is not None and x.kind == "real" and x.width == 1:
        columns[0] = Column("image", "x", "png", "float32", image)
    if image is not None and y.kind == "token" and y.length == image[0] * image[1]:
        columns[1] = Column("mask", "y", "labels-png", "int64", image, y.width)
    return columns


def _meta(task: Task, name: str, values: Any) -> Column:
    entries = [np.asarray(value) for value in values]
    filled = [entry for entry in entries if entry.size] or entries
    dtype = np.result_type(*filled) if filled[0].dtype.kind in "biuf" else filled[0].dtype
    if dtype.kind not in "biufU" or len({entry.ndim for entry in filled}) != 1:
        must = f"{task.name}: metadata {name!r} must be numbers, booleans, strings or arrays of them"
        raise UsageError(f"{must}, each with the same number of axes in every sample; found {values[0]!r}")
    return Column(name, "meta", "value", "str" if dtype.kind == "U" else dtype.name, filled[0].shape)


def draw(task: Task, indices: Sequence[int], seed: int, split: str, attempt: int = 0) -> Batch:
    """Draw samples of a task and check them against its specs.

    Raises:
        UsageError: if a sample does not fit; the message names the first sample that does not fit.
    """
    try:
        batch = task.batch(indices, seed, cast(Split, split), attempt=attempt)
        problem = misfit(batch, task.input, task.target)
    except (ValueError, TypeError, AttributeError) as error:  # a UsageError is a ValueError
        problem = with_line(error)
    if problem is None:
        return batch
    if len(indices) > 1:
        for index in indices:
            draw(task, [index], seed, split, attempt)
    which = f"sample {indices[0]}" if len(indices) == 1 else f"samples {indices[0]} to {indices[-1]}"
    raise UsageError(f"{task.name}: {which} of {split} cannot be stored: {problem}")


def sample_bytes(columns: Sequence[Column]) -> int:
    """Estimate the bytes of one sample in the table, from the columns alone, because the result decides shard sizes."""
    # images of thin lines on an empty background shrink to a tenth
    return max(1, sum(column.elements // 8 if column.is_image else column.elements * 4 for column in columns))


def row_group(columns: Sequence[Column]) -> int:
    """Return the rows per Parquet row group. To get one sample, one row group is read, about a quarter of a MiB."""
    return max(1, min(64, 2**18 // sample_bytes(columns)))


def array_bytes(columns: Sequence[Column]) -> int:
    """Return the number of bytes of one sample in the generator's arrays, at 8 bytes per value."""
    return sum(column.elements * 8 for column in columns)


# Conversion to and from Arrow


def schema(columns: Sequence[Column], metadata: dict[str, str] | None = None) -> pa.Schema:
    """Return the Arrow schema; its metadata tell Hugging Face ``datasets`` which columns are images."""
    fields = [pa.field(INDEX, pa.int64()), *(pa.field(column.name, _arrow_type(column)) for column in columns)]
    images = {column.name: {"_type": "Image"} for column in columns if column.is_image}
    if images:
        # Hugging Face datasets reads the types of the other columns from the table
        metadata = {**(metadata or {}), "huggingface": json.dumps({"info": {"features": images}})}
    return pa.schema(fields, metadata=metadata)


def _arrow_type(column: Column) -> pa.DataType:
    if column.is_image:
        return pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    # tokens and labels are far below 2^31
    dtype = "int32" if column.role != "meta" and column.dtype == "int64" else column.dtype
    kind = pa.string() if dtype == "str" else pa.from_numpy_dtype(np.dtype(dtype))
    for _ in column.shape:
        kind = pa.list_(kind)
    return kind


def encode(columns: Sequence[Column], batch: Batch, indices: Sequence[int], table_schema: pa.Schema) -> pa.Table:
    """Convert a batch to a table."""
    arrays = [pa.array(np.asarray(indices, np.int64))]
    for column in columns:
        values, kind = column.values(batch), table_schema.field(column.name).type
        if column.role == "meta":
            _require_lossless(column, values, indices)
        if column.is_image:
            data = pa.array([column.png(value) for value in values], pa.binary())
            arrays.append(pa.StructArray.from_arrays([data, pa.nulls(len(data), pa.string())], fields=list(kind)))
        elif isinstance(values, np.ndarray) and values.dtype.kind in "biuf" and column.dtype != "str":
            arrays.append(_nested(values, kind))
        else:
            plain = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
            arrays.append(pa.array(plain, kind))
    return pa.Table.from_arrays(arrays, schema=table_schema)


def _require_lossless(column: Column, values: Any, indices: Sequence[int]) -> None:
    """Raise :class:`UsageError` if a sample's metadata do not fit the column's type and number of axes."""
    axes, text = len(column.shape), column.dtype == "str"
    if isinstance(values, np.ndarray) and values.dtype == column.dtype and values.ndim == axes + 1:
        return
    for index, value in zip(indices, values, strict=True):
        if isinstance(value, np.ndarray) and value.dtype == column.dtype and value.ndim == axes:
            continue
        try:
            entry = np.asarray(value)
            if text:
                fits = entry.dtype.kind == "U" or not entry.size
            else:
                with np.errstate(all="ignore"):  # the comparison finds what overflows
                    stored = entry.astype(column.dtype)
                    again = stored.astype(entry.dtype)  # a comparison alone would round the entry, too
                same = (stored == entry) & (again == entry)
                fits = bool(np.all(same | ((stored != stored) & (entry != entry))))  # NaN stays NaN
            fits = fits and (entry.ndim == axes or (not entry.size and 0 < entry.ndim < axes))
        except (ValueError, TypeError, OverflowError):  # ragged lists, None, whole numbers of more than 64 bits
            fits = False
        if not fits:
            holds = f"{column.dtype} with {axes} axes" if axes else column.dtype
            found = f"metadata {column.name!r} of sample {index} is {value!r}"
            raise UsageError(f"{found}, but in the first {PROBED} samples it is {holds}")


def _nested(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Convert a rectangular array to nested lists, without a Python object per element."""
    for _ in values.shape[1:]:
        kind = kind.value_type
    array = pa.array(np.ascontiguousarray(values).ravel(), kind)
    for axis in range(values.ndim - 1, 0, -1):
        count = int(np.prod(values.shape[:axis], dtype=np.int64))
        array = pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32) * values.shape[axis]), array)
    return array


def decode(columns: Sequence[Column], table: pa.Table) -> list[Sample]:
    """Return the samples whose columns are in ``table``."""
    arrays: dict[str, Any] = {"mask": [None] * len(table)}
    meta: dict[str, Any] = {}
    for column in columns:
        group, name = (meta, column.name) if column.role == "meta" else (arrays, column.role)
        group[name] = _decode(column, table.column(column.name).combine_chunks())
    details = [{name: values[row] for name, values in meta.items()} or None for row in range(len(table))]
    return list(map(Sample, arrays["x"], arrays["y"], arrays["mask"], details))


def _decode(column: Column, array: pa.Array) -> Any:
    if column.is_image:
        read, form = (decode_labels, ()) if column.kind == "labels-png" else (_pixels, (1,))
        found = np.stack([read(data.as_py()) for data in array.field("bytes")]).reshape(-1, column.elements, *form)
        return from_bytes(found) if column.kind == "png" else found
    if column.role != "meta":
        count = len(array)
        for _ in column.shape:
            array = array.flatten()
        return array.to_numpy(zero_copy_only=False).astype(column.dtype).reshape(count, *column.shape)
    dtype = np.dtype(column.dtype)
    if not column.shape:
        return array.to_pylist() if dtype.kind == "U" else list(array.to_numpy(zero_copy_only=False).astype(dtype))
    if len(column.shape) == 1:
        return [value.astype(dtype) for value in array.to_numpy(zero_copy_only=False)]
    entries = (np.asarray(value, dtype) for value in array.to_pylist())
    # nested lists do not show the axes after an empty one
    return [entry.reshape(*entry.shape, *column.shape[entry.ndim :]) for entry in entries]


# Images as PNG: greyscale for inputs, a small palette of colours for label maps


def to_bytes(values: np.ndarray) -> np.ndarray:
    """Return the 8-bit pixels (uint8) that correspond to the real ``values``.

    Raises:
        UsageError: if a value does not correspond to one of the 256 pixel values.
    """
    scaled = values.astype(np.float32) * np.float32(127.5)
    scaled += np.float32(127.5)
    np.clip(np.rint(scaled, out=scaled), 0, 255, out=scaled)
    pixels: np.ndarray = scaled.astype(np.uint8)
    if not np.array_equal(kept := from_bytes(pixels), values):
        must = "an image is stored as 8-bit pixels: each input value must be (byte / 255 - 0.5) / 0.5"
        raise UsageError(f"{must}, found {values[kept != values][0]:g}")
    return pixels


def encode_labels(labels: np.ndarray, classes: int) -> bytes:
    """Return a PNG whose pixel values are the labels ``(rows, columns)``, below ``classes``; -100 becomes 255.

    Raises:
        UsageError: if a label is not below ``classes`` and below 255.
    """
    if labels.max(initial=0) >= min(classes, IGNORED_BYTE):
        raise UsageError(f"a label map holds labels below {min(classes, IGNORED_BYTE)}, found {labels.max()}")
    pixels, shown = labels.astype(np.uint8), classes
    if labels.min(initial=0) < 0:
        pixels[labels < 0], shown = IGNORED_BYTE, 256
    palette = b"".join(bytes(_COLOURS[label % len(_COLOURS)]) for label in range(shown))
    return encode_png(pixels, palette)


def decode_labels(data: bytes) -> np.ndarray:
    """Return the labels of a PNG made by :func:`encode_labels`, ``(rows, columns)`` int64."""
    labels = _pixels(data).astype(np.int64)
    labels[labels == IGNORED_BYTE] = IGNORED
    return labels


def encode_png(pixels: np.ndarray, palette: bytes = b"") -> bytes:
    """Return a PNG of ``pixels``, ``(rows, columns)`` uint8: grey values, or indices into the palette.

    Rows are not filtered. For flat areas with thin lines, the files are smaller and take a third of Pillow's time.
    """
    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 3 if palette else 0, 0, 0, 0)
    rows = np.zeros((len(pixels), 1 + pixels.shape[1]), np.uint8)  # the number of the filter, 0, precedes each row
    rows[:, 1:] = pixels
    png, chunks = b"\x89PNG\r\n\x1a\n", {b"IHDR": header, b"PLTE": palette, b"IDAT": zlib.compress(rows.tobytes(), 4)}
    for name, data in (*chunks.items(), (b"IEND", b"")):
        if data or name == b"IEND":
            png += struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    return png


def _pixels(data: bytes) -> np.ndarray:
    """Return the pixel values of a PNG, ``(rows, columns)`` uint8: grey values, or labels of a palette image."""
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image)
