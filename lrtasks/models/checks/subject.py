"""The model that is checked: a copy of the user's module, or one that is built here."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import nn

from lrtasks.errors import UsageError
from lrtasks.models import build
from lrtasks.models.base import ModelLike
from lrtasks.models.factories import bind_factory
from lrtasks.spec import Spec


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
    return bind_factory(model, input, target, causal=causal, hyper=hyper)


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
