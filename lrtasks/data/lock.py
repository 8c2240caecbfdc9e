"""One writer per dataset folder.

A local folder is locked by the kernel (``flock``), which lets go when the holder dies, however it dies. Where that is
not to be had (object stores, some network file systems), a lock object names host and process: it is stale if that
process of this host is gone; one of another host has to be removed by hand.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lrtasks.data.store import HIDDEN, Store
from lrtasks.errors import UsageError

LOCK = f"{HIDDEN}/lock"


@contextmanager
def locked(store: Store) -> Iterator[None]:
    """Hold the folder for writing.

    Raises:
        UsageError: if another ``generate`` holds it.
    """
    holder = {"host": socket.gethostname(), "pid": os.getpid(), "nonce": uuid.uuid4().hex}
    if store.root is None:
        with _lock_object(store, holder):
            yield
        return
    descriptor = os.open(store.root / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _refusal(store, _parse(os.read(descriptor, 1000))) from None
        except OSError:
            # this file system has no locks of the kernel's
            with _lock_object(store, holder):
                yield
            return
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(holder).encode())
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


@contextmanager
def _lock_object(store: Store, holder: dict[str, Any]) -> Iterator[None]:
    try:
        found = _parse(store.read(LOCK))
    except FileNotFoundError:
        found = {}
    if found and not _is_gone(found):
        raise _refusal(store, found)
    store.write(LOCK, json.dumps(holder).encode())
    written = _parse(store.read(LOCK))
    if written != holder:
        raise _refusal(store, written)
    try:
        yield
    finally:
        store.remove(LOCK)


def _parse(data: bytes) -> dict[str, Any]:
    try:
        return dict(json.loads(data))
    except ValueError:
        return {}


def _is_gone(holder: dict[str, Any]) -> bool:
    if holder.get("host") != socket.gethostname():
        return False
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _refusal(store: Store, holder: dict[str, Any]) -> UsageError:
    who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}"
    by_hand = f"; if that process is gone, remove {store.address.rstrip('/')}/{LOCK}" if store.root is None else ""
    return UsageError(
        f"another generate ({who}) is writing into {store.address}: wait for it or choose another --out{by_hand}"
    )
