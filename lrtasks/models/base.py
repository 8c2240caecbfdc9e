"""Base classes of models: a model is a frozen dataclass of hyper-parameters that builds encoder, blocks and decoder.

To add a model, write one file in this folder. The model subclasses :class:`ModelConfig`, registers its name, sets
``presets`` and defines :meth:`ModelConfig.mixer` (or :meth:`ModelConfig.blocks`, if it is more than a mixer in a
residual block).
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import numbers
import operator
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from lrtasks.config import Config, parameter
from lrtasks.errors import UsageError
from lrtasks.models.ops.layers import NORMS, NoConv, canon_layer, hide, require_causal
from lrtasks.registry import own_source
from lrtasks.spec import Spec

ModelLike = str | nn.Module | Callable[..., nn.Module]
"""All ways to name a model: a registered name (or an address, where accepted), a module, or a class or function."""

PARAMETER_OPTIONS = ("lr", "lr_factor", "weight_decay")
"""Options that a module may declare for its own parameters (``parameter_options``): a learning rate, or a factor on
the learning rate of the budget, and a weight decay."""

# Settings that the presets of several models share.
CAREFUL = {"budget.lr": 0.001, "budget.clip": 1.0, "budget.warmup_steps": 100}
SMALL = {"d_model": 64, "layers": 2, **CAREFUL}
"""Settings that the presets ``small``, ``recall-16k`` and ``recall-64k`` share. With the widths in these presets, a
``small`` model has about as many parameters as dlr. The other two have states of about 16 and 64 KiB (within 10 %), to
compare recall at equal state size."""

TRACKING = {"d_model": 128, "layers": 1, **CAREFUL}
"""Settings of the ``state-tracking`` presets: one layer. The presets add heads of width 32 and
negative eigenvalues, for the models that have them."""

PAPER: dict[str, Any] = {"d_model": 128, "layers": 2, "budget.steps": 20_000, "budget.batch_size": 256}
PAPER |= {"budget.lr": 0.001, "budget.weight_decay": 0.1, "budget.schedule": "cosine", "budget.warmup_steps": 2_000}
"""Settings of the parity task in the public code of Grazzi et al., arXiv:2411.12537. The papers of most of
these models have no such task."""

PAPER_MQAR = {**PAPER, "mlp": False, "budget.steps": 22_500, "budget.lr": 10**-2.5, "budget.warmup_steps": 0}
PAPER_MQAR |= {"budget.train_samples": 180_000}
"""Settings of recall in zoology's code: 32 epochs. Zoology takes the best of the learning rates 10^-3, 10^-2.5, 10^-2
and 10^-1.5; this preset has one of them, 10^-2.5."""

ATOMIC: dict[str, Any] = {"d_model": 128, "layers": 1, "norm": "layer", "budget.lr": 0.001}
"""The budget of the DLR paper's atomic tasks, at that paper's width."""

RECALL: dict[str, Any] = {"d_model": 64, "layers": 2, "budget.lr": 0.0005}
"""Width, layers and learning rate of the Hyena paper's associative recall; the task's preset has the rest."""


def computed(module: Any, *given: Tensor, state: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
    """Return outputs and new state of a module that has both forms.

    Inputs ``(batch, length, d)`` take the parallel form, which uses ``mask`` and returns ``state`` unchanged. Inputs
    ``(batch, d)``, one position, take the streaming form, which ignores ``mask``.
    """
    return (module(*given, mask), state) if given[0].dim() == 3 else module.step(*given, state)


class TwoForms(nn.Module):
    """A map with a parallel and a streaming form. Subclasses write :meth:`run`, which computes both."""

    def run(self, x: Tensor, state: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
        """Return outputs and new state as :func:`computed` does; the state is None in the parallel form."""
        raise NotImplementedError

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map ``(batch, length, d_model)``; ``mask`` is ``(batch, length)`` bool, False at padding, or None."""
        return self.run(x, None, mask)[0]

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Map one position ``(batch, d_model)``; the result equals :meth:`forward` in evaluation mode."""
        return self.run(x, state, None)


class Block(nn.Module):
    """A map ``(batch, length, d_model) -> (batch, length, d_model)``, including its residual and normalisation.

    ``mask`` is ``(batch, length)`` bool, False at padding, or ``None``. A block, or any module inside it, may define
    these optional methods, which are found by name:

    * ``parameter_options() -> {parameter name: {"lr" or "lr_factor": ..., "weight_decay": ...}}`` for the module's
      own parameters (each inner module declares its parameters itself);
    * ``extra_losses() -> {name: scalar}``, valid after a forward pass, added to the training loss;
    * ``diagnostics() -> {name: value}``, valid after a forward pass: numbers or lists for the run record;
    * ``initial_state(batch) -> state`` and ``step(x, state) -> (y, state)``, streaming form on ``(batch, d_model)``;
    * ``cache_bytes(steps) -> bytes``: growth of the state of one sequence after that many steps;
    * ``portraits() -> [ops.layers.Portrait, ...]``, valid after a forward pass: figures that ``lrtasks analyze`` draws.
    """

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        raise NotImplementedError


class NormedBlock(TwoForms, Block):
    """A block with dropout and a norm. The norm is before the inner part (``prenorm``) or after the residual sum."""

    norm: nn.Module
    prenorm: bool
    dropout: nn.Dropout

    def set_norm(self, d_model: int, norm: str, prenorm: bool, dropout: float) -> None:
        """Build the norm (one of :data:`lrtasks.models.ops.layers.NORMS`) and the dropout."""
        self.norm, self.prenorm, self.dropout = NORMS[norm](d_model), prenorm, nn.Dropout(dropout)

    def normed(self, x: Tensor) -> Tensor:
        """Return the input of the inner part of the block: normalised with ``prenorm``, otherwise ``x``."""
        return self.norm(x) if self.prenorm else x

    def after(self, y: Tensor) -> Tensor:
        """Return the output of the block from ``y``, the residual sum: normalised unless ``prenorm``."""
        return y if self.prenorm else self.norm(y)

    def blend(self, x: Tensor, update: Tensor, candidate: Tensor) -> Tensor:
        """Return the gated residual ``update * candidate + (1 - update) * x``, normalised unless ``prenorm``."""
        return self.after(x + update * (candidate - x))


class ResidualBlock(NormedBlock):
    """A mixer with its residual: ``norm(x + mixer(x))``, or ``x + mixer(norm(x))`` with ``prenorm``.

    The mixer has the signature of a block; ``dropout`` is the rate on its output. With ``canon`` there is a canon layer
    between the norm and the mixer.
    """

    def __init__(
        self, mixer: nn.Module, d_model: int, norm: str, prenorm: bool, dropout: float, *, canon: bool = False
    ) -> None:
        super().__init__()
        self.mixer = mixer
        self.set_norm(d_model, norm, prenorm, dropout)
        self.canon = canon_layer(d_model) if canon else NoConv()

    def initial_state(self, batch: int) -> tuple[Any, Tensor | None]:
        """Return the state of the mixer and the last inputs of the canon layer.

        Raises:
            UsageError: if the mixer has no streaming form.
        """
        return streaming(self.mixer).initial_state(batch), self.canon.initial_state(batch)

    def run(
        self, x: Tensor, state: Any, mask: Tensor | None, mix: Callable[..., tuple[Tensor, Any]] = computed
    ) -> tuple[Tensor, Any]:
        """Compute the block; ``mix`` computes the mixer, with the arguments and results of ``computed``."""
        memory, last = state or (None, None)
        read, last = computed(self.canon, self.normed(x), state=last, mask=mask)
        mixed, memory = mix(self.mixer, read, state=memory, mask=mask)
        return self.after(x + self.dropout(mixed)), (memory, last)


class Stack(TwoForms):
    """A module that runs blocks in sequence and, in training, can recompute each block in the backward pass."""

    blocks: nn.ModuleList
    recomputes = False
    """Whether blocks are recomputed in the backward pass; set by :func:`recompute_blocks`."""

    def through(self, block: nn.Module, *given: Any, by: Callable[..., Any] = operator.call) -> Any:
        """Return ``by(block, *given)``; recompute it in the backward pass if set (an inner stack recomputes itself)."""
        if self.recomputes and self.training and not isinstance(block, Stack):
            return recomputed(block, by, *given)
        return by(block, *given)

    def initial_state(self, batch: int) -> Any:
        """Return one state per block; raise :class:`UsageError` if a block has no streaming form."""
        return [streaming(block).initial_state(batch) for block in self.blocks]

    def run(self, x: Tensor, state: Any, mask: Tensor | None) -> tuple[Tensor, Any]:
        following = []
        for block, before in zip(self.blocks, state or [None] * len(self.blocks), strict=True):
            x, after = self.through(block, x, by=functools.partial(computed, state=before, mask=mask))
            following.append(after)
        return x, following


class SignalEncoder(nn.Linear):
    """A linear map of ``(..., width)`` that is faster than torch's for small widths.

    The gradient of the transposed copy is one product with input channels as rows, ``(width, d_model)``. With input
    channels as columns, this product is several times slower (``benchmarks/evaluation_overhead.py --forms``).
    """

    def forward(self, x: Tensor) -> Tensor:
        y = torch.addmm(self.bias, x.flatten(0, -2), self.weight.T.contiguous())
        return torch.unflatten(y, 0, x.shape[:-1])


class Backbone(Stack):
    """Encoder (linear for signals, embedding for tokens), blocks, decoder (linear).

    Maps ``x``, signals ``(batch, length, width)`` or tokens ``(batch, length)``, to
    ``(batch, target.length, target.width)``: real values or logits.
    For a pooled target the decoder computes all outputs from one vector per sequence.
    """

    def __init__(self, input: Spec, target: Spec, d_model: int, blocks: list[nn.Module], *, causal: bool) -> None:
        super().__init__()
        self.input, self.target, self.causal = input, target, causal
        encoder = SignalEncoder if input.kind == "real" else nn.Embedding
        self.encoder: nn.Module = encoder(input.width, d_model)
        self.blocks = nn.ModuleList(blocks)
        self.final_norm: nn.Module = nn.Identity()
        self.decoder = nn.Linear(d_model, target.width * (target.length if target.pooled else 1))

    def forward(self, x: Tensor, mask: Tensor | None = None, places: Tensor | None = None) -> Tensor:
        """Return all outputs, or, with ``places``, only the outputs at these indices, ``(1, places, target.width)``.

        ``places`` are indices into ``batch`` and ``target.length`` flattened together; the target must not be pooled.
        """
        # padding may hold any value, even NaN, which must not reach an output or make a gradient NaN
        hidden, _ = self.run(self.encoder(hide(x, mask) if self.input.kind == "real" else x), None, mask)
        read = self._read(self.final_norm(hidden), mask)
        y: Tensor = self.decoder(read if places is None else read.flatten(0, 1)[places].unsqueeze(0))
        return y.reshape(-1, self.target.length, self.target.width) if self.target.pooled else y

    def initial_state(self, batch: int) -> list[Any]:
        """Return one state per block for :meth:`step`; raise :class:`UsageError` if the model has no streaming form."""
        require_causal(self.causal)
        return super().initial_state(batch)

    def step(self, x: Tensor, state: list[Any]) -> tuple[Tensor, list[Any]]:
        """Compute one position: map ``(batch, width)`` signals or ``(batch,)`` tokens to ``(batch, target.width)``.

        In evaluation mode the successive outputs equal the outputs of :meth:`forward` at the same positions. For a
        pooled target each output equals the result of :meth:`forward` for the sequence so far. If the pooled target is
        longer than 1, its values are concatenated: ``(batch, target.length * target.width)``.
        """
        hidden, following = self.run(self.encoder(x), state, None)
        return self.decoder(self.final_norm(hidden)), following

    def _read(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Return the input of the decoder, ``(batch, target.length, d_model)``, or ``(batch, 1, d_model)`` if pooled.

        For a pooled target a causal model uses the last valid position, and other models the mean over valid positions.
        """
        if not self.target.pooled:
            return hidden[:, -self.target.length :]
        if self.causal:
            place = torch.arange(hidden.shape[1], device=hidden.device)
            last = place[-1:].expand(len(hidden)) if mask is None else (place * mask.to(place.device)).amax(1)
            return hidden[torch.arange(len(hidden), device=hidden.device), last].unsqueeze(1)
        if mask is None:
            return hidden.mean(1, keepdim=True)
        count = mask.sum(1).clamp_min(1).view(-1, 1, 1)
        return hide(hidden, mask).sum(1, keepdim=True) / count


def recompute_blocks(model: nn.Module) -> None:
    """Make a model keep only the input of each block in training, and recompute the rest in the backward pass.

    Raises:
        UsageError: if the model is not a stack of blocks.
    """
    if not isinstance(model, Backbone):
        stacks = "a stack of blocks: a registered model, or your own mixer"
        raise UsageError(f"checkpoint_blocks needs {stacks}; found {type(model).__name__}")
    for module in model.modules():
        if isinstance(module, Stack):
            module.recomputes = True


def recomputed(block: nn.Module, by: Callable[..., Any], *given: Any) -> Any:
    """Return ``by(block, *given)``, and recompute it in the backward pass.

    The second computation starts from the original buffers, numbers and strings of the block's modules, and leaves the
    current ones unchanged. So each batch changes the block's counts and averages only once. The second computation also
    draws the same random numbers from NumPy and Python's ``random`` (``checkpoint`` does this for torch).
    """
    before = _Snapshot(block)

    @contextmanager
    def as_before() -> Iterator[None]:
        after = _Snapshot(block)
        before.restore()
        try:
            yield
        finally:
            after.restore()

    # torch stops the second computation early by an exception, which TorchScript makes an error
    with set_checkpoint_early_stop(not any(isinstance(module, torch.jit.ScriptModule) for module in block.modules())):
        return checkpoint(by, block, *given, use_reentrant=False, context_fn=lambda: (nullcontext(), as_before()))


@dataclasses.dataclass
class _Snapshot:
    """What a forward pass of ``block`` may change: buffers, numbers, strings, random generators of Python and NumPy."""

    block: dataclasses.InitVar[nn.Module]

    def __post_init__(self, block: nn.Module) -> None:
        self.buffers = [
            (module._buffers, name, value, value.clone())
            for module in block.modules()
            for name, value in module.named_buffers(recurse=False)
        ]
        self.plain = [
            (
                vars(module),
                {name: value for name, value in vars(module).items() if isinstance(value, (int, float, str))},
            )
            for module in block.modules()
        ]
        self.python, self.numpy = random.getstate(), np.random.get_state()

    def restore(self) -> None:
        """Restore the state: a forward pass may replace a buffer, or change it in place."""
        for held, name, buffer, value in self.buffers:
            strides = buffer.stride() if buffer.layout == torch.strided else ()
            if 0 not in strides or buffer.numel() < 2:  # an expanded buffer cannot be written to: it has not changed
                buffer.data.copy_(value)
            held[name] = buffer
        for attributes, values in self.plain:
            attributes.update(values)
        random.setstate(self.python)
        np.random.set_state(self.numpy)


@dataclasses.dataclass(frozen=True)
class ModelConfig(Config):
    """Hyper-parameters that every model has; subclasses add their own.

    Class attributes:
        name: the model's name, set by registration.
        version: number that is raised whenever the same parameters and seed give other results.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1

    layers: int = parameter(1, "number of layers", at_least=1, at_most=256)
    d_model: int = parameter(64, "width of the residual stream", at_least=1, at_most=65536)
    norm: Literal["layer", "scalar", "scale", "rms", "batch", "none"] = parameter("layer", "normalisation of blocks")
    prenorm: bool = parameter(False, "normalise before the mixer instead of after the residual")
    dropout: float = parameter(0.0, "dropout rate after each mixer and feed-forward map", at_least=0, at_most=0.99)
    allow_batch_norm: bool = parameter(False, "allow norm='batch' if causal; this norm uses the future in training")

    def own_source(self) -> str | None:
        """Return a digest of the user's source files that define the model; ``None`` for a model of this package."""
        return own_source(type(self))

    def require_order(self, low: str, high: str) -> None:
        """Raise :class:`UsageError` unless the parameter ``low`` is at most ``high``."""
        smallest, largest = getattr(self, low), getattr(self, high)
        if smallest > largest:
            raise UsageError(f"{self.name}: {low} must be at most {high} ({largest:g}), found {smallest:g}")

    def require_causal(self, causal: bool, part: str = "") -> None:
        """Raise :class:`UsageError` if not ``causal``; for a model that must be causal, always or with ``part``."""
        if not causal:
            found = f"{self.name} with {part}" if part else self.name
            raise UsageError(f"{found} is a causal model: it cannot read in both directions (causal=False)")

    @property
    def around(self) -> tuple[int, str, bool, float]:
        """Arguments of a block besides its mixer: width, norm, whether the norm comes first, and dropout rate."""
        return self.d_model, self.norm, self.prenorm, self.dropout

    def layer_blocks(
        self, mixer: nn.Module, feedforward: Callable[[], nn.Module] | None, canon: str
    ) -> list[nn.Module]:
        """Return the blocks of a mixer and, unless None, a feed-forward map; ``canon``: sites of canon layers."""
        blocks: list[nn.Module] = [ResidualBlock(mixer, *self.around, canon="A" in canon)]
        if feedforward is not None:
            blocks.append(ResidualBlock(feedforward(), *self.around, canon="C" in canon))
        return blocks

    def mixer(self, length: int, causal: bool) -> nn.Module:
        """Build one mixer on ``(batch, length, d_model)``; its ``forward`` takes a mask, as in :class:`Block`."""
        raise NotImplementedError

    def blocks(self, input: Spec, causal: bool) -> list[nn.Module]:
        """Build the blocks of the model; override this method for anything but equal mixers in residual blocks."""
        return [ResidualBlock(self.mixer(input.length, causal), *self.around) for _ in range(self.layers)]

    def build(self, input: Spec, target: Spec, *, causal: bool) -> Backbone:
        """Build the whole model.

        Raises:
            UsageError: for batch norm in a causal model, because its statistics in training span all positions.
        """
        if causal and self.norm == "batch" and not self.allow_batch_norm:
            advice = "take another norm, causal=False, or allow_batch_norm=true"
            raise UsageError(f"{self.name}: batch norm is not causal in training; {advice}")
        model = Backbone(input, target, self.d_model, self.blocks(input, causal), causal=causal)
        if self.prenorm:
            model.final_norm = NORMS[self.norm](self.d_model)
        return model


def uncompiled(model: nn.Module) -> nn.Module:
    """Return the module that ``torch.compile`` wrapped, or ``model`` itself."""
    original: nn.Module = getattr(model, "_orig_mod", model)
    return original


def takes_mask(model: nn.Module) -> bool:
    """Return whether ``model`` accepts a padding mask."""
    try:
        return "mask" in inspect.signature(uncompiled(model).forward).parameters
    except ValueError:  # the copy of a scripted module has no signature
        return False


def uninitialised(model: nn.Module) -> list[str]:
    """Return the names of parameters and buffers without a shape; lazy modules get their shapes in the first call."""
    named = (*model.named_parameters(), *model.named_buffers())
    return [name for name, value in named if is_lazy(value)]


def offered(model: nn.Module, method: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the qualified name and the bound method of each module inside ``model`` that has ``method``."""
    for name, module in model.named_modules():
        if "_orig_mod" in module._modules:  # a compiled module has all methods of the original
            continue
        function = getattr(module, method, None)
        if callable(function):
            yield name, function


def _reported(model: nn.Module, method: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the name of each module with ``method``, a title for messages, and the result, a dictionary by name."""
    for name, function in offered(model, method):
        title, found = f"{method} of {name or 'the model'}", function()
        if not isinstance(found, Mapping):
            raise UsageError(f"{title} must return a dictionary by name, found {type(found).__name__}")
        for key in (key for key in found if not isinstance(key, str)):
            raise UsageError(f"{title} must return a dictionary by name, found the name {key!r}")
        yield name, title, dict(found)


def parameter_options(model: nn.Module) -> dict[int, dict[str, Any]]:
    """Return the declared options by the id of the parameter, since a parameter shared by two modules has two names.

    Raises:
        UsageError: if a module names a parameter that it does not have, or an unknown option, or gives a wrong value.
    """
    declared: dict[int, dict[str, Any]] = {}
    for module, title, options in _reported(model, "parameter_options"):
        own = dict(model.get_submodule(module).named_parameters(remove_duplicate=False))  # tied ones, too
        for name, option in options.items():
            if name not in own:
                raise UsageError(f"{title} names {name!r}, which it does not have; it has: {', '.join(own) or 'none'}")
            if not isinstance(option, dict) or not option.keys() <= set(PARAMETER_OPTIONS):
                raise UsageError(f"{title} may set {', '.join(PARAMETER_OPTIONS)} of {name}, found {option!r}")
            for entry, value in option.items():
                if not isinstance(value, numbers.Real) or not 0 <= float(value) < math.inf:
                    raise UsageError(f"{title}: {entry} of {name} must be a number of at least 0, found {value!r}")
            declared[id(own[name])] = {**declared.get(id(own[name]), {}), **option}
    return declared


def extra_losses(model: nn.Module, device: torch.device, *, finite: bool = False) -> Tensor | float:
    """Return the sum of the losses that modules add to the training loss, after a forward pass on ``device``.

    Raises:
        UsageError: if a loss is not a real scalar on ``device``, or, with ``finite``, not a finite number.
    """
    total: Tensor | float = 0.0
    for _, title, losses in _reported(model, "extra_losses"):
        for name, value in losses.items():
            if not isinstance(value, Tensor):
                raise UsageError(f"{title}: {name} must be a scalar tensor, found {value!r}")
            if value.dim() or not value.is_floating_point() or value.device != device:
                found = f"{value.dtype}, {tuple(value.shape)} on {value.device}"
                raise UsageError(f"{title}: {name} must be a real scalar tensor on {device}, found {found}")
            if finite and not value.isfinite():
                raise UsageError(f"{title}: {name} must be finite, found {value.item()}")
        total = total + sum(losses.values())
    return total


def diagnostics(model: nn.Module) -> dict[str, dict[str, Any]]:
    """Return the diagnostics that each module reports about the last forward pass, by module name.

    Raises:
        UsageError: if a value cannot be stored as JSON in the run record.
    """
    found = {}
    for module, title, report in _reported(model, "diagnostics"):
        for name, value in report.items():
            try:
                json.dumps(value)
            except (TypeError, ValueError) as error:
                kinds = "numbers, strings, or lists or dictionaries of them (.item(), .tolist())"
                raise UsageError(f"{title}: {name} must be {kinds}: {error}") from None
        found[module or "model"] = report
    return found


def output_misfit(y: object, x: Tensor, input: Spec, target: Spec) -> str | None:
    """Return why ``y`` is not a valid model output for the inputs ``x``; ``None`` if ``y`` is valid."""
    if not isinstance(y, Tensor):
        return f"must be one tensor, found {type(y).__name__}"
    rows, length, width = wanted = (len(x), target.length, target.width)
    if tuple(y.shape) != wanted:
        hints: dict[tuple[int, ...], str] = {
            (rows, width, length): "; exchange the last two axes: y.transpose(1, 2)",
        }
        if input.length > length:
            hints[rows, input.length, width] = f"; the target is read at the last positions: y[:, -{length}:]"
        if length == 1:
            hints[rows, width] = "; one value for the sequence is a length of 1: y[:, None]"
        shape = tuple(y.shape)
        hint = hints.get(shape, "")
        return f"must have shape (batch, target length, target width) = {wanted}, found {shape}{hint}"
    if not y.is_floating_point():
        return f"must hold floating-point values, found {y.dtype}"
    return None if y.device == x.device else f"must be on {x.device}, found {y.device}; use device=x.device"


def streaming(module: nn.Module) -> Any:
    """Return the module; raise :class:`UsageError` if it has no streaming form, :class:`TypeError` if it has half."""
    has = [name for name in ("initial_state", "step") if callable(getattr(module, name, None))]
    if len(has) == 1:
        form = "a streaming form is initial_state(batch) and step(x, state)"
        raise TypeError(f"{type(module).__name__} has {has[0]} only: {form}")
    if not has:
        raise UsageError(f"{type(module).__name__} has no streaming form")
    return module


PROBED = 4096
"""Positions after which an undeclared growth of the state is assumed to continue at the same rate."""


def parameter_count(model: nn.Module) -> int:
    """Return the number of values that training changes; a complex number counts as two."""
    return sum(value.numel() * (1 + value.is_complex()) for value in model.parameters() if value.requires_grad)


@torch.no_grad()
def state_bytes(model: nn.Module) -> int | None:
    """Return the bytes that the streaming form keeps per sequence at the end of the input; None if no such form works.

    Only a :class:`Backbone` has such a form here, also if it is compiled.

    The size is measured, except for caches that grow and declare their size (``cache_bytes``). Tensors whose size does
    not depend on the batch (coefficients computed once) are not counted.
    """
    model, training = uncompiled(model), model.training
    if not isinstance(model, Backbone):
        return None
    try:
        return _state_at_end(model.eval())
    except Exception:  # a user's module may use these names for something else; ``check_model`` says what fails
        return None
    finally:
        model.train(training)


def _state_at_end(model: Backbone) -> int:
    """Return initial bytes plus declared growth; run the steps to measure a state with undeclared growth."""
    length = model.input.length
    declared = [method for _, method in offered(model, "cache_bytes")]
    start, *first = _sizes(model, min(length, 2))
    # an initial state may have one row for the whole batch; the first step gives it the rows of the batch
    _, double = _sizes(model, 1, rows=2)
    shared = 2 * first[0] - double
    if all(found - start == sum(size(steps) for size in declared) for steps, found in enumerate(first, 1)):
        return start - shared + sum(size(length) for size in declared)
    *_, before, last = _sizes(model, min(length, PROBED))
    return last - shared + max(length - PROBED, 0) * (last - before)


def _sizes(model: Backbone, steps: int, rows: int = 1) -> Iterator[int]:
    """Yield the bytes of the state of ``rows`` sequences at the start and after each of ``steps`` positions."""
    width = (model.input.width,) if model.input.kind == "real" else ()
    parameter = next(model.parameters())
    x = torch.zeros(rows, *width, device=parameter.device, dtype=parameter.dtype if width else torch.int64)
    state = model.initial_state(rows)
    yield _bytes(state)
    for _ in range(steps):
        _, state = model.step(x, state)
        yield _bytes(state)


def _bytes(state: Any, around: tuple[int, ...] = ()) -> int:
    """Return the bytes of all tensors in ``state``: a tensor, a container, or an object with tensors as attributes.

    ``around`` has the ids of the objects that contain ``state``; an object may contain itself.
    """
    if isinstance(state, Tensor):
        return state.numel() * state.element_size()
    parts: Iterable[Any] = ()
    if isinstance(state, Mapping):
        parts = state.values()
    elif isinstance(state, (list, tuple, deque)):
        parts = state
    elif dataclasses.is_dataclass(state):  # it may have slots
        parts = [getattr(state, field.name) for field in dataclasses.fields(state)]
    elif not isinstance(state, type):
        declared = (vars(cls).get("__slots__", ()) for cls in type(state).__mro__)
        slots = {name for names in declared for name in ([names] if isinstance(names, str) else names)} - {"__dict__"}
        parts = [*getattr(state, "__dict__", {}).values(), *(getattr(state, name, None) for name in slots)]
    return 0 if id(state) in around else sum(_bytes(part, (*around, id(state))) for part in parts)
