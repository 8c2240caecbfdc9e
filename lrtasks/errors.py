"""Errors that a user can cause. The command line prints them on one line and exits with code 2."""

from __future__ import annotations

import difflib
import re
import sys
import traceback
from collections.abc import Collection, Iterable
from contextlib import suppress
from operator import index
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent
"""Folder of this package."""
_SPACE = re.compile(r"[\t\n\v\f\r\x85\u2028\u2029]+")
_CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff\ufffe\uffff]"
)


def printable(text: str) -> str:
    """Return ``text`` in one line; escape characters that control a terminal or change the writing direction.

    Text from files and from other people's code passes through this function before it is shown.

    >>> printable("dlr\\n\\x1b[2J"), printable("Größe 3 × 4")
    ('dlr \\\\x1b[2J', 'Größe 3 × 4')
    """
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), _SPACE.sub(" ", text))


class UsageError(ValueError):
    """A mistake of the user; the message says what is wrong, which value was found and which values are allowed.

    The message is one :func:`printable` line, because it may quote names from files.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class LostDataError(UsageError):
    """A stored dataset that was opened cannot be read any more, because its files were changed or removed."""


def require_whole(what: str, value: Any, at_least: int, at_most: int) -> None:
    """Raise :class:`UsageError` unless ``value`` is a whole number within these bounds."""
    whole = None
    if not isinstance(value, bool) and not getattr(value, "shape", ()):
        with suppress(TypeError):
            whole = index(value)  # a number of JAX cannot be compared with 2^63-1
    if whole is None or not at_least <= whole <= at_most:
        most = "2^63-1" if at_most == 2**63 - 1 else f"{at_most:,}"
        raise UsageError(f"{what} must be a whole number in {at_least}..{most}, found {value!r}")


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or the name of its type if the message is empty.

    >>> first_line(ValueError("a damaged header")), first_line(AssertionError())
    ('a damaged header', 'AssertionError')
    """
    return (str(error).splitlines() or [type(error).__name__])[0]


def in_one_line(error: BaseException) -> str:
    """Return type and message of an exception in one line; for a :class:`UsageError`, only the message.

    Messages of other people's code may have several lines.

    >>> in_one_line(ImportError("no libcudart\\n  found"))
    'ImportError: no libcudart found'
    >>> in_one_line(UsageError("there is no file x.py"))
    'there is no file x.py'
    >>> in_one_line(AssertionError())
    'AssertionError'
    """
    message = " ".join(str(error).split())
    return message if isinstance(error, UsageError) else f"{type(error).__name__}: {message}".removesuffix(": ")


_OTHERS = {"lrtasks", "typer", "click", "torch", "lightning_fabric", "pytorch_lightning", "ray"}
_OTHERS |= {"numpy", "scipy", "pandas", "pyarrow", "PIL"}
_OTHERS |= sys.stdlib_module_names
"""Top-level modules of this package, its dependencies and Python: not the user's code."""


def own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the traceback of an exception inside the user's file: the first file that is not of :data:`_OTHERS`."""
    own = [
        traceback.FrameSummary(frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "torch").partition(".")[0] not in _OTHERS
    ]
    return [one for one in own if one.filename == own[0].filename]


def with_line(error: BaseException) -> str:
    """Return type and message of an exception in one line, with the line of the user's file that raised it, if any.

    Here, only code of this package and of NumPy runs, so no line is named:

    >>> import numpy as np
    >>> try:
    ...     np.take([1], 5)
    ... except IndexError as error:
    ...     with_line(error)
    'IndexError: index 5 is out of bounds for axis 0 with size 1'
    """
    where = [f" (line {one.lineno} of {Path(one.filename).name})" for one in own_frames(error)[-1:]]
    return "".join([in_one_line(error), *where])


def is_shortage(error: BaseException) -> bool:
    """Return whether an exception says that memory ran out, on the processor or on an accelerator.

    NumPy raises a MemoryError; in a worker process it becomes a RuntimeError whose message names the MemoryError.
    torch raises a RuntimeError, or a TypeError for a size of more than 64 bits.

    >>> is_shortage(MemoryError()), is_shortage(RuntimeError("CUDA out of memory.")), is_shortage(ValueError("no"))
    (True, True, False)
    """
    too_large = ("Storage size calculation overflowed", "Overflow when unpacking")
    signs = ("MemoryError", "allocate memory", "out of memory", *too_large)
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in signs)


def is_lost_worker(error: BaseException) -> bool:
    """Return whether an exception says that a background process that makes batches died; the text is torch's."""
    return "DataLoader worker (pid" in str(error)


SYNONYMS = {
    **dict.fromkeys(("learning_rate", "learningrate", "rate"), "lr"),
    **dict.fromkeys(("iterations", "iters", "max_steps", "num_steps", "n_steps", "train_steps", "updates"), "steps"),
    **dict.fromkeys(("bs", "batchsize"), "batch_size"),
    **dict.fromkeys(("hidden_size", "hidden_dim", "dim", "model_dim", "width", "embed_dim"), "d_model"),
    **dict.fromkeys(("n_layers", "num_layers", "depth"), "layers"),
    **dict.fromkeys(("seq_len", "seqlen", "sequence_length", "seq_length", "context_length"), "length"),
    **dict.fromkeys(("wd", "decay"), "weight_decay"),
    **dict.fromkeys(("warmup", "num_warmup_steps"), "warmup_steps"),
    **dict.fromkeys(("grad_clip", "max_grad_norm", "clip_grad_norm"), "clip"),
    **dict.fromkeys(("n_heads", "num_heads", "nhead"), "heads"),
    **dict.fromkeys(("state_size", "d_hidden", "ssm_state_size"), "d_state"),
}
"""Names that other libraries use for parameters, with the names that this package uses."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest names in ``known`` (case is ignored), or an empty string.

    >>> suggestion("SHFIT", ["shift", "sort"])
    "; did you mean 'shift'?"
    >>> suggestion("learning-rate", ["lr", "steps"])
    "; did you mean 'lr'?"
    """
    synonym = SYNONYMS.get(word.lstrip("-").lower().replace("-", "_"))
    spelt = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), spelt, n=2, cutoff=0.6)
    close = [synonym] if synonym in spelt else found
    if not close:
        return ""
    return "; did you mean " + " or ".join(repr(spelt[name]) for name in close) + "?"


def require_known(what: str, word: Any, known: Collection[str]) -> None:
    """Raise the error of :func:`unknown` unless ``word`` is a name in ``known``."""
    if not isinstance(word, str) or word not in known:
        raise unknown(what, word, known)


def unknown(what: str, word: Any, known: Iterable[str], allowed: str = "") -> UsageError:
    """Return the error for a name that is not in ``known`` or is not a string.

    The message lists all names in ``known``. If there are many, ``allowed`` replaces them and says where to find them.

    >>> str(unknown("task", "shfit", ["shift", "sort"]))
    "unknown task 'shfit'; did you mean 'shift'? Allowed: shift, sort"
    >>> str(unknown("model", "layer.py", ["dlr"]))
    "unknown model 'layer.py'; for a class in this file write layer.py:NAME. Allowed: dlr"
    >>> str(unknown("task", "shift@paper", ["shift", "sort"]))
    "unknown task 'shift@paper'; write 'shift' alone, and preset 'paper' where it is an option. Allowed: shift, sort"
    >>> str(unknown("task", "shfit", ["shift", "sort"], "a name that lrtasks list tasks prints"))
    "unknown task 'shfit'; did you mean 'shift'? Allowed: a name that lrtasks list tasks prints"
    """
    names = sorted(known)
    allowed = allowed or ", ".join(names) or "(none)"
    name, _, preset = word.partition("@") if isinstance(word, str) else ("", "", "")
    if not isinstance(word, str):
        hint = ""
    elif word.endswith(".py"):
        hint = f"; for a class in this file write {word}:NAME."
    elif preset and name in names:
        hint = f"; write {name!r} alone, and preset {preset!r} where it is an option."
    else:
        hint = suggestion(word, names)
    return UsageError(f"unknown {what} {word!r}{hint or '.'} Allowed: {allowed}")
