"""Models that a user's own class or function builds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from lrtasks.errors import UsageError
from lrtasks.spec import Spec


def bind_factory(
    factory: Any, input: Spec, target: Spec, *, causal: bool, hyper: Mapping[str, Any]
) -> Callable[[], nn.Module]:
    """What builds the model anew at each call, as ``factory(input, target, **hyper)``.

    ``causal`` goes along where the factory takes an argument of that name.

    Raises:
        UsageError: if ``factory`` is none, or takes other arguments; when called, if it returns no module.
    """
    if not callable(factory):
        raise UsageError(f"a model must be a name, a module or a factory, found {type(factory).__name__}")
    takes = inspect.signature(factory).parameters.values()
    if any(parameter.name == "causal" or parameter.kind is parameter.VAR_KEYWORD for parameter in takes):
        hyper = {"causal": causal, **hyper}
    try:
        inspect.signature(factory).bind(input, target, **hyper)
    except TypeError as error:
        given = "".join(f", {name}=..." for name in hyper)
        raise UsageError(f"the factory is called as factory(input, target{given}): {error}") from None

    def build() -> nn.Module:
        built = factory(input, target, **hyper)
        if not isinstance(built, nn.Module):
            raise UsageError(f"the factory must return a torch.nn.Module, found {type(built).__name__}")
        return built

    return build
