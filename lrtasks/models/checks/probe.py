"""A model with inputs, and how outputs are compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from lrtasks.spec import Spec

# largest difference that counts as rounding, relative to the largest output
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}
ROWS = 3
# axes of the arrays, as messages name them; outputs of one row have no first one
INPUT = ("row", "position", "channel")
OUTPUT = ("row", "output position", "channel")

Problem = str


def converted(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """``model`` with its real values in ``dtype`` and its complex ones in the complex type of the same precision.

    :meth:`torch.nn.Module.to` would make complex values real.
    """

    def convert(value: Tensor) -> Tensor:
        if value.is_complex():
            return value.to(dtype.to_complex())
        return value.to(dtype) if value.is_floating_point() else value

    found: nn.Module = model._apply(convert)  # type: ignore[no-untyped-call]
    return found


class Probe:
    """A model, its specs and one input of :data:`ROWS` rows."""

    def __init__(self, model: nn.Module, input: Spec, target: Spec, dtype: torch.dtype) -> None:
        self.model, self.input, self.target, self.dtype = model, input, target, dtype
        self.device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self.x = self.draw(ROWS)

    def draw(self, rows: int) -> Tensor:
        """Random inputs of ``rows`` rows."""
        shape = self.input.shape(rows)
        if self.input.kind == "token":
            return torch.randint(self.input.width, shape).to(self.device)
        return torch.randn(shape, dtype=self.dtype).to(self.device)

    @torch.no_grad()
    def outputs(self, x: Tensor, **arguments: Tensor) -> Any:
        """Output in evaluation mode: a tensor, once :func:`check_output` has found so."""
        return self.model.eval()(x, **arguments)

    def differs(
        self,
        expected: Tensor,
        found: Tensor,
        what: str,
        *,
        where: Tensor | None = None,
        whole: bool = False,
        tolerance: float | None = None,
    ) -> Iterator[Problem]:
        """A problem if the outputs differ by more than rounding.

        Args:
            expected: outputs.
            found: outputs of the same shape.
            what: how the problem begins.
            where: compare only there; bool, broadcastable to the outputs.
            whole: the scale is that of all outputs, on which a convolution by FFT rounds, not of those compared alone.
            tolerance: what counts as rounding, relative to the largest output; :data:`TOLERANCE` by default.
        """
        scale = expected.abs().max()
        allowed = TOLERANCE[self.dtype] if tolerance is None else tolerance
        gap = (found - expected).abs()
        if where is not None:
            gap = torch.where(where, gap, 0)
            scale = scale if whole else torch.where(where, expected, 0).abs().max()
        gap = gap / scale.clamp_min(torch.finfo(self.dtype).tiny)
        gap = torch.where(gap.isfinite(), gap, torch.inf)
        if gap.max() > allowed:
            yield (
                f"{what}: by {float(gap.max()):.1e} of its scale (allowed {allowed:.0e}),"
                f" most at {place(gap == gap.max())}"
            )


def place(where: Tensor, words: tuple[str, ...] = OUTPUT) -> str:
    """The first true entry, in words: ``row 0, position 3, channel 1``."""
    index = where.nonzero()[0].tolist()
    words = words[-len(index) :] if words is OUTPUT else words[: len(index)]
    return ", ".join(f"{word} {i}" for word, i in zip(words, index, strict=True))
