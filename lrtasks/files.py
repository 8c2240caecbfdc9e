"""Writing files so that nothing is ever half there, and by one process at a time."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lrtasks.errors import UsageError


def make_folder(folder: Path, what: str) -> None:
    """Make a folder, and those above it, unless it is there; files can be written into it afterwards.

    Args:
        folder: the folder.
        what: what it is, for the message.

    Raises:
        UsageError: if it cannot be made, or is not writable.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UsageError(f"{what} {folder} cannot be made: a file stands in its way") from None
    except OSError as error:
        raise UsageError(f"{what} {folder} cannot be made: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{what} {folder} is not writable")


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Write a file so that a kill at any moment leaves the old content or the new one."""
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_output(path: Path, data: bytes) -> None:
    """Write what a user asked for by name: a file atomically, through links, and into a pipe or device as it comes."""
    if path.exists() and not path.is_file():
        path.write_bytes(data)
    else:
        write_atomically(path.resolve(), data)


def remove_partials(path: Path) -> None:
    """Remove what killed calls of :func:`write_atomically` left of ``path``; nobody may be writing it."""
    for partial in path.parent.glob(f".{path.name}.*-*"):
        partial.unlink(missing_ok=True)


@contextmanager
def held(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file ``path``, which is removed afterwards.

    The lock is a POSIX record lock: the system takes it away when this process dies, whatever it dies of, and child
    processes do not inherit it, so that workers which outlive a killed parent for a moment keep nobody out.

    Args:
        path: the lock file.
        what: what is locked, for the message.

    Raises:
        UsageError: if another process holds it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise UsageError(f"another process is working on {what}; wait for it or stop it") from None
        if not _is_file_at(descriptor, path):
            # the holder before us has removed the file between our two calls
            raise UsageError(f"another process was working on {what} a moment ago; try again")
        _HELD.add(path.resolve())
        try:
            yield
        finally:
            _HELD.discard(path.resolve())
            path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether a process holds the lock file ``path`` (:func:`held`); nothing is changed."""
    if path.resolve() in _HELD:  # opening and closing the file here would drop this process's own lock
        return True
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


_HELD: set[Path] = set()
"""Lock files that this process holds."""


def _is_file_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False
