"""What a model gives in evaluation mode, and what it may depend on."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from lrtasks.models.checks.probe import INPUT, ROWS, Probe, Problem, place

CUTS = 16
"""Positions at which causality is tried."""


def check_output(probe: Probe) -> Iterator[Problem]:
    """Shape, type, finite values, an input left alone, determinism: without these the rest says nothing."""
    x = probe.x
    before = x.clone()
    try:
        y = probe.outputs(x)
    except Exception as error:
        kind = f"{probe.input.kind} input, {str(x.dtype).removeprefix('torch.')} of shape {tuple(x.shape)}"
        yield f"fails on a {kind}: {type(error).__name__}: {error}"
        return
    wanted = (ROWS, probe.target.length, probe.target.width)
    if not isinstance(y, Tensor):
        yield f"must return a tensor, found {type(y).__name__}"
    elif tuple(y.shape) != wanted:
        yield (
            f"output must have shape (batch, target length, target width) = {wanted}, found {tuple(y.shape)}"
            f"{_shape_hint(probe, tuple(y.shape))}"
        )
    elif y.dtype != probe.dtype:
        yield f"output must be of type {probe.dtype}, found {y.dtype}; make new tensors with dtype=x.dtype"
    elif not y.isfinite().all():
        yield f"output is not finite, first at {place(~y.isfinite())}"
    elif not torch.equal(before, x):
        yield f"forward writes to its input, first at {place(before != x, INPUT)}; write x = x * 2, not x *= 2"
    else:
        # another batch in between, so that a model which remembers is found out
        probe.outputs(probe.draw(ROWS))
        for problem in probe.differs(y, probe.outputs(x), "the same input gives another output in evaluation mode"):
            yield f"{problem}; noise and dropout must heed self.training, and forward must keep no state"


def _shape_hint(probe: Probe, found: tuple[int, ...]) -> str:
    rows, length, width = ROWS, probe.target.length, probe.target.width
    if found == (rows, width, length):
        return "; exchange the last two axes: y.transpose(1, 2)"
    if found == (rows, probe.input.length, width):
        return f"; the target is read at the last positions: y[:, -{length}:]"
    if found == (rows, width) and length == 1:
        return "; one value for the sequence is a length of 1: y[:, None]"
    return ""


def check_rows(probe: Probe) -> Iterator[Problem]:
    """A row's output depends on nothing but that row."""
    expected = probe.outputs(probe.x)
    others = probe.draw(ROWS)
    others[1] = probe.x[1]
    found = list(probe.differs(expected[1], probe.outputs(others)[1], "a row's output depends on the other rows"))
    if not found:
        try:
            alone = probe.outputs(probe.x[1:2])
        except Exception as error:
            yield f"fails on one row where {ROWS} are fine: {type(error).__name__}: {error}"
            return
        found = list(probe.differs(expected[1], alone[0], "a row's output depends on the number of rows"))
    for problem in found:
        yield f"{problem}; sums and means must not run over axis 0"


def check_causality(probe: Probe) -> Iterator[Problem]:
    """Outputs up to t stay when inputs after t change; each t is one row of a batch."""
    length, x = probe.input.length, probe.x
    first = length - probe.target.length
    if probe.target.pooled or first >= length - 1:
        return  # only the last output can be seen, which may depend on everything
    cuts = sorted(set(torch.linspace(first, length - 2, CUTS).round().int().tolist()))
    rows = x[:1].repeat(len(cuts), *(1,) * (x.dim() - 1))
    other = probe.draw(len(cuts))
    if probe.input.kind == "token" and probe.input.width > 1:
        # another token for certain
        other = (rows + 1 + other % (probe.input.width - 1)) % probe.input.width
    for row, cut in enumerate(cuts):
        rows[row, cut + 1 :] = other[row, cut + 1 :]
    expected, found = probe.outputs(x)[0], probe.outputs(rows)
    position = torch.arange(probe.target.length, device=probe.device)[:, None] + first
    for row, cut in enumerate(cuts):
        what = f"not causal: outputs up to input position {cut} change with the inputs after it"
        for problem in probe.differs(expected, found[row], what, where=position <= cut, whole=True):
            yield f"{problem}; mask what follows, pad convolutions on the left, or say causal=False"
            return
