"""Other ways to the same outputs: with padding, one position at a time, from a stored state."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from lrtasks.errors import UsageError
from lrtasks.models.base import takes_mask
from lrtasks.models.checks.probe import ROWS, Probe, Problem, converted

STEPS, ALL_STEPS = 128, 1024
"""Positions that are streamed: of a target as long as the input, and at most where its last positions are read."""
STEP_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-8}
"""The two forms add up in other orders, over many positions."""


def check_mask(probe: Probe) -> Iterator[Problem]:
    """What stands at padding changes no output at a valid position."""
    length = probe.input.length
    if length < 2 or not takes_mask(probe.model):
        return
    valid = torch.tensor([[length], [max(1, 3 * length // 4)], [max(1, length // 2)]], device=probe.device)
    mask = torch.arange(length, device=probe.device) < valid
    padding = ~mask if probe.input.kind == "token" else ~mask[..., None]
    try:
        expected = probe.outputs(probe.x, mask=mask)
        found = probe.outputs(torch.where(padding, probe.draw(ROWS), probe.x), mask=mask)
    except Exception as error:
        yield f"fails with a padding mask, bool of shape {tuple(mask.shape)}: {type(error).__name__}: {error}"
        return
    if not expected.isfinite().all():
        yield "output is not finite with a padding mask (a softmax over no valid key?)"
        return
    seen = None if probe.target.pooled else mask[:, length - probe.target.length :, None]
    what = "outputs at valid positions depend on what stands at padding (mask False)"
    for problem in probe.differs(expected, found, what, where=seen):
        yield f"{problem}; leave padded keys out of attention, take padded inputs as zero in sums"


def check_step(probe: Probe) -> Iterator[Problem]:
    """One position at a time gives what the whole sequence gives."""
    model = probe.model
    offered = [name for name in ("initial_state", "step") if callable(getattr(model, name, None))]
    if len(offered) == 1:
        yield f"offers {offered[0]} alone: a streaming form is initial_state(batch) and step(x, state)"
    pooled = probe.target.pooled
    whole = not pooled and probe.target.length == probe.input.length
    steps = min(probe.input.length, STEPS if whole else ALL_STEPS)
    if len(offered) < 2 or not (whole or steps == probe.input.length):
        return
    expected = probe.outputs(probe.x)
    expected = expected.flatten(1)[:, None] if pooled else expected[:, :steps]
    outputs: list[Tensor] = []
    try:
        with torch.no_grad():
            state = model.eval().initial_state(ROWS)  # type: ignore[operator]
            for t in range(steps):
                y, state = model.step(probe.x[:, t], state)  # type: ignore[operator]
                outputs.append(y)
    except UsageError:
        return  # it says itself that it has no streaming form
    except Exception as error:
        yield f"step fails at position {len(outputs)}: {type(error).__name__}: {error}"
        return
    wanted = (ROWS, expected.shape[-1])
    if tuple(outputs[0].shape) != wanted:
        yield f"step must return an output of shape (batch, target width) = {wanted}, found {tuple(outputs[0].shape)}"
        return
    streamed = torch.stack(outputs[-expected.shape[1] :], 1).to(expected.dtype)
    what = "step, one position after the other, gives other outputs than forward"
    yield from probe.differs(expected, streamed, what, tolerance=STEP_TOLERANCE[probe.dtype])


def check_reload(probe: Probe, factory: Callable[[], nn.Module]) -> Iterator[Problem]:
    """The state of one model makes another one, built from other random numbers, the same."""
    expected = probe.outputs(probe.x)
    again = converted(factory(), probe.dtype)
    try:
        again.load_state_dict(probe.model.state_dict())
    except RuntimeError as error:
        yield f"its state cannot be loaded into the model built anew, as a resumed run does: {error}"
        return
    found = Probe(again, probe.input, probe.target, probe.dtype).outputs(probe.x)
    what = "built anew and given the stored state, it gives other outputs"
    for problem in probe.differs(expected, found, what):
        yield f"{problem}; register every tensor that it depends on as a parameter or a buffer"
