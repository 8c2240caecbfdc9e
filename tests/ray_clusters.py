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
    """Settings of Ray: loopback only, no tokens, and files in a folder with a short path, as sockets are among them.

    Args:
        modules: folders that Ray's processes import from, beside that of this file.
    """
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as folder:
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # elsewhere than there, 0 means 127.0.0.1 for everything
        patch.setenv("RAY_AUTH_MODE", "disabled")  # or a token is written into the home folder
        patch.delenv("RAY_ADDRESS", raising=False)
        path = [str(module) for module in (Path(__file__).parent, *modules)] + [
            path for path in [os.environ.get("PYTHONPATH")] if path
        ]
        patch.setenv("PYTHONPATH", os.pathsep.join(path))
        yield


@contextmanager
def cluster(**head: Any) -> Iterator[Any]:
    """A cluster with a head node and no other; ``add_node`` adds some."""
    from ray.cluster_utils import Cluster

    started = Cluster(initialize_head=True, head_node_args={**NODE, **head})
    try:
        yield started
    finally:
        started.shutdown()
