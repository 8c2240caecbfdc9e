"""Check that a model keeps the contract on which the evaluation loop and the reader of a score rely."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lrtasks.check import BrokenContractError, collect
from lrtasks.errors import UsageError, unknown, with_line
from lrtasks.evaluation.environment import private_random_numbers
from lrtasks.models.base import (
    ModelLike,
    ResidualBlock,
    diagnostics,
    extra_losses,
    output_misfit,
    parameter_options,
    streaming,
    takes_mask,
)
from lrtasks.models.factory import model_factory
from lrtasks.spec import Spec

TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
"""Largest difference that counts as rounding, relative to the largest output."""
STEP_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-8}
"""The same for the streaming form against the parallel form: they sum over many positions in different orders."""
ROWS = 3
CUTS = 16
"""Number of evenly spaced positions at which causality is checked."""
STEPS = 1024
"""Largest number of streamed positions."""


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

    In training and in evaluation mode, the output for random inputs must be a finite tensor of shape
    ``(batch, target.length, target.width)`` and type ``dtype`` on the input's device. The input of the model must
    stay unchanged, and so must the inputs of the mixers inside. In evaluation mode:

    * the same input gives the same output, and a row's output does not depend on the other rows or on their number;
    * if ``causal``, outputs up to position t do not change when inputs after t change (checked at 16 positions,
      and before positions 1, 2, 4, 8, ..., where chunks of these lengths end);
    * if ``forward`` takes a ``mask``, no output at a valid position depends on padding, and a mask that is True
      everywhere changes no output;
    * ``initial_state`` and ``step``, if offered, give the outputs of ``forward`` (over at most 1024 positions);
    * a second model that loads the state of the first gives the same outputs (not checked for a module already built).

    A training step, with extra losses, gives every trainable parameter a finite gradient; some gradient is not zero.
    In training mode, the same weights, buffers, input and random numbers give the same output after another batch;
    if ``causal``, outputs do not change when later inputs change (dropout and batch norms in evaluation mode).
    ``parameter_options``, ``extra_losses`` and ``diagnostics``, if offered, have the form that
    :class:`lrtasks.models.Block` describes. Output o belongs to input position ``input.length - target.length + o``, so
    only a target as long as the input checks all positions of a model. The check has no side effects: it copies a
    module, and restores the states of random generators.

    Args:
        model: name of a registered model, a module, or a factory called as ``factory(input, target, **hyper)``, with
            ``causal=causal`` too if it takes that.
        input: what the model reads.
        target: what it predicts.
        causal: check causality; also passed on when building.
        dtype: ``torch.float32`` (differences up to 1e-5 of the largest output are rounding) or ``torch.float64``
            (1e-10); the model is converted to it.
        unused: qualified names of parameters that need no gradient.
        seed: seed of the inputs, and of the initialisation if the model is built here.
        hyper: hyper-parameters of a registered model or a factory.

    Raises:
        UsageError: if there are problems, with the size and position of each; or for wrong arguments.
    """
    if dtype not in TOLERANCE:
        raise UsageError(f"check_model: dtype must be torch.float32 or torch.float64, found {dtype}")
    with private_random_numbers(seed=seed), torch.enable_grad():
        if isinstance(model, nn.Module):
            try:
                model = copy.deepcopy(model)
            except Exception as error:
                hint = "a module that has run forward may hold such tensors; pass a new one, or its factory"
                raise UsageError(f"model {type(model).__name__} cannot be copied: {error} ({hint})") from error
        factory = partial(model_factory(model, hyper).build, input, target, causal)
        built = factory()
        names = [name for name, _ in built.named_parameters()]
        for name in (name for name in unused if name not in names):
            raise unknown("parameter in unused", name, names)
        _move_from_zero(built)
        probe = _Probe(_converted(built, dtype), input, target, dtype, unused, factory)
        problems = collect(probe, _output) or collect(probe, _mixer_inputs, _rows)
        if not problems:
            problems = collect(probe, *([_causality] if causal else []), _mask, _step)
            problems += (
                collect(probe, _options_losses_and_diagnostics)
                or collect(probe, _gradients)
                or collect(probe, _training_state)
            )
            if causal and not problems:
                problems = collect(probe, _training_causality)
            if not isinstance(model, nn.Module):
                with private_random_numbers(seed=seed + 1):
                    problems += collect(probe, _reload)
    if problems:
        name = model if isinstance(model, str) else getattr(model, "__name__", type(model).__name__)
        raise BrokenContractError(f"model {name} ({str(dtype).removeprefix('torch.')})", problems)


def _converted(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Convert ``model`` to ``dtype``, and complex values to the matching complex type (``Module.to`` makes them real).

    Values of any type other than float32 and complex64 stay unchanged, since the model chose that type.
    """
    for value in (*model.parameters(), *model.buffers()):
        if value.dtype in (torch.float32, torch.complex64):
            value.data = value.data.to(dtype.to_complex() if value.is_complex() else dtype)
    return model


@torch.no_grad()
def _move_from_zero(model: nn.Module) -> None:
    """Fill parameters that are zero everywhere: a head or a gate that starts at zero would hide errors elsewhere."""
    for parameter in model.parameters():
        if parameter.requires_grad and not parameter.any():
            parameter.copy_(0.05 + 0.1 * torch.rand(parameter.shape))


@dataclass
class _Probe:
    """A model, its specs, and one input of :data:`ROWS` rows."""

    model: nn.Module
    input: Spec
    target: Spec
    dtype: torch.dtype
    unused: Collection[str]
    factory: Callable[[], nn.Module]

    def __post_init__(self) -> None:
        self.device = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        self.x = self.draw(ROWS)

    def draw(self, rows: int) -> Tensor:
        shape = self.input.shape(rows)
        if self.input.kind == "token":
            return torch.randint(self.input.width, shape).to(self.device)
        return torch.randn(shape, dtype=self.dtype).to(self.device)

    def outputs(self, x: Tensor, when: str = "", *, training: bool = False, **arguments: Tensor) -> Tensor:
        """Return the outputs of the model, in evaluation mode unless ``training``, after a check of their form."""
        before = x.clone()
        try:
            with torch.set_grad_enabled(training):
                y: object = self.model.train(training)(x, **arguments)
        except UsageError as error:
            raise UsageError(f"fails{when}: {error}" if when else str(error)) from None
        except Exception as error:
            kind = f" on a {self.input.kind} input, {str(x.dtype).removeprefix('torch.')} of shape {tuple(x.shape)}"
            raise UsageError(f"fails{when or kind}: {with_line(error)}") from None
        if not torch.equal(before, x):
            raise UsageError(f"writes to its input{when}, first at {_place(before != x)}; write x = x * 2, not x *= 2")
        if problem := output_misfit(y, x, self.input, self.target):
            raise UsageError(f"output{when} {problem}")
        assert isinstance(y, Tensor)
        if y.dtype != self.dtype:
            found = f"{y.dtype}; make tensors with dtype=x.dtype"
            raise UsageError(f"output{when} must be of type {self.dtype}, found {found}")
        if not y.isfinite().all():
            hint = " (a softmax over no valid key?)" if "mask" in arguments else ""
            raise UsageError(f"output is not finite{when}, first at {_place(~y.isfinite(), 'output position')}{hint}")
        return y

    def compare(
        self,
        expected: Tensor,
        found: Tensor,
        what: str,
        hint: str = "",
        *,
        where: Tensor | None = None,
        scale: Tensor | None = None,
        tolerance: Mapping[torch.dtype, float] = TOLERANCE,
    ) -> None:
        """Raise the problem ``what ... hint`` if two outputs ``(rows, target.length, target.width)`` differ.

        Only entries at ``where`` are compared. Differences are relative to ``scale``, by default the largest absolute
        value of ``expected``.
        """
        if where is not None:
            expected, found = torch.where(where, expected, 0), torch.where(where, found, 0)
        scale = expected.abs().max() if scale is None else scale
        gap = (found - expected).abs()
        if gap.max() > tolerance[self.dtype] * scale:
            size = f"by {float(gap.max() / scale):.1e} of its scale (allowed {tolerance[self.dtype]:.0e})"
            raise UsageError(f"{what}: {size}, most at {_place(gap == gap.max(), 'output position')}{hint}")


def _place(where: Tensor, position: str = "position") -> str:
    """Describe the position of the first true entry, as in ``row 0, position 3, channel 1``."""
    words = ("row", position, "channel")
    return ", ".join(f"{word} {i}" for word, i in zip(words, where.nonzero()[0].tolist(), strict=False))


# Checks in evaluation mode.


def _output(probe: _Probe) -> None:
    expected = probe.outputs(probe.x)
    probe.outputs(probe.draw(ROWS))  # another batch in between shows whether the model keeps a state
    hint = "; noise and dropout must be off in evaluation mode (self.training), and forward must keep no state"
    what = "the same input gives another output in evaluation mode"
    probe.compare(expected, probe.outputs(probe.x), what, hint)


def _mixer_inputs(probe: _Probe) -> None:
    """Check that no mixer writes to its input: without a norm before the mixer, this is the residual stream."""
    mixers = [block.mixer for block in probe.model.modules() if isinstance(block, ResidualBlock)]
    before, changes, hooks = list[Tensor](), list[Tensor](), []
    for mixer in mixers:
        hooks.append(mixer.register_forward_pre_hook(lambda _, given: before.append(given[0].clone())))
        hooks.append(mixer.register_forward_hook(lambda _, given, __: changes.append(before.pop() != given[0])))
    try:
        for training, when in ((False, ""), (True, " in training mode")) if mixers else ():
            probe.outputs(probe.x, when, training=training)
            for changed in changes:
                if changed.any():
                    what = f"a mixer writes to its input{when}, first at {_place(changed)}"
                    raise UsageError(f"{what}; write x = x * 2, not x *= 2")
    finally:
        for hook in hooks:
            hook.remove()


def _rows(probe: _Probe) -> None:
    """Check that a row's output depends only on that row."""
    expected, others = probe.outputs(probe.x), probe.draw(ROWS)
    others[1] = probe.x[1]
    second = torch.arange(ROWS, device=probe.device)[:, None, None] == 1
    hint = "; axis 0 is the batch: sums, means and recurrences must not run over it"
    probe.compare(expected, probe.outputs(others), "a row's output depends on the other rows", hint, where=second)
    alone = probe.outputs(probe.x[1:2].clone(), f" on one row, but not on {ROWS} rows").expand_as(expected)
    probe.compare(expected, alone, "a row's output depends on the number of rows", hint, where=second)


def _causality(probe: _Probe) -> None:
    """Check that outputs up to t stay the same when inputs after t change. Each t is one row of a batch."""
    cuts, x = _cuts(probe), probe.x[:1]
    if not cuts:
        return
    rows = torch.cat([_changed_after(cut, x, probe.draw(1), probe.input) for cut in cuts])
    expected, found = probe.outputs(probe.x)[:1], probe.outputs(rows)[:, None]
    for cut, outputs in zip(cuts, found, strict=True):
        _compare_up_to(cut, probe, expected, outputs)


def _cuts(probe: _Probe) -> list[int]:
    """Return the positions t at which causality is checked; none if the last output is the only one."""
    length = probe.input.length
    first = length - probe.target.length
    if probe.target.pooled or first >= length - 1:
        return []  # the last output may depend on all inputs
    ends = (2**k - 1 for k in range((length - 1).bit_length()))  # of chunks whose length is a power of two
    spaced = torch.linspace(first, length - 2, CUTS).round().int().tolist()
    return sorted({*spaced, *ends})


def _changed_after(cut: int, x: Tensor, other: Tensor, input: Spec) -> Tensor:
    """Return ``x`` with other inputs after position ``cut``."""
    if input.kind == "token" and input.width > 1:
        other = (x + 1 + other % (input.width - 1)) % input.width  # always another token
    return torch.cat((x[:, : cut + 1], other[:, cut + 1 :]), 1)


def _compare_up_to(cut: int, probe: _Probe, expected: Tensor, found: Tensor, when: str = "") -> None:
    """Raise the problem "not causal" if outputs up to position ``cut`` differ."""
    length = probe.input.length
    position = torch.arange(length - probe.target.length, length, device=probe.device)[:, None]
    what = f"not causal{when}: outputs up to input position {cut} change with the inputs after it"
    hint = "; mask what follows, pad convolutions on the left, or call check_model with causal=False"
    scale = expected.abs().max()  # a convolution by FFT rounds on the scale of all outputs
    probe.compare(expected, found, what, hint, where=position <= cut, scale=scale)


def _mask(probe: _Probe) -> None:
    """Check that values at padding change no output at a valid position, and a mask without padding changes nothing."""
    length = probe.input.length
    if length < 2 or not takes_mask(probe.model):
        return
    # every row is padded: a model must not take the longest valid row for the length of the input
    valid = torch.linspace(length - 1, length // 2, ROWS).int()[:, None]
    mask = (torch.arange(length) < valid).to(probe.device)
    padding = ~mask if probe.input.kind == "token" else ~mask[..., None]
    when = f" with a padding mask, bool of shape {tuple(mask.shape)}"
    expected = probe.outputs(probe.x, when, mask=mask)
    found = probe.outputs(torch.where(padding, probe.draw(ROWS), probe.x), when, mask=mask)
    what = "outputs at valid positions depend on values at padding (mask False)"
    hint = "; leave padded keys out of attention, take padded inputs as zero in sums"
    where = None if probe.target.pooled else mask[:, length - probe.target.length :, None]
    probe.compare(expected, found, what, hint, where=where)
    whole = torch.ones_like(mask)
    found = probe.outputs(probe.x, " with a mask without padding", mask=whole)
    hint = "; a mask is True at valid positions and False at padding"
    probe.compare(probe.outputs(probe.x), found, "a mask that is True everywhere changes the output", hint)


def _step(probe: _Probe) -> None:
    """Check that streaming, one position at a time, gives the same outputs as the whole sequence."""
    model: Any = probe.model.eval()
    pooled = probe.target.pooled
    whole = not pooled and probe.target.length == probe.input.length
    steps = min(probe.input.length, STEPS)
    if not (whole or steps == probe.input.length):
        return
    outputs: list[Tensor] = []
    try:
        with torch.no_grad():
            state = streaming(model).initial_state(ROWS)
            for t in range(steps):
                y, state = model.step(probe.x[:, t], state)
                outputs.append(y)
    except Exception as error:
        if isinstance(error, UsageError) and not outputs:
            return  # the model reports that it has no streaming form
        raise UsageError(f"step fails at position {len(outputs)}: {with_line(error)}") from None
    expected = probe.outputs(probe.x)
    expected = expected.flatten(1)[:, None] if pooled else expected[:, :steps]
    wanted = (ROWS, expected.shape[-1])
    if (shape := tuple(outputs[0].shape)) != wanted:
        raise UsageError(f"step must return an output of shape (batch, target width) = {wanted}, found {shape}")
    streamed = torch.stack(outputs[-expected.shape[1] :], 1)
    if not streamed.isfinite().all():
        where = _place(~streamed.isfinite(), "output position")
        raise UsageError(f"step gives outputs that are not finite, first at {where}")
    what = "step, one position after the other, gives other outputs than forward"
    probe.compare(expected, streamed, what, tolerance=STEP_TOLERANCE)


# Checks in training mode.


def _options_losses_and_diagnostics(probe: _Probe) -> Iterator[str]:
    """Check that options of parameters, extra losses and diagnostics have the form that training reads."""
    probe.outputs(probe.x, " in training mode", training=True)
    parameter_options(probe.model)
    extra_losses(probe.model, probe.device, finite=True)
    for module, report in diagnostics(probe.model).items():
        for name, value in report.items():
            try:
                json.dumps(value, allow_nan=False)
            except ValueError:
                yield f"diagnostics of {module}: {name} must be finite, found {value!r}"


def _gradients(probe: _Probe) -> Iterator[str]:
    """Check that a training step gives the parameters finite gradients."""
    wanting = {name: value for name, value in probe.model.named_parameters() if value.requires_grad}
    if not wanting:
        raise UsageError("it has no parameters to train")
    for time in ("", " after the first step; forward must keep nothing of an earlier one (.detach() it)"):
        y = probe.outputs(probe.x, " in training mode", training=True)
        loss = (y * torch.randn(y.shape, dtype=y.dtype).to(y.device)).sum()
        loss = loss + extra_losses(probe.model, probe.device)
        if not loss.requires_grad:
            raise UsageError("no parameter gets a gradient: the output is cut off from all of them")
        try:
            torch.autograd.backward(loss)
        except Exception as error:
            raise UsageError(f"the backward pass fails{time}: {with_line(error)}") from None
    gradients = {name: value.grad for name, value in wanting.items()}
    if missing := [name for name, gradient in gradients.items() if gradient is None and name not in probe.unused]:
        yield f"no gradient reaches {', '.join(missing)} (use it in forward, or name it in check_model's unused=)"
    wild = [name for name, gradient in gradients.items() if gradient is not None and not gradient.isfinite().all()]
    if wild:
        yield f"gradients are not finite in {', '.join(wild)} (a root, a logarithm or a division at 0?)"
    if all(gradient is None or not gradient.any() for gradient in gradients.values()):
        yield "the gradient is zero in every parameter"


def _training_state(probe: _Probe) -> None:
    """Check that training mode keeps nothing of an earlier batch outside the state that a checkpoint stores."""
    output = _training_outputs(probe)
    expected = output(probe.x)
    probe.outputs(probe.draw(ROWS), " in training mode", training=True)
    what = (
        "in training mode, the same weights, buffers, input and random numbers give another output after another batch"
    )
    probe.compare(expected, output(probe.x), what, "; a resumed run restores only parameters and buffers")


def _training_causality(probe: _Probe) -> None:
    """Check causality in training mode too: a loss that reads the future is low for a model that learns nothing."""
    output, x = _training_outputs(probe), probe.x
    for module in probe.model.modules():
        if isinstance(module, (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)):
            module.register_forward_pre_hook(_evaluate)
    expected = output(x)
    for cut in _cuts(probe):  # one batch each: statistics of a batch may depend on its rows
        found = output(_changed_after(cut, x, probe.draw(ROWS), probe.input))
        _compare_up_to(cut, probe, expected, found, " in training mode")


def _evaluate(module: nn.Module, _: object) -> None:
    module.eval()


def _training_outputs(probe: _Probe) -> Callable[[Tensor], Tensor]:
    """Return a function of the input that uses the same weights, buffers and random numbers in each call."""
    state = copy.deepcopy(probe.model.state_dict())

    def output(x: Tensor) -> Tensor:
        probe.model.load_state_dict(state)
        with private_random_numbers(seed=0):
            return probe.outputs(x, " in training mode", training=True).detach()

    return output


def _reload(probe: _Probe) -> None:
    """Check that a model built from other random numbers gives the same outputs after loading the stored state."""
    expected, state = probe.outputs(probe.x), probe.model.state_dict()
    probe.model = _converted(probe.factory(), probe.dtype)
    try:
        probe.model.load_state_dict(state)
    except RuntimeError as error:
        why = "its state cannot be loaded into a new model, as a resumed run does"
        hint = "make all parameters and buffers in the constructor"
        raise UsageError(f"{why}: {error}; {hint}") from None
    what = "a new model that loads the stored state gives other outputs"
    hint = "; register every tensor that it depends on as a parameter or a buffer"
    probe.compare(expected, probe.outputs(probe.x), what, hint)
