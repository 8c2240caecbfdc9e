"""Resolve a model that is given as a registered name, an address, a class, a function or a module.

A user's own class or function has one of two forms, which the first arguments distinguish:

* a *mixer* takes ``d_model`` first, ``MyMixer(d_model, **parameters)``, and maps ``(batch, length, d_model)`` to the
  same shape; it is put into the standard stack of blocks (:class:`MixerStack`);
* a *whole model* takes ``input`` and ``target`` first, ``MyModel(input, target, **parameters)``, and maps task inputs
  to ``(batch, target.length, target.width)``.

Both forms also receive ``causal`` if they have an argument of that name.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin

import torch
from torch import Tensor, nn

from lrtasks.config import converted, parameter, type_name, type_phrase
from lrtasks.errors import UsageError, first_line, is_shortage, suggestion
from lrtasks.models import registry
from lrtasks.models.base import ModelConfig, ModelLike, streaming, takes_mask, uninitialised
from lrtasks.models.ops.layers import hide
from lrtasks.registry import address_digest, has_own_name, load_object, source_digest
from lrtasks.spec import Spec

FORMS = "MIXER(d_model, ...) or MODEL(input, target, ...)"


@dataclass(frozen=True)
class ModelFactory:
    """A model that is selected, but not built yet.

    Attributes:
        name: label in tables and messages.
        parameters: hyper-parameters, JSON-ready: for a registered model, the ones that identify it
            (:meth:`lrtasks.config.Config.identifying`); for a user's own model, the ones that were given.
        address: value of ``--model``; ``None`` for a Python object.
        version: version of a registered model's numbers; ``None`` for a user's own model.
        source: digest of the source file of a user's own model; ``None`` for a registered model.
        builder: function that builds the module for ``(input, target, causal)``.
    """

    name: str
    parameters: dict[str, Any]
    address: str | None
    version: int | None
    source: str | None
    builder: Callable[[Spec, Spec, bool], nn.Module] = dataclasses.field(compare=False, repr=False)

    @property
    def identity(self) -> dict[str, Any]:
        """The values that distinguish the model from others, JSON-ready."""
        return {"name": self.name, "parameters": self.parameters, "version": self.version, "source": self.source}

    def build(self, input: Spec, target: Spec, causal: bool) -> nn.Module:
        """Build the module; draw its parameters from torch's global generator.

        Raises:
            UsageError: if the module does not fit into the memory, or cannot have this size or direction.
        """
        try:
            return self.builder(input, target, causal)
        except (MemoryError, RuntimeError, TypeError) as error:
            if is_shortage(error):
                raise UsageError(f"not enough memory to build {self.name}; choose a smaller model") from error
            raise


@dataclass(frozen=True)
class MixerStack(ModelConfig):
    """The standard stack around a user's mixer: ``x + mixer(norm(x))`` in every layer, then a final norm."""

    name: ClassVar[str] = "mixer"

    layers: int = parameter(2, "number of layers", at_least=1, at_most=256)
    prenorm: bool = parameter(True, "normalise before the mixer instead of after the residual")


def is_registered(model: ModelLike) -> bool:
    """Return whether ``model`` is the name of a registered model, not an address or a Python object."""
    return isinstance(model, str) and ":" not in model


def _resolved(model: ModelLike) -> Any:
    """Return the class of a registered name, the object at an address, or ``model`` itself."""
    if not isinstance(model, str):
        return model
    return registry.get(model) if is_registered(model) else load_object(model, "model")


def model_label(model: ModelLike | type[ModelConfig], name: str = "") -> str:
    """Return the label of a model in tables, messages and settings; ``name`` is the label of a user's own model."""
    address = ""
    if isinstance(model, str):
        if is_registered(model):
            return model
        address, model = model, load_object(model, "model")
    if isinstance(model, type) and issubclass(model, ModelConfig):
        return name or vars(model).get("name", model.__name__)  # an inherited name belongs to the registered model
    if address and not has_own_name(model):
        name = name or address.rpartition(":")[2]
    return name or getattr(model, "__qualname__", type(model).__name__)


def model_parameter_names(model: ModelLike) -> list[str] | None:
    """Return the names of a model's hyper-parameters (:func:`describe_parameters`); ``None`` if unknown."""
    described = describe_parameters(model)
    return None if described is None else [entry["name"] for entry in described]


def describe_parameters(model: ModelLike) -> list[dict[str, Any]] | None:
    """Describe a model's hyper-parameters (:meth:`lrtasks.config.Config.describe_parameters`); ``None`` if unknown.

    They are unknown for a module, and for a signature that begins with ``*args``. The hyper-parameters of a user's
    mixer are its own arguments and the parameters of the stack, except those that have the name of an own argument.
    ``**kwargs`` is an entry of that name.
    """
    target = _resolved(model)
    if isinstance(target, type) and issubclass(target, ModelConfig):
        return target.describe_parameters()
    first = _first(target)
    if first not in (["d_model"], ["input", "target"]) or first[0] not in inspect.signature(target).parameters:
        return None
    own = own_arguments(target)
    entries = MixerStack.describe_parameters() if first == ["d_model"] else []
    entries = [entry for entry in entries if entry["name"] not in own]
    for argument in (each for each in own.values() if each.kind is not each.VAR_POSITIONAL):
        if argument.kind is argument.VAR_KEYWORD:
            entries += [{"name": f"**{argument.name}", "type": "", "default": "", "doc": "others, as model.NAME=VALUE"}]
            continue
        kind, default = argument.annotation, argument.default
        kind = "" if kind is argument.empty else kind if isinstance(kind, str) else type_name(kind)
        # JSON has no numbers that are not finite
        ready = math.isfinite(default) if isinstance(default, float) else isinstance(default, int | str | None)
        if not ready:
            default = "" if default is argument.empty else getattr(default, "__name__", str(default))
        entries += [{"name": argument.name, "type": kind, "default": default, "doc": "your own argument"}]
    return entries


def own_arguments(target: Any) -> dict[str, inspect.Parameter]:
    """Return the arguments of a user's class or function that the user sets, by name."""
    arguments = inspect.signature(target).parameters
    return {name: each for name, each in arguments.items() if name not in (*_first(target), "causal")}


def model_presets(model: ModelLike) -> type[ModelConfig] | None:
    """Return the class that defines the presets of ``model``; ``None`` for a user's own model."""
    return registry.get(model) if is_registered(model) else None  # type: ignore[arg-type]


def model_factory(model: ModelLike, parameters: Mapping[str, Any] | None = None, *, name: str = "") -> ModelFactory:
    """Resolve ``model`` to a factory, without building it.

    Args:
        model: a registered name, ``FILE.py:NAME``, ``package.module:NAME``, a class, a function or a module.
        parameters: its hyper-parameters by name.
        name: label of a user's own model; by default the name of its class or function. A module without a label never
            counts as the same model as in an earlier run.

    Raises:
        UsageError: if the model cannot be found or imported, has neither form, or does not take these parameters.
    """
    parameters = dict(parameters or {})
    if isinstance(model, nn.Module):
        return _of_module(model, parameters, name)
    address, target = model if isinstance(model, str) else None, _resolved(model)
    if isinstance(target, type) and issubclass(target, ModelConfig):
        config = target.make(**parameters)
        identity = model_label(model, name), config.identifying(), address, target.version, config.own_source()
        return ModelFactory(*identity, lambda input, target, causal: config.build(input, target, causal=causal))
    if isinstance(target, nn.Module) or not callable(target):
        kinds = "the address of a class or a function" if address else "a name, a class, a function or a module"
        found = "an object of type " if address else ""
        raise UsageError(f"a model must be {kinds}, found {found}{type(target).__name__}")
    label = model_label(model, name)
    build = _own_mixer(target, label, parameters) if _first(target) == ["d_model"] else _own_model(target, parameters)
    return ModelFactory(label, _json_ready(parameters), address, None, _source(target, address, name), build)


def _source(target: Any, address: str | None, name: str) -> str:
    """Return the digest of the source file of a user's model, or a random string if no later run can be the same.

    The label must distinguish the model from the others in its file. All inner functions that one function returns
    have the same name: they need an address or a ``name``.
    """
    if address is not None and not has_own_name(target):
        return address_digest(address)
    source = source_digest(target) if name or has_own_name(target) else None
    return source or f"object {secrets.token_hex(8)}"


def _of_module(module: nn.Module, parameters: dict[str, Any], name: str) -> ModelFactory:
    if parameters:
        raise UsageError(f"a module that is built already takes no hyper-parameters, found {sorted(parameters)}")
    unmade = uninitialised(module)
    if unmade:
        raise UsageError(f"{', '.join(unmade)} of the model has no shape yet; call the model once on an input first")
    source = f"module named {name}" if name else f"module {secrets.token_hex(8)}"
    return ModelFactory(name or type(module).__name__, {}, None, None, source, lambda *_: module.train())


def _own_model(target: Any, parameters: dict[str, Any]) -> Callable[[Spec, Spec, bool], nn.Module]:
    """Return a builder of a user's whole model."""
    if _first(target) != ["input", "target"]:
        raise UsageError(f"a model of your own must have the form {FORMS}; found arguments: {_arguments(target)}")

    return lambda input, output, causal: _called(target, parameters, causal, input, output)


def _own_mixer(target: Any, label: str, parameters: dict[str, Any]) -> Callable[[Spec, Spec, bool], nn.Module]:
    """Return a builder of the standard stack of a user's mixer.

    A parameter of the stack goes to the stack, unless the mixer has an argument of this name.
    """
    of_mixer, names = dict(parameters), {*MixerStack.parameter_names()} - {*own_arguments(target)}
    of_stack = {key: of_mixer.pop(key) for key in parameters if key in names}
    config = stack_of(target, of_mixer, MixerStack, label)(**of_stack)
    return lambda input, output, causal: config.build(input, output, causal=causal)


def stack_of(
    target: Any, parameters: Mapping[str, Any], base: type[ModelConfig] = ModelConfig, label: str = "mixer"
) -> type[ModelConfig]:
    """Return a model class called ``label`` whose mixer is the user's ``target`` with these parameters."""

    class Own(base):  # type: ignore[valid-type, misc]
        name = label

        def mixer(self, length: int, causal: bool) -> nn.Module:
            return own_mixer(target, self.d_model, causal, parameters)

    return Own


def own_mixer(target: Any, d_model: int, causal: bool, parameters: Mapping[str, Any]) -> nn.Module:
    """Build a user's mixer, on ``(batch, length, d_model)`` and a mask.

    Raises:
        UsageError: if ``target`` does not have the form of a mixer, or does not take these parameters.
    """
    if _first(target) != ["d_model"]:
        raise UsageError(f"a mixer of your own must have the form MIXER(d_model, ...), found {target!r}")
    return _OwnMixer(_called(target, parameters, causal, d_model))


def _require_like_input(mixer: nn.Module, x: Tensor, output: Any) -> None:
    """Raise :class:`UsageError` if a mixer's output has a wrong shape or type; torch would report a failed addition."""

    def described(value: Any) -> str:
        if not isinstance(value, Tensor):
            return f"a {type(value).__name__}"
        return f"{str(value.dtype).removeprefix('torch.')} of shape {tuple(value.shape)}"

    fits = isinstance(output, Tensor) and output.shape == x.shape
    if not fits or (output.dtype != x.dtype and not torch.is_autocast_enabled(x.device.type)):
        wanted = f"one tensor of the same shape and type, here {described(x)}"
        found = f"{type(mixer).__name__}.forward returned {described(output)}"
        raise UsageError(f"{found}; a mixer maps (batch, length, d_model) to {wanted}")


class _OwnMixer(nn.Module):
    """A wrapper for a user's mixer: it receives the padding mask as ``mask=``, or zeros at padding if it takes none."""

    def __init__(self, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer, self.masked = mixer, takes_mask(mixer)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        y: Tensor = self.mixer(x, mask=mask) if self.masked else self.mixer(hide(x, mask))
        _require_like_input(self.mixer, x, y)
        return y

    def initial_state(self, batch: int) -> Any:
        return streaming(self.mixer).initial_state(batch)

    def step(self, x: Tensor, state: Any) -> Any:
        return streaming(self.mixer).step(x, state)


def _called(target: Any, parameters: Mapping[str, Any], causal: bool, *first: Any) -> nn.Module:
    """Call a user's class or function; report an argument that does not fit the signature in one line."""
    signature = inspect.signature(target)
    takes = signature.parameters.values()
    if "causal" in signature.parameters:
        parameters = {"causal": causal, **parameters}
    only = {entry.name for entry in takes if entry.kind is entry.KEYWORD_ONLY}
    named = {name: value for name, value in zip(_first(target), first, strict=True) if name in only}
    first, parameters = first[: len(first) - len(named)], {**named, **parameters}
    label = getattr(target, "__qualname__", type(target).__name__)
    try:
        signature.bind(*first, **parameters)
    except TypeError as error:
        given = {*_first(target), *parameters}
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        needed = [entry.name for entry in takes if entry.default is entry.empty and entry.kind not in variadic]
        lacking = " ".join(f"--set model.{name}=VALUE" for name in needed if name not in given)
        strange = next((name for name in parameters if name not in signature.parameters), "")
        known = [f"{label}.{entry.name}" for entry in takes] if "." in strange else signature.parameters
        hint = f"; write {lacking}" if lacking else suggestion(strange, known)
        given_names = f" with {', '.join(sorted(parameters))}" if parameters else ""
        raise UsageError(f"{label}{signature} cannot be called{given_names}: {error}{hint}") from None
    for name in (name for name in parameters if not name.isidentifier()):  # ``**kwargs`` would take any name
        raise UsageError(f"{label} cannot have an argument {name!r}; its arguments are settings called model.NAME")
    annotated = _annotated(target).parameters
    parameters = {
        name: _fitting(f"{label}: {name}", value, annotated[name]) if name in annotated else value
        for name, value in parameters.items()
    }
    try:
        built = target(*first, **parameters)
    except TypeError as error:
        if next(iter(takes)).kind is not inspect.Parameter.VAR_POSITIONAL:
            raise
        # a signature that names no arguments does not say what they may be
        raise UsageError(f"{label}{signature} does not have the form {FORMS}: {first_line(error)}") from error
    if not isinstance(built, nn.Module):
        raise UsageError(f"{label} must give a torch.nn.Module, found {type(built).__name__}")
    unmade = uninitialised(built)
    if unmade:
        raise UsageError(f"{', '.join(unmade)} of {label} has no shape yet; call lazy modules once in the constructor")
    return built


def _annotated(target: Any) -> inspect.Signature:
    """Return the signature with evaluated annotations, or as it is written if they cannot be evaluated."""
    try:
        return inspect.signature(target, eval_str=True)
    except Exception:  # an annotation is the user's code
        return inspect.signature(target)


def _fitting(what: str, value: Any, entry: inspect.Parameter) -> Any:
    """Return ``value`` as the choice of the argument's ``Literal``, or unchanged.

    Raises:
        UsageError: if ``value`` is not one of the choices; or if the annotation, or without one the default, asks for a
            flag, a list, a number or a whole number, and ``value`` is something else (``None`` is accepted).
    """
    hint, default = entry.annotation, entry.default
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    if any(get_origin(option) is Literal for option in options) and value != default:
        try:
            return converted(hint, value)
        except ValueError:
            raise UsageError(f"{what} must be {type_phrase(hint)}, found {value!r}") from None
        except TypeError:  # a type that parameters of this package cannot have
            return value
    kinds = {get_origin(option) or option for option in options if option is not NoneType}
    lists = kinds <= {list, tuple, Sequence}
    no_list = not isinstance(value, list | tuple | None) if lists else isinstance(value, str) and not {str, Any} & kinds
    if isinstance(default, list | tuple) and no_list:
        raise UsageError(f"{what} must be a list such as {json.dumps(default, default=str)}, found {value!r}")
    if int in options and float not in options and isinstance(value, float):
        raise UsageError(f"{what} must be a whole number, found {value!r}")
    if any(kind in str(hint) for kind in ("str", "Literal", "Any")):
        return value
    if isinstance(default, bool):
        if not isinstance(value, bool) and type(value) not in options:
            raise UsageError(f"{what} must be true or false, found {value!r}")
        return value
    no_number = isinstance(value, str | bool) if kinds <= {int, float} else isinstance(value, str)
    if no_number and (isinstance(default, int | float) or kinds <= {int, float}):
        raise UsageError(f"{what} must be a number, or null for none, found {value!r}")
    return value


def _first(target: Any) -> list[str]:
    """Return the names of the leading arguments, which distinguish the two forms."""
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):
        return []
    names = list(parameters)
    if _has_no_arguments(target):
        return []
    if names and parameters[names[0]].kind is inspect.Parameter.VAR_POSITIONAL:
        return ["input", "target"]
    return names[:1] if names[:1] == ["d_model"] else names[:2]


def _arguments(target: Any) -> str:
    """Return the arguments of a class or function as a message shows them."""
    if _has_no_arguments(target):
        return "none, as it has no __init__"
    try:
        return str(inspect.signature(target))
    except (TypeError, ValueError):
        return f"unknown, as {target!r} has no signature"


def _has_no_arguments(target: Any) -> bool:
    """Return whether ``target`` is a module class that does not define ``__init__``."""
    return getattr(target, "__init__", None) is nn.Module.__init__


def _json_ready(parameters: Mapping[str, Any]) -> dict[str, Any]:
    try:
        text = json.dumps(parameters, allow_nan=False, default=lambda number: number.item())
    except (TypeError, ValueError, AttributeError) as error:
        kinds = "numbers, strings, lists or mappings, so that the record can hold them"
        raise UsageError(f"hyper-parameters must be {kinds}: {error}") from None
    return json.loads(text)
