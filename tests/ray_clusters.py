"""A Ray cluster of several nodes on this machine, for tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

NODE = {"object_store_memory": 80 * 2**20, "include_dashboard": False}


@contextmanager
def alone(*modules: Path) -> Iterator[None]:
    """Isolate Ray: loopback only, no tokens, and files in a folder with a short path, because sockets need one.

    Args:
        modules: folders that Ray's processes import from, in addition to the folder of this file.
    """
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as folder:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # on other systems, 0 makes Ray use only 127.0.0.1
        patch.setenv("RAY_AUTH_MODE", "disabled")  # otherwise Ray writes a token into the home folder
        patch.delenv("RAY_ADDRESS", raising=False)
        path = [str(module) for module in (Path(__file__).parent, *modules)] + [
            path for path in [os.environ.get("PYTHONPATH")] if path
        ]
        patch.setenv("PYTHONPATH", os.pathsep.join(path))
        yield


@contextmanager
def cluster(**head: Any) -> Iterator[Any]:
    """Start a cluster that has only a head node; its method ``add_node`` adds more nodes."""
    from ray.cluster_utils import Cluster

    started = Cluster(initialize_head=True, head_node_args={**NODE, **head})
    try:
        yield started
    finally:
        started.shutdown()
