"""Write files completely or not at all, and let only one process at a time work on them."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from lrtasks.errors import UsageError

NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP)
"""Errors of a file system that has no locks, such as NFS without its lock service."""
SECONDS_TO_LOOK = 0.2
"""Time for which a process waits for a lock, because :func:`is_held` in another process takes it for a moment."""


def require_folder(folder: Path, what: str) -> None:
    """Check that a folder can be made or is writable, without making it; ``what`` names the folder in messages.

    Raises:
        UsageError: if the folder cannot be made or is not writable.
    """
    nearest = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not nearest.is_dir():
        raise UsageError(f"{what} {folder} cannot be made: {nearest} is not a folder")
    if not os.access(nearest, os.W_OK):
        reason = "is not writable" if nearest == folder else f"cannot be made: {nearest} is not writable"
        raise UsageError(f"{what} {folder} {reason}")


def make_folder(folder: Path, what: str) -> None:
    """Make a folder and its parent folders if they do not exist; ``what`` names the folder in messages.

    Raises:
        UsageError: if the folder cannot be made or is not writable.
    """
    require_folder(folder, what)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{what} {folder} cannot be made: {error.strerror}") from None


def refuse_links(*paths: Path) -> None:
    """Raise :class:`UsageError` if one of these paths is a symbolic link, which could lead out of a results folder."""
    for path in paths:
        if path.is_symlink():
            raise UsageError(f"{path} is a symbolic link; remove it, or take another results folder")


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Write a file so that it has either the old or the new content, even if this process is killed meanwhile."""
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        error.filename = str(path)  # not the temporary file; the error of a full disk names no file
        raise
    finally:
        partial.unlink(missing_ok=True)


def write_output(path: Path, data: bytes, *, follow: bool = True) -> None:
    """Write output to a path that the user named: a file atomically, a pipe or a device directly.

    With ``follow``, write to the file that a symbolic link points to; otherwise replace the link.

    Raises:
        UsageError: if the path cannot be written.
    """
    try:
        if follow and path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            write_atomically(path.resolve() if follow else path, data)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def remove_empty(*folders: Path) -> None:
    """Remove the empty folders among ``folders``, in the given order."""
    for folder in folders:
        with suppress(OSError):  # the folder is not empty, or does not exist
            folder.rmdir()


def remove_partials(path: Path) -> None:
    """Remove temporary files of ``path`` that killed calls of :func:`write_atomically` left; no call may be active."""
    for partial in path.parent.glob(f".{path.name}.*-*"):
        partial.unlink(missing_ok=True)


@contextmanager
def held(path: Path, what: str, *, patience: float = SECONDS_TO_LOOK) -> Iterator[None]:
    """Hold the lock file ``path`` and remove it afterwards; ``what`` names the locked work in messages.

    The system releases the lock when this process dies for any reason. Child processes do not inherit the lock.
    Workers that live a little longer than a killed parent therefore do not keep it.

    Raises:
        UsageError: if another process holds the lock for ``patience`` seconds, the path is a symbolic link, or the file
            system has no locks.
    """
    if path.is_symlink():
        raise UsageError(f"{path} is a symbolic link, which is not used as a lock; remove it")
    lock = FileLock(path)
    try:
        lock.acquire(timeout=patience)
    except Timeout:
        raise UsageError(f"another process is working on {what}; wait for it or stop it") from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        path.unlink(missing_ok=True)
        where = f"the file system of {path.parent} cannot lock files ({error.strerror})"
        raise UsageError(f"{where}; choose a folder on another one") from None
    try:
        yield
    finally:
        # remove the file before releasing the lock: a process that has opened it meanwhile sees that it is removed
        path.unlink(missing_ok=True)
        lock.release()


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock file ``path`` (:func:`held`), without changing the file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in NO_LOCKS
    finally:
        os.close(descriptor)
    return False
