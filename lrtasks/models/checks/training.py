"""What a model does in training mode, and what its modules offer beside their output."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor

from lrtasks.errors import unknown
from lrtasks.models.base import PARAMETER_OPTIONS, offered
from lrtasks.models.checks.probe import INPUT, Probe, Problem, place


def check_extras(probe: Probe) -> Iterator[Problem]:
    """Training mode runs, and what modules offer beside their output has the uniform form."""
    before = probe.x.clone()
    try:
        probe.model.train()(probe.x)
    except Exception as error:
        yield f"fails in training mode: {type(error).__name__}: {error}"
        return
    if not torch.equal(before, probe.x):
        yield f"forward writes to its input in training mode, first at {place(before != probe.x, INPUT)}"
    for method, check in (
        ("extra_losses", _loss_problem),
        ("diagnostics", _diagnostic_problem),
        ("parameter_options", _options_problem),
    ):
        for name, function in offered(probe.model, method):
            label = f"{name}.{method}" if name else method
            try:
                entries = dict(function())
            except Exception as error:
                yield f"{label} must return a dictionary: {type(error).__name__}: {error}"
                continue
            for key, value in entries.items():
                wrong = check(value)
                if wrong:
                    yield f"{label}: {key} {wrong}"
                if method == "parameter_options" and key not in probe.model.get_submodule(name)._parameters:
                    yield f"{label}: {key} is not a parameter of this module"


def check_gradients(probe: Probe, unused: Collection[str]) -> Iterator[Problem]:
    """A training step reaches the parameters, with finite gradients.

    Raises:
        UsageError: if ``unused`` names what is no parameter.
    """
    parameters = dict(probe.model.named_parameters())
    for name in unused:
        if name not in parameters:
            raise unknown("parameter in unused", name, parameters)
    wanting = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
    if not wanting:
        yield "it has no parameters to train"
        return
    for time in ("", " after the first step; forward must keep nothing of an earlier one (.detach() it)"):
        y = probe.model.train()(probe.x)
        loss = (y * torch.randn(y.shape, dtype=y.dtype).to(y.device)).sum()
        for _, extra in offered(probe.model, "extra_losses"):
            loss = loss + sum(extra().values())
        if not loss.requires_grad:
            yield "no parameter gets a gradient: the output is cut off from all of them"
            return
        try:
            loss.backward()
        except RuntimeError as error:
            yield f"the backward pass fails{time}: {error}"
            return
    gradients = {name: parameter.grad for name, parameter in wanting.items()}
    missing = [name for name, gradient in gradients.items() if gradient is None and name not in unused]
    if missing:
        yield f"no gradient reaches {', '.join(missing)} (use it in forward, or name it in unused=)"
    wild = [name for name, gradient in gradients.items() if gradient is not None and not gradient.isfinite().all()]
    if wild:
        yield f"gradients are not finite in {', '.join(wild)} (a root, a logarithm or a division at 0?)"
    if all(gradient is None or not gradient.any() for gradient in gradients.values()):
        yield "the gradient is zero in every parameter"


def _loss_problem(value: Any) -> Problem | None:
    if isinstance(value, Tensor) and value.dim() == 0 and value.isfinite():
        return None
    found = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) and value.dim() else repr(value)
    return f"must be a finite scalar tensor, found {found}"


def _diagnostic_problem(value: Any) -> Problem | None:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        return f"must be finite numbers, texts, or lists or dictionaries of them (.item(), .tolist()): {error}"
    return None


def _options_problem(value: Any) -> Problem | None:
    if isinstance(value, dict) and set(value) <= set(PARAMETER_OPTIONS):
        return None
    return f"must be a dictionary with {' or '.join(PARAMETER_OPTIONS)}, found {value!r}"
