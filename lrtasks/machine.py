"""What this machine offers, and how worker processes end with the process that started them."""

from __future__ import annotations

import multiprocessing
import os
import threading


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def end_with_parent() -> None:
    """End this process of :mod:`multiprocessing` as soon as its parent has ended, even by a kill."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
