"""Storage of a dataset: a local folder, or an fsspec address (``s3://``, ``gs://``, ``memory://``, ...).

Every write is atomic, so a file that exists is complete.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from lrtasks.errors import UsageError
from lrtasks.files import held, remove_empty

HIDDEN = ".lrtasks"
"""Folder of the journal; readers of datasets ignore names that begin with a dot."""
LOCK = f"{HIDDEN}/lock"
PARTIAL = f"{HIDDEN}/partial"
"""Folder of the files that are being written."""


class GenerationError(RuntimeError):
    """Raised when the work stops for a reason outside the request, such as a full disk; the message is one line."""


class Store:
    """Files of one folder, under names relative to the folder (``"train/00000.png"``).

    Args:
        address: a path, or a URL with a protocol that fsspec supports.

    Raises:
        UsageError: if the protocol is not installed, or the address is empty or not complete.
    """

    def __init__(self, address: str | os.PathLike[str]) -> None:
        self.address = os.fspath(address)
        if not self.address:
            raise UsageError("the address of a dataset must be a folder or a URL, found ''")
        self.root: Path | None = None
        if "://" not in self.address:
            self.root = Path(self.address)
            return
        import fsspec

        try:
            # no cached listings: listings must show the files of other processes
            self._fs, self._prefix = fsspec.core.url_to_fs(self.address, use_listings_cache=False)
        except Exception as error:  # each protocol raises its own types of errors
            hint = "; install lrtasks[s3]" if self.address.startswith("s3:") else ""
            raise UsageError(f"cannot use {self.address}: {error}{hint}") from error
        if self.address.startswith("s3:") and not self._prefix.strip("/"):
            raise UsageError(f"cannot use {self.address}: it names no bucket; an address is s3://bucket/name")
        if self.address.startswith(("file:", "local:")):
            self.root = Path(self._prefix)

    @property
    def in_process(self) -> bool:
        """Return whether the files exist in this process alone (``memory://``)."""
        return self.address.startswith("memory:")

    @property
    def read_only(self) -> bool:
        """Return whether the folder exists and this process cannot write to it."""
        return self.root is not None and self.root.is_dir() and not os.access(self.root, os.W_OK)

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.address,)

    def absolute(self) -> Store:
        """Return the same store with an absolute path, for processes with another working folder."""
        return self if self.root is None else Store(self.root.absolute())

    def _remote(self, name: str) -> str:
        return f"{self._prefix.rstrip('/')}/{name}"

    def names(self) -> list[str]:
        """Return the sorted names of all files, including hidden files and symbolic links."""
        if self.root is None:
            path = self._fs._strip_protocol(self._prefix).rstrip("/")
            names = (self._fs._strip_protocol(name)[len(path) + 1 :] for name in self._fs.find(path))
            return sorted(filter(None, names))  # some object stores also list the folder itself, with an empty name
        found = []
        for folder, folders, files in os.walk(self.root, onerror=_raise):
            here = Path(folder)
            linked = [name for name in folders if (here / name).is_symlink()]
            found += [(here / name).relative_to(self.root).as_posix() for name in (*files, *linked)]
        return sorted(found)

    def exists(self, name: str) -> bool:
        return bool(self._fs.isfile(self._remote(name))) if self.root is None else (self.root / name).exists()

    def open(self, name: str) -> BufferedReader:
        """Open a regular file to read bytes, with random access; reject devices and pipes, which may never end."""
        if self.root is None:
            return self._fs.open(self._remote(name), "rb")
        path = self.root / name
        if os.path.lexists(path) and not path.is_file():  # a link may lead to itself
            raise UsageError(f"{path} is not a regular file")
        return path.open("rb")

    def read(self, name: str) -> bytes:
        with self.open(name) as file:
            return file.read()

    def sha256(self, name: str) -> str:
        with self.open(name) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def size(self, name: str) -> int:
        return int(self._fs.size(self._remote(name))) if self.root is None else (self.root / name).stat().st_size

    def stamp(self, name: str) -> Any:
        """Return a value that changes when the file is written again, such as size, modification time and inode."""
        if self.root is None:
            return str(self._fs.info(self._remote(name)))
        status = (self.root / name).stat()
        return status.st_size, status.st_mtime_ns, status.st_ino

    def write(self, name: str, chunks: Iterable[bytes], *, sync: bool = True) -> str:
        """Write a file atomically, in pieces, and return its SHA-256.

        Without ``sync`` a power failure can damage the file.
        """
        digest = hashlib.sha256()
        folder = Path(tempfile.gettempdir()) if self.root is None else self.root / PARTIAL
        partial = folder / f"{name.rpartition('/')[2]}.{os.getpid()}-{secrets.token_hex(4)}"
        try:
            with partial.open("xb") as file:
                for chunk in chunks:
                    file.write(chunk)
                    digest.update(chunk)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
            if self.root is None:
                self._fs.put_file(str(partial), self._remote(name))
            else:
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                partial.replace(self.root / name)
        finally:
            partial.unlink(missing_ok=True)
        return digest.hexdigest()

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        if self.root is not None:
            (self.root / name).unlink(missing_ok=True)
        elif self.exists(name):
            self._fs.rm_file(self._remote(name))

    def remove_partials(self) -> None:
        """Remove unfinished files that killed writers left; only the holder of the lock may call this."""
        for name in self.names() if self.root is not None and self.root.is_dir() else []:
            if partial_of(name) is not None:
                self.remove(name)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Make and lock the folder for the ``with`` block; raise :class:`UsageError` if another process has locked it.

        An object store has no locks and no folders, so nothing happens there.
        """
        if self.root is None:
            yield
            return
        new = [parent for parent in self.root.parents if not parent.exists()]
        (self.root / HIDDEN).mkdir(parents=True, exist_ok=True)
        try:
            with held(self.root / LOCK, self.address):
                (self.root / PARTIAL).mkdir(exist_ok=True)
                try:
                    yield
                finally:
                    remove_empty(self.root / PARTIAL)
        finally:
            remove_empty(self.root / HIDDEN, self.root, *new)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Convert errors of the storage to one-line errors.

        A full disk or a vanished folder becomes a :class:`GenerationError`; other errors become a :class:`UsageError`.
        """
        try:
            yield
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                hint = "finished shards are kept; make room and run the same again"
                raise GenerationError(f"no space left at {self.address}: {hint}") from error
            if error.errno == errno.ENAMETOOLONG:
                raise UsageError(
                    f"{self.address[:80]}… is too long for the file system; choose a shorter name"
                ) from error
            if isinstance(error, FileNotFoundError) and HIDDEN in str(error.filename):
                raise GenerationError(f"the folder {self.address} was removed while it was written") from error
            reason = error.strerror or str(error) or type(error).__name__
            raise UsageError(f"cannot use {self.address}: {reason}") from error
        except Exception as error:
            if self.root is None and type(error).__module__.split(".")[0] in ("botocore", "aiobotocore", "aiohttp"):
                raise UsageError(f"cannot use {self.address}: {error}") from error
            raise


def partial_of(name: str) -> str | None:
    """Return the name (without folders) of the file whose unfinished copy is ``name``; ``None`` for other names.

    >>> partial_of(".lrtasks/partial/train-00000.parquet.71-0123abcd"), partial_of("notes")
    ('train-00000.parquet', None)
    """
    found = re.fullmatch(rf"{re.escape(PARTIAL)}/([^/]+)\.\d+-[0-9a-f]{{8}}", name)
    return found and found[1]


def _raise(error: OSError) -> None:
    raise error
