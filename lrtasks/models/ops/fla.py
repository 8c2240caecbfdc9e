"""GPU kernels of flash-linear-attention (extra ``gpu``) for the ops with a matrix state.

:func:`on` wraps an op so that it uses the kernel where possible. The kernels compute the same functions as the ops,
but with products in TF32 or bfloat16: relative to the largest value, results may differ by 2e-3 in float32, and
gradients and results in bfloat16 by 2e-2. The package is imported at the first use of a kernel on a GPU.

Source: Yang and Zhang, flash-linear-attention, https://github.com/fla-org/flash-linear-attention (functions of 0.6.0).
"""

from __future__ import annotations

import functools
import importlib
import re
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from lrtasks.errors import UsageError
from lrtasks.models.ops.decay import channel_decay, scalar_decay
from lrtasks.models.ops.delta_rule import delta_rule, low_rank_rule
from lrtasks.models.ops.layers import hide

OpBackend = Literal["auto", "torch", "fla"]
Op = Callable[..., tuple[Tensor, Tensor]]
Kernel = tuple[str, dict[str, Tensor], dict[str, Tensor]]
"""The module of ``fla.ops`` with the kernel of an op, and the kernel's arguments by name: inputs, and gates."""

DEVICES = ("cuda",)
WIDTHS = (16, 32, 64, 128, 256)
"""Widths of a head's keys and values that the kernels support."""
SINGLE = ("simple_gla", "gla", "gated_delta_rule", "kda")
"""Kernels that support float32 as well as bfloat16 (according to their code in 0.6.0)."""
GATED = ("simple_gla", "gated_delta_rule", "gated_delta_product")
"""Kernels with one gate per head. Triton 3.4.0 to 3.7.0 compiles their backward pass wrongly for Hopper GPUs, and the
package then raises an error (https://github.com/fla-org/flash-linear-attention/issues/640)."""


def on(backend: OpBackend, op: Op) -> Op:
    """Return ``op`` as a function that runs its kernel if ``backend`` and the inputs allow this, and torch otherwise.

    Args:
        backend: ``torch``: never use the kernel; ``auto``: use it on a GPU; ``fla``: as ``auto``, but require a GPU.
        op: an op of :mod:`~lrtasks.models.ops.decay` or :mod:`~lrtasks.models.ops.delta_rule`.

    Raises:
        UsageError: for ``fla`` on a machine without a GPU.
    """
    if backend == "fla" and not torch.cuda.is_available():
        raise UsageError("op_backend=fla needs a GPU with CUDA, found none; take op_backend=torch or auto")
    return op if backend == "torch" else partial(_run, op)  # a partial, unlike an inner function, can be pickled


def _run(op: Op, *inputs: Tensor, state: Tensor | None = None, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    q = inputs[0]
    if q.device.type in DEVICES and q.shape[1] > 1:
        module, given, gates = _KERNELS[op](*inputs, mask)
        if _usable(module, q, given["v"]):
            return _call(module, given, gates, state)
    return op(*inputs, state=state, mask=mask)


def _usable(module: str, q: Tensor, v: Tensor) -> bool:
    """Return whether a kernel supports these inputs; if not, warn with the reason (the run's record keeps warnings)."""
    reason, dtype = "", torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else q.dtype
    if dtype == torch.float64 or (dtype == torch.float32 and module not in SINGLE):
        reason = f"its kernel {module} does not take {dtype}"
    elif found := {q.shape[-1], v.shape[-1]}.difference(WIDTHS):
        reason = f"its kernels take heads of widths {WIDTHS}, found {', '.join(map(str, sorted(found)))}"
    else:
        reason = _import_problem() or (_triton_problem() if module in GATED else "")
    if reason:
        warnings.warn(f"flash-linear-attention is not used: {reason}", stacklevel=2)
    return not reason


@functools.cache  # Python tries a failed import again each time
def _import_problem() -> str:
    """Return why flash-linear-attention cannot be imported; an empty text if it can."""
    try:
        importlib.import_module("fla.ops")
    except Exception as error:  # a package compiled for another machine may raise anything
        return f"it cannot be imported ({type(error).__name__}: {error}); pip install 'lrtasks[gpu]'"
    return ""


@functools.cache
def _triton_problem() -> str:
    """Return why kernels of :data:`GATED` have no gradients on this machine; an empty text if they have."""
    if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9:  # Hopper
        version = str(importlib.import_module("triton").__version__)
        if (3, 4) <= tuple(map(int, re.findall(r"\d+", version)[:3])) < (3, 7, 1):
            return f"Triton {version} gives wrong gradients on this GPU; its version must be at least 3.7.1"
    return ""


def _call(
    module: str, inputs: dict[str, Tensor], gates: dict[str, Tensor], state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Run the kernel of ``module``; return y and S in float32. Autocast applies to inputs, not to gates and state."""
    kernel = getattr(importlib.import_module(f"fla.ops.{module}"), f"chunk_{module}")
    if torch.is_autocast_enabled("cuda"):
        inputs = {name: x.to(torch.get_autocast_dtype("cuda")) for name, x in inputs.items()}
    given: dict[str, Any] = {**inputs, **{name: x.float() for name, x in gates.items()}}
    if module == "gated_delta_product":
        given["num_householder"] = inputs["k"].shape[1] // inputs["q"].shape[1]
    start = None if state is None else state.float()
    y, S = kernel(**given, scale=1.0, initial_state=start, output_final_state=True)
    return y.float(), S.float()


def _scalar_decay(q: Tensor, k: Tensor, v: Tensor, g: Tensor, mask: Tensor | None) -> Kernel:
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], 2) for x in (q, hide(k, mask)))
    return "simple_gla", {"q": q, "k": k, "v": v}, {"g": hide(g, mask)}


def _channel_decay(q: Tensor, k: Tensor, v: Tensor, g: Tensor, mask: Tensor | None) -> Kernel:
    return "gla", {"q": q, "k": hide(k, mask), "v": v}, {"g": hide(g, mask)}


def _delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor | None, mask: Tensor | None) -> Kernel:
    n_h = k.shape[1] // q.shape[1]
    steps = mask if mask is None or n_h == 1 else mask.repeat_interleave(n_h, 1)
    g = beta.new_zeros(q.shape[:3]) if g is None else hide(g, mask)
    module = "gated_delta_product" if n_h > 1 else "kda" if g.dim() == q.dim() else "gated_delta_rule"
    return module, {"q": q, "k": hide(k, steps), "v": v}, {"beta": beta, "g": g}


def _low_rank_rule(r: Tensor, w: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, mask: Tensor | None) -> Kernel:
    w, k, a, b = (hide(x, mask) for x in (w, k, a, b))
    return "rwkv7", {"r": r, "k": k, "v": v, "a": a, "b": b}, {"w": w}


_KERNELS: dict[Op, Callable[..., Kernel]] = {
    scalar_decay: _scalar_decay,
    channel_decay: _channel_decay,
    delta_rule: _delta_rule,
    low_rank_rule: _low_rank_rule,
}
