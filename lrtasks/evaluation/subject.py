"""The model under test, whichever way the user names it."""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lrtasks import models
from lrtasks.errors import UsageError
from lrtasks.generators.base import Task

ModelLike = str | nn.Module | Callable[..., nn.Module]


@dataclass(frozen=True)
class Subject:
    """A model that is built, with what identifies it.

    Attributes:
        name: as it appears in tables.
        hyper: hyper-parameters, JSON-ready.
        identity: what distinguishes this model's runs from others: hyper-parameters, or a digest of a user's module.
        module: the model, on the CPU, in training mode.
    """

    name: str
    hyper: dict[str, Any]
    identity: dict[str, Any]
    module: nn.Module


def registered_name(model: ModelLike) -> str | None:
    """``model`` if it names a registered model; ``None`` for a module, a factory or ``"package.module:factory"``."""
    return model if isinstance(model, str) and ":" not in model else None


def build_subject(model: ModelLike, task: Task, hyper: Mapping[str, Any], seed: int) -> Subject:
    """Build ``model`` for ``task``; ``seed`` seeds the initialisation.

    A factory is called as ``factory(input, target, causal=..., **hyper)``; a module is taken as it is.

    Raises:
        UsageError: if it cannot be imported, built, or given these hyper-parameters.
    """
    torch.manual_seed(seed)
    if isinstance(model, nn.Module):
        if hyper:
            raise UsageError(f"a module that is built already takes no hyper-parameters, found {sorted(hyper)}")
        return Subject(type(model).__name__, {}, {"digest": _digest(model)}, model.train())
    name = registered_name(model)
    if name is not None:
        config = models.registry.get(name).make(**hyper)
        backbone = config.build(task.input, task.target, causal=task.causal)
        return Subject(name, config.parameters(), {"hyper": config.parameters()}, backbone)
    factory = _import_factory(model) if isinstance(model, str) else model
    if not callable(factory):
        raise UsageError(f"a model must be a name, a module or a factory, found {type(model).__name__}")
    arguments = {"causal": task.causal, **hyper}
    try:
        inspect.signature(factory).bind(task.input, task.target, **arguments)
    except TypeError as error:
        raise UsageError(
            f"the factory is called as factory(input, target, {', '.join(f'{key}=...' for key in arguments)}): {error}"
        ) from None
    module = factory(task.input, task.target, **arguments)
    if not isinstance(module, nn.Module):
        raise UsageError(f"the factory must return a torch.nn.Module, found {type(module).__name__}")
    label = model if isinstance(model, str) else getattr(factory, "__qualname__", type(factory).__name__)
    return Subject(label, dict(hyper), {"hyper": dict(hyper), "digest": _digest(module)}, module.train())


def _import_factory(path: str) -> Callable[..., nn.Module]:
    module_name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(f"model {path!r}: cannot import {module_name!r}: {error}") from None
    if not hasattr(module, attribute):
        raise UsageError(f"model {path!r}: {module_name!r} has no {attribute!r}")
    factory: Callable[..., nn.Module] = getattr(module, attribute)
    return factory


def _digest(module: nn.Module) -> str:
    """Digest of a module's structure and starting values."""
    digest = hashlib.blake2b(repr(module).encode(), digest_size=8)
    for name, value in module.state_dict().items():
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
