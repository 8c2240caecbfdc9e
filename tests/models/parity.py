"""Comparison of a module with reference arrays: outputs and gradients, in float64 and float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lrtasks.models import build
from lrtasks.spec import Spec

Named = Mapping[str, Tensor]


def read_arrays(folder: Path, name: str) -> dict[str, np.ndarray]:
    """The file called ``name`` in ``folder``; outputs and gradients of most are rounded to 2^-36 of the largest value.

    Arrays that several files have in common are in the file "shared"; the entry ``shared`` lists their names in both.
    """
    with np.load(folder / f"{name}.npz") as stored, np.load(folder / "shared.npz") as shared:
        found = dict(stored)
        return found | {here: shared[there] for here, there in found.pop("shared", ())}


def gap(found: Any, wanted: Any) -> float:
    """Largest difference relative to the largest wanted value."""
    found, wanted = (np.asarray(x.detach() if isinstance(x, Tensor) else x, np.float64) for x in (found, wanted))
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    scale = np.abs(wanted).max()
    return float(np.abs(found - wanted).max() / (scale if scale else 1.0))


def check_close(found: Any, arrays: Mapping[str, np.ndarray], name: str, double: bool, at_most: float = 1e-10) -> None:
    """Compare with ``name_f64``: to ``at_most`` in float64, else to 1e-5 or four times the reference's f32 gap.

    ``name_f32_gap`` is the :func:`gap` between the reference's arrays in float32 and in float64.
    """
    wanted = arrays[f"{name}_f64"]
    allowed = at_most if double else max(1e-5, 4 * float(arrays[f"{name}_f32_gap"]))
    assert gap(found, wanted) <= allowed, f"{name}: {gap(found, wanted):.2e} > {allowed:.2e}"


def check_outputs_and_gradients(
    arrays: Mapping[str, np.ndarray],
    forward: Callable[[], Tensor],
    leaves: Mapping[str, Tensor],
    double: bool,
    prefix: str = "",
    output: str = "y",
) -> None:
    """Check ``forward()`` and the gradients of sum(cotangent * output) in ``leaves`` (reference name: tensor)."""
    y = forward()
    check_close(y.reshape(arrays[f"{prefix}{output}_f64"].shape), arrays, prefix + output, double)
    cotangent = torch.from_numpy(arrays[f"{prefix}cotangent"]).to(y.dtype)
    (y.reshape(cotangent.shape) * cotangent).sum().backward()
    for name, leaf in leaves.items():
        assert leaf.grad is not None, name
        wanted = arrays[f"{prefix}grad_{name}_f64"]
        check_close(leaf.grad.reshape(wanted.shape), arrays, f"{prefix}grad_{name}", double)


@torch.no_grad()
def streamed(module: Any, x: Tensor) -> Tensor:
    """Outputs for ``x`` ``(batch, length, ...)``, one position after the other."""
    state, outputs = module.initial_state(len(x)), []
    for x_t in x.unbind(1):
        y, state = module.step(x_t, state)
        outputs.append(y)
    return torch.stack(outputs, 1)


@torch.no_grad()
def check_streaming(model: nn.Module, x: Tensor, at_most: float) -> None:
    """Step through ``x`` ``(batch, length, ...)`` and compare with the model's output over the whole of it."""
    assert gap(streamed(model.eval(), x), model(x)) <= at_most


def check_streaming_of(name: str, **hyper: Any) -> None:
    """Check the same for a small model called ``name``, in float32 and in float64."""
    torch.manual_seed(0)
    spec = Spec("real", 60, 2)
    model = build(name, spec, spec, **{"layers": 2, "d_model": 5, "d_state": 12, **hyper})
    x = torch.randn(3, 60, 2)
    check_streaming(model, x, 1e-5)
    check_streaming(model.double(), x.double(), 1e-10)
