"""A sound model, and what can be wrong with one, each with what the check says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lrtasks.errors import UsageError
from lrtasks.spec import Spec

SIGNAL, TARGET = Spec("real", 20, 3), Spec("real", 20, 2)
SYMBOLS, CLASSES = Spec("token", 20, 6), Spec("token", 20, 4)
SUMMARY = Spec("real", 3, 2, pooled=True)


class Conv(nn.Module):
    """A sound model, causal: what the broken ones derive from. ``ahead`` is how far it looks into the future."""

    def __init__(self, ahead: int = 0) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 2, 4)
        self.padding = (3 - ahead, ahead)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x.transpose(1, 2), self.padding)).transpose(1, 2)


forward: Any = Conv.forward


def variant(base: type[Conv] = Conv, **members: Any) -> Callable[[], nn.Module]:
    """A class of ``base`` with other members."""
    return type("Variant", (base,), members)


def failing(error: Exception) -> Any:
    """A function that raises ``error``."""

    def fail(*_: Any) -> Any:
        raise error

    return fail


class Random(Conv):
    """Dropout that stays on."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(super().forward(x), 0.5, training=True)


class Remembers(Conv):
    """Subtracts a running mean that starts at the mean of the first batch, and goes on in evaluation mode."""

    mean: float | None = None

    def forward(self, x: Tensor) -> Tensor:
        now = float(x.mean())
        self.mean = now if self.mean is None else (self.mean + now) / 2
        return super().forward(x - self.mean)


class BatchStatistics(Conv):
    """Batch norm without running averages: one row leaks into the others, in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3, track_running_stats=False)

    def forward(self, x: Tensor) -> Tensor:
        # over the batch at each position by itself, so that nothing but rows mixes
        return super().forward(torch.stack([self.norm(x[:, t]) for t in range(x.shape[1])], 1) if len(x) > 1 else x)


class Dead(Conv):
    """A parameter that takes no part."""

    def __init__(self) -> None:
        super().__init__()
        self.skip = nn.Parameter(torch.ones(2))


class LossNaN(Conv):
    """Has a loss after a call in training mode only."""

    loss: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.loss = y.sum() * torch.nan if self.training else None
        return y

    def extra_losses(self) -> dict[str, Any]:
        return {} if self.loss is None else {"usage": self.loss}


class IgnoresMask(Conv):
    """Takes a mask, and lets padding into its sums."""

    def __init__(self) -> None:
        super().__init__(ahead=2)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x)


class Packs(nn.Module):
    """Unpacks up to the last valid position of the batch, which may be before the end of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(3, 2, batch_first=True)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        lengths = torch.full((len(x),), x.shape[1]) if mask is None else mask.sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]


class EmptyChunk(Conv):
    """Takes a running mean over the valid positions of each half, of which there may be none."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        valid = torch.ones_like(x[..., :1]) if mask is None else mask[..., None].to(x.dtype)
        sums, counts = (each.unflatten(1, (2, -1)).cumsum(2).flatten(1, 2) for each in (x * valid, valid))
        return super().forward(sums / counts)


class Streams(Conv):
    """A sound streaming form: the last four inputs."""

    def initial_state(self, batch: int) -> Tensor:
        return torch.zeros(batch, 4, 3, dtype=self.conv.weight.dtype)

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = torch.cat([state[:, 1:], x[:, None]], 1)
        return self.conv(state.transpose(1, 2))[..., 0], state


class StreamsWrong(Streams):
    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        y, _ = super().step(x, state)
        return y, state


class StreamRefuses(Streams):
    """Refuses an input in the middle of a sequence: this does not mean that it has no streaming form."""

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        if state[:, 0].any():
            raise UsageError("state is full")
        return super().step(x, state)


class Oscillates(nn.Module):
    """Sound sums of undamped oscillations: their angles are rounded in another way in each form."""

    def __init__(self) -> None:
        super().__init__()
        self.angle = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        turn = torch.exp(1j * self.angle * torch.arange(x.shape[1])[:, None])
        return ((x * turn.conj()).cumsum(1) * turn).real

    def initial_state(self, batch: int) -> Tensor:
        return torch.zeros(batch, 3) + 0j

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state = torch.exp(1j * self.angle) * state + x
        return state.real, state


class RoundsState(Oscillates):
    """Keeps the state in bfloat16."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[..., :2]

    def step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        y, state = super().step(x, state)
        return y[..., :2], torch.view_as_complex(torch.view_as_real(state).bfloat16().to(x.dtype))


class Summary(Streams):
    """Three values for the whole sequence, which its last inputs give; it takes a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 6, 4)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        last = torch.full((len(x),), -1) if mask is None else mask.sum(1) - 1
        return super().forward(x)[torch.arange(len(x)), last].unflatten(1, (3, 2))


class Unregistered(Conv):
    """Depends on a random tensor that is no part of its state."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.randn(2)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale.to(x.dtype)


class RemembersInTraining(Conv):
    """Adds the mean output of the last training batch, which is no buffer, in training mode."""

    mean: Tensor | float = 0.0

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if self.training:
            y, self.mean = y + self.mean, y.mean().detach()
        return y


class NotReloaded(Conv):
    """Gains a buffer on its first call, which a new model does not have."""

    def forward(self, x: Tensor) -> Tensor:
        self.register_buffer("seen", torch.ones(1))
        return super().forward(x)


no_training = failing(RuntimeError("no training here"))
BROKEN: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "WrongShape": (
        variant(forward=lambda self, x: forward(self, x)[:, 1:]),
        r"shape \(batch, target length, target width\) = \(3, 20, 2\), found \(3, 19, 2\)$",
    ),
    "Transposed": (
        variant(forward=lambda self, x: forward(self, x).transpose(1, 2)),
        r"found \(3, 2, 20\); exchange the last two axes: y\.transpose\(1, 2\)",
    ),
    # one position of a target of twenty, where the hint y[:, None] would not help
    "OnePosition": (variant(forward=lambda self, x: forward(self, x)[:, -1]), r"found \(3, 2\)$"),
    "Tuple": (variant(forward=lambda self, x: (forward(self, x), None)), "output must be one tensor, found tuple"),
    "WrongType": (
        variant(forward=lambda self, x: forward(self, x).to({4: torch.float64, 8: torch.float32}[x.itemsize])),
        "output must be of type torch.float",
    ),
    "Integers": (
        variant(forward=lambda self, x: forward(self, x).long()),
        "output must hold floating-point values, found torch.int64",
    ),
    "Elsewhere": (variant(forward=lambda self, x: forward(self, x).to("meta")), "output must be on cpu, found meta"),
    "ShortInTraining": (
        variant(forward=lambda self, x: forward(self, x)[:, -1 if self.training else 0 :]),
        r"output in training mode must have shape .* = \(3, 20, 2\), found \(3, 1, 2\)",
    ),
    "ShortInEvaluation": (
        variant(forward=lambda self, x: forward(self, x)[:, 0 if self.training else -1 :]),
        r"output must have shape .* = \(3, 20, 2\), found \(3, 1, 2\)",
    ),
    "NotANumber": (
        variant(forward=lambda self, x: forward(self, x).masked_fill((torch.arange(20) == 7)[:, None], -torch.inf)),
        "not finite, first at row 0, output position 7, channel 0",
    ),
    "Raises": (
        variant(forward=failing(ValueError("too\nbad"))),
        r"fails on a real input, float\d\d of shape \(3, 20, 3\): ValueError: too bad",
    ),
    "Random": (Random, "the same input gives another output in evaluation mode: by .* most at row"),
    "Remembers": (Remembers, "the same input gives another output"),
    "BatchStatistics": (
        BatchStatistics,
        "depends on the other rows: by .* of its scale .*; axis 0 is the batch: sums, means and recurrences",
    ),
    "OneRow": (
        variant(forward=lambda self, x: forward(self, x).view(3, -1, 2)),
        "fails on one row, but not on 3 rows: RuntimeError: ",
    ),
    "BatchSize": (
        variant(forward=lambda self, x: forward(self, x) * len(x)),
        r"depends on the number of rows: by 6\.7e-01 of its scale",
    ),
    "Ahead": (
        lambda: Conv(ahead=1),
        "not causal: outputs up to input position 0 change .* most at row 0, output position 0, channel",
    ),
    "FutureMean": (
        variant(forward=lambda self, x: forward(self, x) + 1e-3 * x.mean((1, 2), keepdim=True)),
        "not causal: outputs up to input position 0 change",
    ),
    # sees the rest of its own chunk of 5 positions: causal from chunk to chunk only
    "LeaksInsideChunks": (
        variant(
            forward=lambda self, x: (
                forward(self, x) + x.unflatten(1, (4, 5)).mean((2, 3)).repeat_interleave(5, 1)[..., None]
            )
        ),
        "not causal",
    ),
    "Writes": (
        variant(forward=lambda self, x: forward(self, x.mul_(0.5))),
        "writes to its input, first at row 0, position 0, channel 0",
    ),
    "WritesInTraining": (
        variant(forward=lambda self, x: forward(self, x.mul_(0.5) if self.training else x)),
        "writes to its input in training mode",
    ),
    "FailsInTraining": (
        variant(forward=lambda self, x: (no_training if self.training else forward)(self, x)),
        "fails in training mode: RuntimeError: no training here",
    ),
    "AheadInTraining": (
        variant(forward=lambda self, x: forward(self, x) + self.training * x.mean(1, keepdim=True)[..., :2]),
        "not causal in training mode: outputs up to input position 0 change",
    ),
    "Dead": (Dead, r"no gradient reaches skip \(use it in forward, or name it in check_model"),
    "Detached": (variant(forward=lambda self, x: forward(self, x).detach()), "the output is cut off"),
    "Flat": (variant(forward=lambda self, x: forward(self, x) * 0 + 1), "the gradient is zero in every parameter"),
    "RemembersInTraining": (
        RemembersInTraining,
        "another output after another batch: by .*; a resumed run restores only parameters and buffers",
    ),
    # sqrt has no finite slope at 0, here of one value
    "WildGradient": (
        variant(forward=lambda self, x: forward(self, x) + (self.conv.bias - self.conv.bias.detach()).abs()[:1].sqrt()),
        "gradients are not finite in conv.bias",
    ),
    "LossOfWrongShape": (
        variant(extra_losses=lambda self: {"usage": self.conv.bias}),
        r"extra_losses of the model: usage must be a real scalar tensor on cpu, found .*, \(2,\) on cpu",
    ),
    "LossOfNoTensor": (
        variant(extra_losses=lambda _: {"usage": 1.0}),
        "extra_losses of the model: usage must be a scalar tensor, found 1.0",
    ),
    "LossIsList": (
        variant(extra_losses=lambda self: [("usage", self.conv.bias.sum())]),
        "extra_losses of the model must return a dictionary by name, found list",
    ),
    "LossOfIntegers": (
        variant(extra_losses=lambda _: {"usage": torch.tensor(3)}),
        "usage must be a real scalar tensor on cpu, found torch.int64",
    ),
    "LossElsewhere": (
        variant(extra_losses=lambda _: {"usage": torch.zeros((), device="meta")}),
        "usage must be a real scalar tensor on cpu, found .* on meta",
    ),
    "LossNaN": (LossNaN, "extra_losses of the model: usage must be finite, found nan"),
    "DiagnosticTensor": (
        variant(diagnostics=lambda _: {"rate": torch.ones(2)}),
        "diagnostics of the model: rate must be numbers",
    ),
    "DiagnosticNaN": (
        variant(diagnostics=lambda _: {"rate": [0.5, float("nan")]}),
        r"diagnostics of model: rate must be finite, found \[0.5, nan\]",
    ),
    "NoDictionary": (variant(diagnostics=lambda _: None), "diagnostics of the model must return a dictionary"),
    "OptionsOfOthers": (
        variant(parameter_options=lambda _: {"gone.weight": {"weight_decay": 0.0}}),
        "parameter_options of the model names 'gone.weight', which it does not have",
    ),
    "UnknownOption": (
        variant(parameter_options=lambda _: {"conv.bias": {"wd": 0.0}}),
        "parameter_options of the model may set lr, lr_factor, weight_decay of conv.bias, found {'wd': 0.0}",
    ),
    "FailsWithMask": (
        variant(forward=lambda self, x, mask=None: forward(self, x if mask is None else x * mask)),
        r"fails with a padding mask, bool of shape \(3, 20\): RuntimeError: ",
    ),
    "NaNWithMask": (
        variant(forward=lambda self, x, mask=None: forward(self, x) / (1 if mask is None else mask[..., None])),
        "output is not finite with a padding mask",
    ),
    "InvertedMask": (
        variant(
            forward=lambda self, x, mask=None: forward(self, x if mask is None else x.masked_fill(mask[..., None], 0))
        ),
        "a mask that is True everywhere changes the output: by .*; a mask is True at valid positions",
    ),
    "Packs": (Packs, r"output with a padding mask, .* must have shape .* = \(3, 20, 2\), found \(3, 19, 2\)"),
    "EmptyChunk": (EmptyChunk, "output is not finite with a padding mask, .* row 2, output position 10, "),
    "StreamsWrong": (
        StreamsWrong,
        "step, one position after the other, gives other outputs than forward: by .* most at row",
    ),
    "RoundsState": (
        RoundsState,
        "step, one position after the other, gives other outputs than forward: by .* of its scale",
    ),
    "StreamsMisshapen": (
        variant(Streams, step=lambda self, x, state: (Streams.step(self, x, state)[0][:, :1], state)),
        r"step must return an output of shape \(batch, target width\) = \(3, 2\), found \(3, 1\)",
    ),
    "StreamNaN": (
        variant(Streams, step=lambda self, x, state: (Streams.step(self, x, state)[0] * float("nan"), state)),
        "step gives outputs that are not finite, first at row 0, output position 0",
    ),
    "StreamFails": (
        variant(Streams, step=failing(IndexError("state is full"))),
        "step fails at position 0: IndexError: state is full",
    ),
    "StreamRefuses": (StreamRefuses, "step fails at position 4: state is full"),
    "NoStart": (
        variant(step=lambda _, x, state: (x, state)),
        r"step fails at position 0: TypeError: .* has step only: a streaming form is initial_state\(batch\) and step",
    ),
}
"""By name: what makes the model, and what the check says."""

NOT_STORED: list[tuple[Callable[[], nn.Module], str]] = [
    (Unregistered, "loads the stored state gives other outputs: by .*; register every tensor that it depends on"),
    (NotReloaded, "its state cannot be loaded into a new model, as a resumed run does: .*seen.*; make all"),
]
"""What only a model that is built twice shows."""
