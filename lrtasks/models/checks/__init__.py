"""A public conformance check for models: what the evaluation loop, and whoever reads a score, may rely on."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from lrtasks.errors import UsageError
from lrtasks.models.base import ModelLike, uninitialised
from lrtasks.models.checks.forms import check_mask, check_reload, check_step
from lrtasks.models.checks.outputs import check_causality, check_output, check_rows
from lrtasks.models.checks.probe import TOLERANCE, Probe, converted
from lrtasks.models.checks.subject import factory_of, own_copy
from lrtasks.models.checks.training import check_extras, check_gradients
from lrtasks.spec import Spec

__all__ = ["check_model", "model_problems"]


def check_model(
    model: ModelLike,
    *,
    input: Spec,
    target: Spec,
    causal: bool = True,
    dtype: torch.dtype = torch.float32,
    unused: Collection[str] = (),
    seed: int = 0,
    **hyper: Any,
) -> None:
    """Check that a model keeps the contract of this package; return nothing if it does.

    On random inputs the output must have the shape ``(batch, target.length, target.width)`` and the type ``dtype``,
    and be finite. In evaluation mode the same input must give the same output, a row's output must not depend on the
    other rows or on their number, and, if ``causal``, the outputs up to position t must not change when inputs after
    t change (tried at up to 16 positions t, the first and the last among them). Output o stands at input position
    ``input.length - target.length + o``, so of a model that reads only its last positions only those are seen: to
    check such a model through and through, build it for a target as long as its input. A model whose ``forward``
    takes a ``mask`` must let no output at a valid position depend on padding. Where ``initial_state`` and ``step``
    are offered, they must give the outputs of ``forward`` (seen are the first 128 positions, or all up to 1024 where
    the target is shorter than the input). A model that is built again and loads the state of the first must give
    its outputs; that is not tried on a module that was built already.

    In training mode the loss, extra losses included, must give finite gradients, not all zero, and reach every
    parameter that wants one; a gradient that is zero is allowed (a gate may be shut), one that is missing is not,
    unless ``unused`` names the parameter. Inputs must not be written to. ``parameter_options``, ``extra_losses`` and
    ``diagnostics``, where offered, must have the form that :class:`lrtasks.models.Block` describes.

    Nothing outside is changed: a module is checked on a copy, and random generators are put back.

    Args:
        model: name of a registered model, a module, or a factory called as ``factory(input, target, **hyper)``, with
            ``causal=causal`` too if it takes that.
        input: what the model reads.
        target: what it predicts.
        causal: check causality; also passed on when building.
        dtype: ``torch.float32`` (differences up to 1e-5 of the largest output are rounding) or ``torch.float64``
            (1e-10); the model is converted to it.
        unused: qualified names of parameters that need not take part.
        seed: of the inputs, and of initialisation where the model is built here.
        hyper: hyper-parameters of a registered model or a factory.

    Raises:
        UsageError: naming everything that was found wrong, by how much, and where; or for wrong arguments.
    """
    problems = model_problems(
        model, input=input, target=target, causal=causal, dtype=dtype, unused=unused, seed=seed, **hyper
    )
    if problems:
        name = model if isinstance(model, str) else getattr(model, "__name__", type(model).__name__)
        raise UsageError(f"model {name} ({str(dtype).removeprefix('torch.')}): {'; '.join(problems)}")


def model_problems(
    model: ModelLike,
    *,
    input: Spec,
    target: Spec,
    causal: bool = True,
    dtype: torch.dtype = torch.float32,
    unused: Collection[str] = (),
    seed: int = 0,
    **hyper: Any,
) -> list[str]:
    """What :func:`check_model` would name, one entry per problem; empty if the model keeps the contract.

    Raises:
        UsageError: for wrong arguments.
    """
    if dtype not in TOLERANCE:
        raise UsageError(f"check_model: dtype must be torch.float32 or torch.float64, found {dtype}")
    with _random_state(), torch.enable_grad():
        _seed_everything(seed)
        factory = factory_of(model, input, target, causal, hyper)
        built = own_copy(model) if factory is None else factory()
        unmade = uninitialised(built)
        if unmade:
            return [f"{', '.join(unmade)}: no shape yet; call the model once on an input before it is handed over"]
        _awaken(built)
        probe = Probe(converted(built, dtype), input, target, dtype)
        # each group relies on the ones before it having found nothing
        problems = list(check_output(probe)) or list(check_rows(probe))
        if not problems:
            problems = [*(check_causality(probe) if causal else ()), *check_mask(probe), *check_step(probe)]
            extras = list(check_extras(probe))
            problems += extras or check_gradients(probe, unused)
            if factory is not None:
                _seed_everything(seed + 1)
                problems += check_reload(probe, factory)
    return [" ".join(problem.split()) for problem in problems]


@torch.no_grad()
def _awaken(model: nn.Module) -> None:
    """Fill parameters that are zero everywhere: behind a head or a gate that starts at zero nothing could be seen."""
    for parameter in model.parameters():
        if parameter.requires_grad and not parameter.any():
            size = 0.05 + 0.1 * torch.rand(parameter.shape)
            parameter.copy_(size * (2.0 * torch.randint(2, parameter.shape) - 1))


def _seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextmanager
def _random_state() -> Iterator[None]:
    """Put back the state of every global random generator that a model may draw from."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
