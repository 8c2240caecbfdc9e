"""What a run has done so far: one small file per finished shard, written after the shard."""

from __future__ import annotations

import base64
import dataclasses
import json
import platform
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata

from lrtasks.data.duplicates import DIGEST_BYTES
from lrtasks.data.pictures import index_header, listed_pictures
from lrtasks.data.plan import Block, Plan
from lrtasks.data.store import HIDDEN, Store

PLAN = f"{HIDDEN}/plan.json"
_PACKAGES = ("lrtasks", "numpy", "scipy", "numba", "pillow", "pyarrow")


@dataclass(frozen=True)
class Record:
    """A finished shard.

    Attributes:
        files: SHA-256 by name.
        attempts: attempt of each index that was drawn again.
        digests: fingerprints of attempt 0, one per sample, from which a later run settles duplicates again.
        versions: packages that wrote it.
    """

    files: dict[str, str]
    attempts: dict[int, int]
    digests: tuple[bytes | None, ...]
    versions: dict[str, str]

    def to_json(self) -> bytes:
        """Content of the file."""
        content = dataclasses.asdict(self)
        content["digests"] = None
        if any(self.digests):
            content["digests"] = base64.b64encode(
                b"".join(digest or bytes(DIGEST_BYTES) for digest in self.digests)
            ).decode()
        return (json.dumps(content, sort_keys=True) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, samples: int) -> Record:
        """Read the file's content; :class:`ValueError` if it is none."""
        content = json.loads(data)
        packed = base64.b64decode(content["digests"]) if content["digests"] else bytes(DIGEST_BYTES * samples)
        digests = [packed[start : start + DIGEST_BYTES] for start in range(0, len(packed), DIGEST_BYTES)]
        if len(digests) != samples:
            raise ValueError(f"{len(digests)} fingerprints for {samples} samples")
        return cls(
            files=dict(content["files"]),
            attempts={int(index): int(attempt) for index, attempt in content["attempts"].items()},
            digests=tuple(digest if any(digest) else None for digest in digests),
            versions=dict(content["versions"]),
        )


def write_record(store: Store, block: Block, record: Record) -> None:
    """Note that a shard is whole."""
    store.write(_name(block), record.to_json())


def finished(plan: Plan, store: Store, blocks: list[Block]) -> dict[Block, Record]:
    """The shards that are whole: noted by these versions of the packages, and unchanged since."""
    now = versions()
    header = index_header(plan) if plan.format == "png" else None

    def check(block: Block) -> Record | None:
        try:
            record = Record.from_json(store.read(_name(block)), block.samples)
            if record.versions != now or any(store.sha256(name) != digest for name, digest in record.files.items()):
                return None
            if header is not None:
                for part in record.files:
                    lines = store.read(part).decode().splitlines()
                    if any(store.sha256(name) != digest for name, digest in listed_pictures(header, lines)):
                        return None
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return record

    with ThreadPoolExecutor(4) as threads:
        found = zip(blocks, threads.map(check, blocks), strict=True)
        return {block: record for block, record in found if record is not None}


def versions() -> dict[str, str]:
    """Versions of what decides the bytes of a shard."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _name(block: Block) -> str:
    return f"{HIDDEN}/shards/{block.split}-{block.number:05d}.json"
