"""The model under test, whichever way the user names it."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lrtasks import models
from lrtasks.errors import UsageError, suggestion
from lrtasks.generators.base import Task
from lrtasks.models.base import ModelLike, uninitialised
from lrtasks.models.factories import bind_factory


@dataclass(frozen=True)
class Subject:
    """A model that is built, with what identifies it.

    Attributes:
        name: as it appears in tables.
        hyper: hyper-parameters, JSON-ready.
        structure: digest of a user's module and its submodules without their weights, as the name and the
            hyper-parameters may not say all; ``None`` for a registered model.
        start: digest of a user's module with its starting values; ``None`` for a registered model.
        module: the model, on the CPU, in training mode.
    """

    name: str
    hyper: dict[str, Any]
    structure: str | None
    start: str | None
    module: nn.Module


def registered_name(model: ModelLike) -> str | None:
    """``model`` if it names a registered model; ``None`` for a module, a factory or ``"package.module:factory"``."""
    return model if isinstance(model, str) and ":" not in model else None


def build_subject(model: ModelLike, task: Task, hyper: Mapping[str, Any], seed: int) -> Subject:
    """Build ``model`` for ``task``; ``seed`` seeds the initialisation.

    A factory is called as :func:`lrtasks.models.factories.bind_factory` says; a module is taken as it is.

    Raises:
        UsageError: if it cannot be imported, built, or given these hyper-parameters.
    """
    torch.manual_seed(seed)
    if isinstance(model, nn.Module):
        if hyper:
            raise UsageError(f"a module that is built already takes no hyper-parameters, found {sorted(hyper)}")
        return _user_subject(type(model).__name__, {}, model)
    name = registered_name(model)
    if name is not None:
        config = models.registry.get(name).make(**hyper)
        backbone = config.build(task.input, task.target, causal=task.causal)
        return Subject(name, config.parameters(), None, None, backbone)
    factory = _import_factory(model) if isinstance(model, str) else model
    module = bind_factory(factory, task.input, task.target, causal=task.causal, hyper=hyper)()
    label = model if isinstance(model, str) else getattr(factory, "__qualname__", type(factory).__name__)
    return _user_subject(label, dict(hyper), module)


def _user_subject(name: str, hyper: dict[str, Any], module: nn.Module) -> Subject:
    try:
        hyper = json.loads(json.dumps(hyper, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"hyper-parameters must be numbers, texts, lists or mappings for the record: {error}"
        ) from None
    unmade = uninitialised(module)
    if unmade:
        raise UsageError(f"{', '.join(unmade)} of model {name}: no shape yet; call the model once on an input before")
    structure = hashlib.blake2b(repr(module).encode(), digest_size=8)
    structure.update(json.dumps(list(_plain_attributes(module))).encode())
    start = hashlib.blake2b(digest_size=8)
    for key, value in module.state_dict().items():
        structure.update(f"{key} {getattr(value, 'shape', '')}".encode())
        # flat: a single value without axes cannot be looked at as bytes
        values = (
            value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
            if torch.is_tensor(value)
            else b""
        )
        start.update(key.encode() + values)
    return Subject(name, hyper, structure.hexdigest(), start.hexdigest(), module.train())


def _plain_attributes(module: nn.Module) -> Iterator[tuple[str, str]]:
    """What a module and those below it keep beside weights and modules, such as a window: names and values as text.

    Only what its value tells, and what is not private; torch's own modules say theirs in ``repr``.
    """
    parts = [(name, part) for name, part in module.named_modules() if not type(part).__module__.startswith("torch.")]
    for name, part in parts:
        for key, value in sorted(vars(part).items()):
            if not key.startswith("_") and key != "training" and _is_plain(value):
                yield f"{name}.{key}", repr(value)


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, [*value, *value.values()]))
    return value is None or isinstance(value, (bool, int, float, str))


def _import_factory(address: str) -> Callable[..., nn.Module]:
    module_name, _, attribute = address.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, ValueError, TypeError) as error:
        # ValueError and TypeError come from texts that are no module's name, such as '' or '.x'
        raise UsageError(f"model {address!r}: cannot import {module_name!r}: {error}") from None
    if not hasattr(module, attribute):
        raise UsageError(f"model {address!r}: {module_name!r} has no {attribute!r}{suggestion(attribute, dir(module))}")
    factory: Callable[..., nn.Module] = getattr(module, attribute)
    return factory
