"""Writing files so that nothing is ever half there, and by one process at a time."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from lrtasks.errors import UsageError


def make_folder(folder: Path, what: str) -> None:
    """Make a folder, and those above it, unless it is there; ``what`` names it in messages.

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


def refuse_links(*paths: Path) -> None:
    """Raise :class:`UsageError` if one of these paths is a symbolic link, which could lead out of a results folder."""
    for path in paths:
        if path.is_symlink():
            raise UsageError(f"{path} is a symbolic link; remove it, or take another results folder")


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


def write_output(path: Path, data: bytes, *, follow: bool = True) -> None:
    """Write what a user asked for by name: a file atomically, and into a pipe or device as it comes.

    Args:
        path: the file.
        data: its content.
        follow: write through a symbolic link; without it the link is replaced.

    Raises:
        UsageError: if it cannot be written.
    """
    try:
        if follow and path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            write_atomically(path.resolve() if follow else path, data)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def remove_empty(*folders: Path) -> None:
    """Remove those of ``folders`` that are empty, in their order."""
    for folder in folders:
        with suppress(OSError):  # it is not empty, or not there
            folder.rmdir()


def remove_partials(path: Path) -> None:
    """Remove what killed calls of :func:`write_atomically` left of ``path``; nobody may be writing it."""
    for partial in path.parent.glob(f".{path.name}.*-*"):
        partial.unlink(missing_ok=True)


@contextmanager
def held(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file ``path``, which is removed afterwards; ``what`` names in messages what is locked.

    The system releases the lock when this process dies, for whatever reason. Child processes do not inherit it, so
    workers that live a little longer than a killed parent do not keep the lock.

    Raises:
        UsageError: if another process holds it, or it is a symbolic link.
    """
    if path.is_symlink():
        raise UsageError(f"{path} is a symbolic link, which is not used as a lock; remove it")
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise UsageError(f"another process is working on {what}; wait for it or stop it") from None
    try:
        yield
    finally:
        # before the lock is released: a process that has opened the file since then sees that the file is removed
        path.unlink(missing_ok=True)
        lock.release()


def is_held(path: Path) -> bool:
    """Whether a process holds the lock file ``path`` (:func:`held`); nothing is changed."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
