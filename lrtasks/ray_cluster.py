"""The connection to Ray, for suites and for stored datasets."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from lrtasks.errors import UsageError

SECONDS_TO_ANSWER = 60.0
TRIES = 5
"""Largest number of attempts to connect to a cluster."""


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """Connect this process to Ray for the ``with`` block, and give the block the module ``ray``.

    The connection, and the work started through it, end with the block. A connection that existed before stays.

    Args:
        address: ``host:port`` or ``ray://host:port`` of a cluster, or ``auto`` for the cluster of this machine.
            ``None`` means the first of these that exists: this process's connection, the cluster in RAY_ADDRESS, a new
            Ray on this machine alone, which ends with the block.

    Raises:
        UsageError: if Ray is not installed, if nothing answers at the address, or if an address is given although this
            process is already connected.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError:
        raise UsageError("the backend ray needs Ray; pip install 'lrtasks[ray]'") from None
    if ray.is_initialized():
        if address is not None:
            raise UsageError(f"this process is connected to Ray already; leave the address {address!r} out")
        yield ray
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    _join(ray, address)
    with redirect_stdout(sys.stderr):  # Ray's threads print reports of lost workers
        try:
            yield ray
        finally:
            ray.shutdown()


def describe(error: Exception) -> str:
    """Return the line of a Ray exception that names the error: the last line if a task raised it, else the first."""
    import ray

    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1 if isinstance(error, ray.exceptions.RayTaskError) else 0]


def _join(ray: Any, address: str) -> None:
    options: dict[str, Any] = {"include_dashboard": False} if address == "local" else {}
    if address not in ("local", "auto"):
        _require_port(address)
    # now and then, a process that connects dies, or the server of a client dies (Ray issue 63202)
    for tried in range(1 if address == "local" else TRIES):
        time.sleep(tried)
        try:
            if address != "local":
                _require_answer(address)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
            return
        except UsageError:
            raise
        except Exception as error:
            reason = " ".join(str(error).split())
    raise _refusal(address, reason)


def _require_answer(address: str) -> None:
    """Check in a separate process whether Ray answers; an attempt can last minutes and cannot be stopped otherwise."""
    code = "import ray, sys; ray.init(sys.argv[1], log_to_driver=False, logging_level='ERROR')"
    try:
        command = [sys.executable, "-c", code, address]
        asked = subprocess.run(command, capture_output=True, timeout=SECONDS_TO_ANSWER, check=False)
    except subprocess.TimeoutExpired as error:
        raise _refusal(address, f"not within {SECONDS_TO_ANSWER:g} s. {_last_line(error.stderr)}") from None
    if asked.returncode:
        raise ConnectionError(_last_line(asked.stderr) or f"the process that asks ended with {asked.returncode}")


def _last_line(said: bytes | None) -> str:
    """Return the last non-empty line of ``said``, without Ray's prefix of time and process in brackets."""
    lines = [line.rpartition("] ")[2].strip() for line in (said or b"").decode(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "")


def _require_port(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"a Ray address is host:port, ray://host:port or auto, found {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise _refusal(address, str(error)) from None


def _refusal(address: str, reason: str) -> UsageError:
    if address == "local":
        return UsageError(f"Ray cannot be started on this machine: {reason}")
    return UsageError(f"no Ray cluster answers at {address}: {reason}")
