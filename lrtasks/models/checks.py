"""A public conformance check for models: what the evaluation loop, and whoever reads a score, may rely on."""

from __future__ import annotations

import copy
import inspect
import json
import random
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lrtasks.errors import UsageError, unknown
from lrtasks.models.base import build, offered
from lrtasks.specs import Spec

# largest difference that counts as rounding, relative to the largest output
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
BATCH = 3
CUTS = 16  # positions at which causality is tried
OPTIONS = {"lr", "weight_decay"}
# axes of the arrays, as messages name them; outputs of one row have no first one
INPUT = ("row", "position", "channel")
OUTPUT = ("row", "output position", "channel")

Problem = str


def check_model(
    model: str | nn.Module | Callable[..., nn.Module],
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
    check such a model through and through, build it for a target as long as its input. In training mode the loss,
    extra losses included, must give finite gradients, not all zero, and reach every parameter that wants one;
    a gradient that is zero is allowed (a gate may be shut), one that is missing is not, unless ``unused`` names the
    parameter. Inputs must not be written to. ``parameter_options``, ``extra_losses`` and ``diagnostics``, where
    offered, must have the form that :class:`lrtasks.models.Block` describes.

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
    if dtype not in TOLERANCE:
        raise UsageError(f"check_model: dtype must be torch.float32 or torch.float64, found {dtype}")
    with _random_state(), torch.enable_grad():
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        copied = _own_copy(model, input, target, causal, hyper)
        checked = _Checked(copied.double() if dtype == torch.float64 else copied.float(), input, target, dtype)
        problems = list(checked.basics())
        if not problems:
            problems = [*checked.rows(), *(checked.causality() if causal else ())]
            extras = list(checked.extras())
            problems += extras or checked.gradients(unused)
    if problems:
        name = model if isinstance(model, str) else type(copied).__name__
        found = " ".join("; ".join(problems).split())
        raise UsageError(f"model {name} ({str(dtype).removeprefix('torch.')}): {found}")


class _Checked:
    """A model in its two modes, with inputs; each check yields what it finds wrong."""

    def __init__(self, model: nn.Module, input: Spec, target: Spec, dtype: torch.dtype) -> None:
        self.model, self.input, self.target, self.dtype = model, input, target, dtype
        self.device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self.x = self.draw(BATCH)

    def draw(self, rows: int) -> Tensor:
        shape = self.input.shape(rows)
        if self.input.kind == "token":
            return torch.randint(self.input.width, shape).to(self.device)
        return torch.randn(shape, dtype=self.dtype).to(self.device)

    @torch.no_grad()
    def outputs(self, x: Tensor) -> Any:
        """Output in evaluation mode: a tensor, once :meth:`basics` has found so."""
        return self.model.eval()(x)

    def basics(self) -> Iterator[Problem]:
        """Shape, type, finite values, an input left alone, determinism: without these the rest says nothing."""
        before = self.x.clone()
        try:
            y = self.outputs(self.x)
        except Exception as error:
            yield f"fails on an input of shape {tuple(self.x.shape)}: {type(error).__name__}: {error}"
            return
        wanted = (BATCH, self.target.length, self.target.width)
        if not isinstance(y, Tensor):
            yield f"must return a tensor, found {type(y).__name__}"
        elif tuple(y.shape) != wanted:
            yield f"output must have shape (batch, target length, target width) = {wanted}, found {tuple(y.shape)}"
        elif y.dtype != self.dtype:
            yield f"output must be of type {self.dtype}, found {y.dtype}"
        elif not y.isfinite().all():
            yield f"output is not finite, first at {_place(~y.isfinite())}"
        elif not torch.equal(before, self.x):
            yield f"forward writes to its input, first at {_place(before != self.x, INPUT)}"
        else:
            # another batch in between, so that a model which remembers is found out
            self.outputs(self.draw(BATCH))
            yield from self.differs(y, self.outputs(self.x), "the same input gives another output in evaluation mode")

    def differs(self, expected: Tensor, found: Tensor, what: str, where: Tensor | None = None) -> Iterator[Problem]:
        """A problem if the outputs differ by more than rounding (``where``: only there)."""
        scale = expected.abs().max().clamp_min(torch.finfo(self.dtype).tiny)
        gap = (found - expected).abs() / scale
        gap = torch.where(gap.isfinite(), gap, torch.inf)
        if where is not None:
            gap = gap * where
        if gap.max() > TOLERANCE[self.dtype]:
            yield (
                f"{what}: by {float(gap.max()):.1e} of its scale (allowed {TOLERANCE[self.dtype]:.0e}),"
                f" most at {_place(gap == gap.max())}"
            )

    def rows(self) -> Iterator[Problem]:
        """A row's output depends on nothing but that row."""
        expected = self.outputs(self.x)
        others = self.draw(BATCH)
        others[1] = self.x[1]
        what = "a row's output depends on the other rows"
        found = list(self.differs(expected[1], self.outputs(others)[1], what))
        if not found:
            what = "a row's output depends on the number of rows"
            found = list(self.differs(expected[1], self.outputs(self.x[1:2])[0], what))
        yield from found

    def causality(self) -> Iterator[Problem]:
        """Outputs up to t stay when inputs after t change; each t is one row of a batch."""
        first = self.input.length - self.target.length
        if first >= self.input.length - 1:
            return  # only the last output can be seen, which may depend on everything
        cuts = torch.linspace(first, self.input.length - 2, CUTS).round().int().tolist()
        cuts = sorted(set(cuts))
        rows = self.x[:1].repeat(len(cuts), *(1,) * (self.x.dim() - 1))
        other = self.draw(len(cuts))
        if self.input.kind == "token" and self.input.width > 1:
            # another token for certain
            other = (rows + 1 + other % (self.input.width - 1)) % self.input.width
        for row, cut in enumerate(cuts):
            rows[row, cut + 1 :] = other[row, cut + 1 :]
        expected, found = self.outputs(self.x)[0], self.outputs(rows)
        position = torch.arange(self.target.length, device=self.device)[:, None] + first
        for row, cut in enumerate(cuts):
            what = f"not causal: outputs up to input position {cut} change with the inputs after it"
            problem = list(self.differs(expected, found[row], what, where=position <= cut))
            if problem:
                yield problem[0]
                return

    def extras(self) -> Iterator[Problem]:
        """Training mode runs, and what modules offer beside their output has the uniform form."""
        before = self.x.clone()
        try:
            self.model.train()(self.x)
        except Exception as error:
            yield f"fails in training mode: {type(error).__name__}: {error}"
            return
        if not torch.equal(before, self.x):
            yield f"forward writes to its input in training mode, first at {_place(before != self.x, INPUT)}"
        for method, check in (
            ("extra_losses", _loss_problem),
            ("diagnostics", _diagnostic_problem),
            ("parameter_options", _options_problem),
        ):
            for name, function in offered(self.model, method):
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
                    if method == "parameter_options" and key not in self.model.get_submodule(name)._parameters:
                        yield f"{label}: {key} is not a parameter of this module"

    def gradients(self, unused: Collection[str]) -> Iterator[Problem]:
        """A training step reaches the parameters, with finite gradients."""
        parameters = dict(self.model.named_parameters())
        for name in unused:
            if name not in parameters:
                raise unknown("parameter in unused", name, parameters)
        wanting = {name: parameter for name, parameter in parameters.items() if parameter.requires_grad}
        if not wanting:
            return
        y = self.model.train()(self.x)
        loss = (y * torch.randn(y.shape, dtype=y.dtype).to(y.device)).sum()
        for _, extra in offered(self.model, "extra_losses"):
            loss = loss + sum(extra().values())
        if not loss.requires_grad:
            yield "no parameter gets a gradient: the output is cut off from all of them"
            return
        try:
            loss.backward()
        except RuntimeError as error:
            yield f"the backward pass fails: {error}"
            return
        gradients = {name: parameter.grad for name, parameter in wanting.items()}
        missing = [name for name, gradient in gradients.items() if gradient is None and name not in unused]
        if missing:
            yield f"no gradient reaches {', '.join(missing)} (list in unused= what need not take part)"
        wild = [name for name, gradient in gradients.items() if gradient is not None and not gradient.isfinite().all()]
        if wild:
            yield f"gradients are not finite in {', '.join(wild)}"
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
        return f"must be finite numbers, texts, or lists or dictionaries of them: {error}"
    return None


def _options_problem(value: Any) -> Problem | None:
    if isinstance(value, dict) and set(value) <= OPTIONS:
        return None
    return f"must be a dictionary with {' or '.join(sorted(OPTIONS))}, found {value!r}"


def _own_copy(
    model: str | nn.Module | Callable[..., nn.Module], input: Spec, target: Spec, causal: bool, hyper: dict[str, Any]
) -> nn.Module:
    if isinstance(model, str):
        return build(model, input, target, causal=causal, **hyper)
    if isinstance(model, nn.Module):
        if hyper:
            raise UsageError(f"check_model: a module that is built already takes no hyper-parameters, found {hyper}")
        try:
            return copy.deepcopy(model)
        except Exception as error:
            raise UsageError(
                f"model {type(model).__name__} cannot be copied: {error} (a module that has run forward may hold"
                " such tensors; pass a new one, or its factory)"
            ) from error
    if not callable(model):
        raise UsageError(f"a model must be a name, a module or a factory, found {type(model).__name__}")
    takes = inspect.signature(model).parameters.values()
    if any(parameter.name == "causal" or parameter.kind is parameter.VAR_KEYWORD for parameter in takes):
        hyper = {"causal": causal, **hyper}
    try:
        inspect.signature(model).bind(input, target, **hyper)
    except TypeError as error:
        raise UsageError(f"the factory is called as factory(input, target, **{hyper}): {error}") from None
    built = model(input, target, **hyper)
    if not isinstance(built, nn.Module):
        raise UsageError(f"the factory must return a torch.nn.Module, found {type(built).__name__}")
    return built


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


def _place(where: Tensor, words: tuple[str, ...] = OUTPUT) -> str:
    """The first true entry, in words: ``row 0, position 3, channel 1``."""
    index = where.nonzero()[0].tolist()
    words = words[-len(index) :] if words is OUTPUT else words[: len(index)]
    return ", ".join(f"{word} {i}" for word, i in zip(words, index, strict=True))
