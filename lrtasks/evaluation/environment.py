"""The environment of a run: device, threads, random numbers, memory, versions and commit."""

from __future__ import annotations

import atexit
import functools
import gc
import os
import platform
import random
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from lrtasks import __version__
from lrtasks.errors import UsageError, require_known
from lrtasks.machine import cores, threads_for
from lrtasks.run_config import RunConfig

if TYPE_CHECKING:
    from lightning_fabric import Fabric

DEVICES = ("auto", "cpu", "cuda")
DEFAULT_WIDTH = 64
"""Width of a user's own model that has no parameter ``d_model``."""
DENORMAL = 2.0**-130
"""A number below the smallest normal number of float32."""

_ALONE = threading.RLock()
"""Held in each block of :func:`private_random_numbers`."""
_LAUNCH = threading.Lock()
"""Fabric replaces methods of torch's DataLoader while it is launched, which two threads must not do at once."""
for _kind in (np.float32, np.float64):
    np.finfo(_kind)  # NumPy 2.0 measures a type on first use, and warns if denormals are flushed then


def chosen_device(device: str) -> torch.device:
    """Return the device for a value of ``--device``.

    Raises:
        UsageError: for an unknown device, or for ``cuda`` if there is no GPU.
    """
    require_known("device", device, DEVICES)
    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError("device 'cuda' was asked for, but torch finds no GPU here; use --device cpu or auto")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


@functools.cache
def fabric_class() -> type[Fabric]:
    """Import Lightning Fabric at the first call: it imports torch._dynamo, which takes longer than torch.

    Fabric needs only the version of torchmetrics. To import torchmetrics would take as much processor time as torch,
    because it loads SciPy's signal processing and matplotlib. A module with only the version therefore replaces it.
    """
    stand_in = ModuleType("torchmetrics")
    stand_in.__dict__["__version__"] = metadata.version("torchmetrics")
    alone = sys.modules.setdefault("torchmetrics", stand_in) is stand_in
    try:
        from lightning_fabric import Fabric
    finally:
        if alone:
            del sys.modules["torchmetrics"]
    return Fabric


def make_fabric(device: str, precision: str) -> Fabric:
    """Return Lightning Fabric for one device, or for the processes that ``torchrun`` started.

    Raises:
        UsageError: as :func:`chosen_device` does.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    joins = world > 1 and not dist.is_initialized()
    fabric = fabric_class()(
        accelerator=chosen_device(device).type,
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=world // int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        strategy="ddp" if world > 1 else "auto",
        precision="bf16-mixed" if precision == "bf16" else "32-true",
    )
    with _LAUNCH:
        fabric.launch()
    if joins:
        atexit.register(_leave)
    return fabric


@contextmanager
def own_threads(fabric: Fabric, config: RunConfig) -> Iterator[None]:
    """On a CPU, limit threads to a useful number for batch × length × d_model, unless the user has set a number."""
    before = torch.get_num_threads()
    elements = config.budget.batch_size // fabric.world_size * config.task.input.length
    threads = threads_for(elements * config.model.parameters.get("d_model", DEFAULT_WIDTH))
    if threads is not None and fabric.device.type == "cpu":
        torch.set_num_threads(min(before, threads))
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def private_random_numbers(devices: Sequence[torch.device] | None = None, *, seed: int | None = None) -> Iterator[None]:
    """Restore the caller's random states after the block, so that the block does not change the caller's numbers.

    One thread at a time is in such a block: all threads of a process draw from the same random generators.

    Args:
        devices: devices whose generators the block uses besides the CPU's; by default all GPUs.
        seed: seed of the generators in the block; ``None`` leaves them as they are.
    """
    with _ALONE:
        state, numpy_state = random.getstate(), np.random.get_state()
        try:
            with torch.random.fork_rng(None if devices is None else [one for one in devices if one.type == "cuda"]):
                if seed is not None:
                    seed_all(seed)
                yield
        finally:
            random.setstate(state)
            np.random.set_state(numpy_state)


def seed_all(number: int) -> None:
    """Seed the global random generators of torch, NumPy and Python."""
    # torch.manual_seed would take a millisecond: it formats the stack for each kind of device that is not in use
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(number)
    np.random.seed(number & 0xFFFFFFFF)
    random.seed(number)


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """On a CPU, compute with 0 in place of numbers below the smallest normal number (1.2e-38 in float32).

    A gradient that fades over many positions reaches such numbers, and a CPU is many times slower with them. Threads
    that torch started earlier may still compute with them.
    """
    tiny = torch.full((1,), DENORMAL, device="cpu")
    before = bool(tiny * 1.0 == 0)  # torch has no function that returns the setting
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def _leave() -> None:
    """Leave the process group: at Python's exit, the backend's threads can abort the process of a finished run.

    They free tensors at that time (https://github.com/pytorch/pytorch/pull/179291).
    """
    gc.collect()  # the threads end when the last reference to the group is freed, which may be in a cycle
    if dist.is_initialized():
        dist.destroy_process_group()


def describe_environment() -> dict[str, Any]:
    """Return versions, commit of the source tree (``None`` outside a checkout), platform and number of threads."""
    packages = ("torch", "numpy", "scipy")
    return {
        "lrtasks": __version__,
        "python": platform.python_version(),
        **{package: metadata.version(package) for package in packages},
        "lightning": metadata.version("pytorch-lightning"),
        **kernel_packages(),
        "commit": _commit(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
    }


def kernel_packages() -> dict[str, str]:
    """Return the versions of the packages with GPU kernels that models may use, if they are installed."""
    found = {}
    for package in ("triton", "flash-linear-attention"):
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def device_name(device: torch.device) -> str:
    """Return a readable name of the device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    count = cores()
    return f"cpu ({count} core{'s' * (count != 1)})"


def peak_memory_bytes(device: torch.device) -> int:
    """Return the largest allocation on a GPU, or the largest resident size of this process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # Linux counts kibibytes, macOS bytes
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@functools.cache  # starts two processes, which takes longer than a short run
def _commit() -> str | None:
    source = Path(__file__).parent
    try:
        tracked = subprocess.run(
            ["git", "ls-files", "--error-unmatch", __file__], cwd=source, capture_output=True, check=False
        )
        if tracked.returncode:
            return None
        describe = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        return subprocess.run(describe, cwd=source, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
