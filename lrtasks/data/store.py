"""Where a dataset lies: a local folder, or an address that fsspec knows (``s3://``, ``gs://``, ``memory://``, ...).

Every write is atomic: a local file is renamed into place after ``fsync``, an object of an object store appears when its
upload is complete. So a name that exists holds the whole file.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from lrtasks.errors import UsageError
from lrtasks.files import write_atomically

HIDDEN = ".lrtasks"
"""Folder for the journal of a dataset in the making; readers of datasets skip names that begin with a dot."""

_CHUNK = 2**20


class Store:
    """Files of one folder, by names relative to it (``"train/00000.png"``).

    Args:
        address: a path, or a URL with a protocol of fsspec's.

    Raises:
        UsageError: if no such protocol is installed.
    """

    def __init__(self, address: str | os.PathLike[str]) -> None:
        self.address = os.fspath(address)
        self.root: Path | None = None
        if "://" not in self.address:
            self.root = Path(self.address)
            return
        import fsspec

        try:
            # listings must show what other processes wrote
            self._fs, self._prefix = fsspec.core.url_to_fs(self.address, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            hint = "; install lrtasks[s3]" if self.address.startswith("s3:") else ""
            raise UsageError(f"cannot use {self.address}: {error}{hint}") from error
        if self.address.startswith("file:"):
            self.root = Path(self._prefix)

    @property
    def in_process(self) -> bool:
        """Whether other processes see other files under the same address (``memory://``)."""
        return self.address.startswith("memory:")

    def remote(self, name: str) -> tuple[Any, str]:
        """The fsspec file system and the full path of ``name``, for addresses that are not local."""
        return self._fs, f"{self._prefix.rstrip('/')}/{name}" if name else self._prefix

    def check_readable(self) -> None:
        """Make sure that the folder is there and can be reached.

        Raises:
            UsageError: if not, or if the address is a file.
        """
        if self.root is not None and self.root.is_file():
            raise UsageError(f"{self.address} is a file; a dataset is a folder")
        with self.explained():
            if self.root is not None and not self.root.is_dir():
                raise UsageError(f"there is no folder {self.address}")
            self.is_empty()

    def prepare(self) -> None:
        """Make the folder, and the hidden one in it.

        Raises:
            UsageError: if that cannot be done, or if the address is a file.
        """
        if self.root is not None and self.root.is_file():
            raise UsageError(f"{self.address} is a file; --out takes a folder")
        with self.explained():
            if self.root is not None:
                (self.root / HIDDEN).mkdir(parents=True, exist_ok=True)

    def is_empty(self) -> bool:
        """Whether the folder holds nothing, hidden names aside, or is not there."""
        if self.root is not None:
            return not self.root.is_dir() or all(path.name.startswith(".") for path in self.root.iterdir())
        fs, path = self.remote("")
        entries = fs.ls(path, detail=False) if fs.exists(path) else []
        return all(str(entry).rstrip("/").rsplit("/", 1)[-1].startswith(".") for entry in entries)

    def write(self, name: str, data: bytes) -> None:
        """Write a file atomically."""
        if self.root is None:
            self.write_chunks(name, [data])
            return
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)

    def write_unsynced(self, name: str, data: bytes) -> None:
        """Write one of many small files whose digest is kept elsewhere: quick, and whole only if the digest fits."""
        if self.root is None:
            self.write_chunks(name, [data])
            return
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def write_chunks(self, name: str, chunks: Iterable[bytes]) -> str:
        """Write a file atomically from pieces, of which one is in memory at a time; return its SHA-256."""
        digest = hashlib.sha256()
        folder = None if self.root is None else self.root / HIDDEN
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            try:
                for chunk in chunks:
                    file.write(chunk)
                    digest.update(chunk)
                file.flush()
                os.fsync(file.fileno())
                if self.root is not None:
                    Path(file.name).chmod(0o644)
                    (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                    Path(file.name).replace(self.root / name)
                else:
                    fs, path = self.remote(name)
                    fs.put_file(file.name, path)
            finally:
                Path(file.name).unlink(missing_ok=True)
        return digest.hexdigest()

    def read(self, name: str) -> bytes:
        """The content of a file; :class:`FileNotFoundError` if there is none."""
        with self.open(name) as file:
            return file.read()

    def chunks(self, name: str) -> Iterator[bytes]:
        """The content of a file in pieces."""
        with self.open(name) as file:
            while chunk := file.read(_CHUNK):
                yield chunk

    def open(self, name: str) -> BinaryIO:
        """A file open for reading bytes, with random access."""
        if self.root is not None:
            return (self.root / name).open("rb")
        fs, path = self.remote(name)
        return fs.open(path, "rb")  # type: ignore[no-any-return]

    def exists(self, name: str) -> bool:
        """Whether the file is there."""
        if self.root is not None:
            return (self.root / name).is_file()
        fs, path = self.remote(name)
        return bool(fs.isfile(path))

    def stamp(self, name: str) -> tuple[Any, ...]:
        """What changes when the file is written again: size and time of change."""
        if self.root is not None:
            status = (self.root / name).stat()
            return (status.st_size, status.st_mtime_ns, status.st_ino)
        fs, path = self.remote(name)
        entry = fs.info(path)
        return tuple(str(entry.get(key)) for key in ("size", "ETag", "etag", "mtime", "created", "LastModified"))

    def size(self, name: str) -> int:
        """Bytes of a file."""
        if self.root is not None:
            return (self.root / name).stat().st_size
        fs, path = self.remote(name)
        return int(fs.size(path))

    def names(self) -> list[str]:
        """Names of all files, sorted; those of hidden folders and hidden files are left out."""
        if self.root is not None:
            found = (path.relative_to(self.root).as_posix() for path in self.root.rglob("*") if path.is_file())
        else:
            fs, path = self.remote("")
            start = len(str(fs._strip_protocol(path)).rstrip("/")) + 1
            found = (str(fs._strip_protocol(entry))[start:] for entry in fs.find(path))
        # some object stores list the folder itself, under the empty name
        return sorted(name for name in found if name and not f"/{name}".count("/."))

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        if self.root is not None:
            (self.root / name).unlink(missing_ok=True)
        elif self.exists(name):
            fs, path = self.remote(name)
            fs.rm_file(path)

    def remove_folder(self, name: str) -> None:
        """Remove a folder and what is in it, if it is there."""
        if self.root is not None:
            shutil.rmtree(self.root / name, ignore_errors=True)
            return
        fs, path = self.remote(name)
        if fs.exists(path):
            fs.rm(path, recursive=True)

    def remove_partial_files(self) -> None:
        """Remove what killed writers left behind; only the holder of the folder's lock may do that."""
        if self.root is None:
            return
        hidden = self.root / HIDDEN
        partial = [*self.root.glob(".*-????????"), *hidden.rglob(".*-????????"), *hidden.glob("tmp*")]
        for path in partial:
            if path.is_file():
                path.unlink()

    def sha256(self, name: str) -> str:
        """SHA-256 of a file, in hexadecimal."""
        digest = hashlib.sha256()
        for chunk in self.chunks(name):
            digest.update(chunk)
        return digest.hexdigest()

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn errors of the disk or the object store into a :class:`UsageError` that names the address."""
        try:
            yield
        except UsageError:
            raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise UsageError(
                    f"no space left at {self.address}: finished shards are kept; make room and run the same again"
                ) from error
            raise UsageError(f"cannot use {self.address}: {error.strerror or error}") from error
        except Exception as error:
            if self.root is None and type(error).__module__.split(".")[0] in ("botocore", "aiobotocore", "aiohttp"):
                raise UsageError(f"cannot use {self.address}: {error}") from error
            raise
