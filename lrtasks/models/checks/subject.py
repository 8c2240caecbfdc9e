"""The model that is checked: a copy of the user's module, or one that is built here."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from lrtasks.errors import UsageError
from lrtasks.models.base import ModelLike, build
from lrtasks.specs import Spec


def factory_of(
    model: ModelLike, input: Spec, target: Spec, causal: bool, hyper: dict[str, Any]
) -> Callable[[], nn.Module] | None:
    """What builds the model anew at each call; ``None`` for a module that is built already.

    Raises:
        UsageError: if ``model`` is none, or cannot be called with these arguments.
    """
    if isinstance(model, str):
        return lambda: build(model, input, target, causal=causal, **hyper)
    if isinstance(model, nn.Module):
        if hyper:
            raise UsageError(f"check_model: a module that is built already takes no hyper-parameters, found {hyper}")
        return None
    if not callable(model):
        raise UsageError(f"a model must be a name, a module or a factory, found {type(model).__name__}")
    takes = inspect.signature(model).parameters.values()
    if any(parameter.name == "causal" or parameter.kind is parameter.VAR_KEYWORD for parameter in takes):
        hyper = {"causal": causal, **hyper}
    try:
        inspect.signature(model).bind(input, target, **hyper)
    except TypeError as error:
        raise UsageError(f"the factory is called as factory(input, target, **{hyper}): {error}") from None

    def call() -> nn.Module:
        built = model(input, target, **hyper)
        if not isinstance(built, nn.Module):
            raise UsageError(f"the factory must return a torch.nn.Module, found {type(built).__name__}")
        return built

    return call


def own_copy(model: Any) -> nn.Module:
    """A copy of the module ``model``, so that nothing of it changes.

    Raises:
        UsageError: if it cannot be copied.
    """
    try:
        copied: nn.Module = copy.deepcopy(model)
    except Exception as error:
        raise UsageError(
            f"model {type(model).__name__} cannot be copied: {error} (a module that has run forward may hold such"
            " tensors; pass a new one, or its factory)"
        ) from error
    return copied
