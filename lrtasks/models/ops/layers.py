"""Parts that many models share: precision, padding, layers with a state, norms, short convolutions, feed-forward maps.

Short convolutions are causal, one per channel: ``y_t = sum_j w[c, j] x_(t-W+1+j)``; the last tap multiplies the current
input. Mamba, the GLA family, xLSTM and Griffin use them before their mixers (W = 4). A canon layer (Allen-Zhu,
arXiv:2512.17351) is a short convolution with a residual connection.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lrtasks.errors import UsageError

WEIGHT_STD = 0.02
"""Initial standard deviation of linear maps in MEGA, the models that build on it, and the Transformer."""

P = ParamSpec("P")
T = TypeVar("T")


def full_precision(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate ``function`` to run without autocast, with half-precision tensor arguments converted to float32."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> T:
        device = next(value.device for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        with torch.autocast(device.type, enabled=False):
            promoted = [_promoted(value) for value in args]
            return function(*promoted, **{name: _promoted(value) for name, value in kwargs.items()})

    return run


def _promoted(value: Any) -> Any:
    return at_least_float32(value) if isinstance(value, Tensor) and value.is_floating_point() else value


def at_least_float32(x: Tensor) -> Tensor:
    """Convert to float32, or, for complex numbers, to parts in float32; a higher precision stays."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def step_size(raw: Tensor, bias: Tensor) -> Tensor:
    """Return ``softplus(raw + bias)``, the step of a state space, in float32 at least."""
    return F.softplus(at_least_float32(raw) + at_least_float32(bias))


def hide(x: Tensor, mask: Tensor | None, value: float = 0.0) -> Tensor:
    """Set ``x``, ``(batch, length, ...)``, to ``value`` at padding, where ``mask``, ``(batch, length)``, is False."""
    if mask is None:
        return x
    return x.masked_fill(~mask.view(*mask.shape, *(1,) * (x.dim() - 2)), value)


def require_causal(causal: bool) -> None:
    """Raise :class:`UsageError` for a module that is not causal: it has no streaming form."""
    if not causal:
        raise UsageError("a bidirectional model has no streaming form; build it with causal=True")


@dataclass(frozen=True)
class Portrait:
    """One figure as data, which a module's ``portraits()`` returns; ``lrtasks analyze`` draws it.

    Attributes:
        title: title of the figure, also the stem of the file name.
        kind: kind of each series: ``"lines"``, y over 0, 1, 2, ...; ``"plane"``, complex numbers, drawn with the unit
            circle; ``"image"``, a matrix; ``"positions"``, a matrix ``(samples, positions)``, drawn as one image per
            sample where positions are pixels; ``"bars"``, one height per label.
        series: arrays by name.
        x_label: meaning of the horizontal axis.
        y_label: meaning of the vertical axis.
        log_x: whether the horizontal axis is logarithmic (lines).
        log_y: whether the vertical axis is logarithmic (lines).
        labels: names of the bars.
    """

    title: str
    kind: Literal["lines", "plane", "image", "positions", "bars"]
    series: Mapping[str, np.ndarray]
    x_label: str = ""
    y_label: str = ""
    log_x: bool = False
    log_y: bool = False
    labels: tuple[str, ...] = ()


class Recurrent(nn.Module):
    """A map of ``(batch, length, d_model)`` with a state before and after, for many positions or for one.

    Subclasses implement :meth:`run` and :meth:`initial_state`.
    """

    def run(self, x: Tensor, state: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """Return outputs and the state after the last position; ``mask`` is ``(batch, length)``, False at padding."""
        raise NotImplementedError

    def initial_state(self, batch: int) -> Any:
        """Return the state before the first position."""
        raise NotImplementedError

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return outputs from the initial state on; ``mask`` is ``(batch, length)`` bool, False at padding, or None."""
        return self.run(x, self.initial_state(len(x)), mask)[0]

    def step(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Map one position ``(batch, d_model)``; return its output and the new state."""
        y, state = self.run(x.unsqueeze(1), state)
        return y.squeeze(1), state


class _RMSNormalised(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + eps).rsqrt_()
        y = x * scale
        ctx.save_for_backward(y, scale)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None]:
        y, scale = ctx.saved_tensors
        return torch.addcmul(dy, y, (dy * y).mean(-1, keepdim=True), value=-1).mul_(scale), None


def rms_normalised(x: Tensor, eps: float) -> Tensor:
    """Return ``x / sqrt(mean(x²) + eps)`` over the last axis, with a faster gradient than autograd's."""
    return _RMSNormalised.apply(x, eps)  # type: ignore[no-untyped-call]


class ScalarNorm(nn.Module):
    """``(s / std) (x - mean + m)`` per position with two learned scalars, population std and no epsilon (DLR code)."""

    def __init__(self) -> None:
        super().__init__()
        self.m = nn.Parameter(torch.zeros(1))
        self.s = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        std, mean = torch.std_mean(x, dim=-1, correction=0, keepdim=True)
        return (self.s / std) * (x - mean + self.m)


class ScaleNorm(nn.Module):
    """``g x / sqrt(mean(x²) + 1e-5)`` with a learned g: a scalar (SeqBoat code), or one number per channel (RMS norm).

    Args:
        gains: 1, or the number of channels.
    """

    def __init__(self, gains: int = 1) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(gains))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * rms_normalised(x, 1e-5)


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation per channel over batch and time; not causal in training.

    Raises:
        UsageError: in training on one sequence with one position, which has no variance.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.shape[:-1].numel() == 1:
            raise UsageError("batch norm needs more than one row or position in training, found one of each")
        return super().forward(x.flatten(0, -2)).view_as(x)


NORMS: dict[str, Callable[[int], nn.Module]] = {
    "layer": lambda d_model: nn.LayerNorm(d_model, eps=1e-5),
    "scalar": lambda _: ScalarNorm(),
    "scale": lambda _: ScaleNorm(),
    "rms": lambda d_model: ScaleNorm(d_model),
    "batch": lambda d_model: BatchNorm(d_model, eps=1e-5, momentum=0.1),
    "none": lambda _: nn.Identity(),
}
"""Builders of normalisations over features, by name; each takes the number of features."""


@full_precision
def l2_normalised(x: Tensor) -> Tensor:
    """Return ``x / sqrt(sum(x²) + 1e-6)`` over the last axis, in float32 at least (eps of flash-linear-attention)."""
    width = x.shape[-1]
    return rms_normalised(x, 1e-6 / width) / math.sqrt(width)


class GatedRMSNorm(nn.Module):
    """``weight x / sqrt(mean(x²) + 1e-5)`` over the last axis, in float32 at least, optionally with a gate.

    Args:
        width: size of the last axis.
        gate: activation function of the gate, ``silu`` or ``sigmoid``.
        gate_first: apply the gate before the normalisation (Mamba-2) instead of after it (the GLA family).
        groups: divide the last axis into this many equal parts and normalise each part separately.
    """

    def __init__(
        self, width: int, *, gate: Literal["silu", "sigmoid"] = "silu", gate_first: bool = False, groups: int = 1
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.gate, self.gate_first, self.groups = gate, gate_first, groups

    def forward(self, x: Tensor, gate: Tensor | None = None) -> Tensor:
        """Normalise ``x``, ``(..., width)``, with an optional ``gate`` of the same shape.

        The result has the type of ``gate``, or the type of the weight if there is no gate.
        """
        if gate is None:
            return self._normalised(x).to(self.weight.dtype)
        opened = F.silu(gate) if self.gate == "silu" else torch.sigmoid(gate)
        y = self._normalised(x * opened) if self.gate_first else self._normalised(x) * opened
        return y.to(gate.dtype)

    @full_precision
    def _normalised(self, x: Tensor) -> Tensor:
        x, weight = (torch.unflatten(value, -1, (self.groups, -1)) for value in (x, self.weight))
        return (weight * rms_normalised(x, 1e-5)).flatten(-2)


def normal_(tensor: Tensor, std: float, *, truncated: bool) -> Tensor:
    """Fill with normal draws of standard deviation ``std``, truncated at two standard deviations if ``truncated``."""
    if truncated:
        return nn.init.trunc_normal_(tensor, std=std, a=-2 * std, b=2 * std)
    return nn.init.normal_(tensor, std=std)


def linear(inputs: int, outputs: int, *, truncated: bool) -> nn.Linear:
    """Build a linear map: normal weights of standard deviation 0.02 (cut at 0.04 if ``truncated``) and zero bias."""
    layer = nn.Linear(inputs, outputs)
    normal_(layer.weight, WEIGHT_STD, truncated=truncated)
    nn.init.zeros_(layer.bias)
    return layer


class ShortConv(Recurrent, nn.Conv1d):
    """A short causal convolution per channel on ``(batch, length, channels)``, with torch's default initialisation.

    Args:
        channels: number of channels C.
        width: number of taps W.
        bias: add a learned number per channel.
        silu: apply SiLU to the result.
        residual: add the input to the result.
    """

    def __init__(
        self, channels: int, width: int = 4, *, bias: bool = False, silu: bool = True, residual: bool = False
    ) -> None:
        super().__init__(channels, channels, width, groups=channels, bias=bias)
        self.silu, self.residual = silu, residual

    def parameter_options(self) -> dict[str, dict[str, Any]]:
        return {name: {"weight_decay": 0.0} for name, _ in self.named_parameters()}

    def initial_state(self, batch: int) -> Tensor:
        """Return zeros for the last W - 1 inputs, ``(batch, W - 1, channels)``."""
        return self.weight.new_zeros(batch, self.kernel_size[0] - 1, self.in_channels)

    def run(self, x: Tensor, state: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        x = hide(x, mask)
        window = torch.cat((state.to(x.dtype), x), 1)
        if x.shape[1] == 1:  # faster than a convolution
            y = (window * self.weight.squeeze(1).mT).sum(1, keepdim=True)
        else:
            # conv2d on an image of height 1 with channels last in memory: two to three times faster on a CPU than
            # conv1d; the result has the same layout, which fast attention needs
            image = window.mT.unsqueeze(2)
            y = F.conv2d(image, self.weight.unsqueeze(2), groups=self.groups).squeeze(2).mT
        if self.bias is not None:  # not in conv2d, whose gradient of the bias is slow on a CPU
            y = y + self.bias
        y = F.silu(y) if self.silu else y
        return x + y if self.residual else y, window[:, x.shape[1] :]


def canon_layer(channels: int) -> ShortConv:
    """Build the layer ``x + conv(x)`` with four taps per channel on ``(batch, length, channels)``."""
    return ShortConv(channels, silu=False, residual=True)


class NoConv(Recurrent):
    """The identity, in place of a :class:`ShortConv` for any number of channels; its state is None."""

    def __init__(self, _channels: int = 0) -> None:
        super().__init__()

    def initial_state(self, batch: int) -> Any:
        return None

    def run(self, x: Tensor, state: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        return x, state


CONVOLUTIONS: dict[str, Callable[[int], Recurrent]] = {"silu": ShortConv, "canon": canon_layer, "none": NoConv}
"""Builders from a number of channels: a short convolution with SiLU, a canon layer, the identity."""

SITES = "ABCD"
"""Possible places of canon layers: after the norm before the mixer (A); on queries, keys and values of attention (B);
after the norm before the feed-forward map (C); inside the feed-forward map, before its nonlinearity (D)."""


def check_canon(name: str, sites: str, allowed: str = SITES) -> None:
    """Raise :class:`UsageError` unless ``sites`` contains only letters in ``allowed``, each at most once."""
    if len(set(sites)) < len(sites) or not set(sites) <= set(allowed):
        raise UsageError(f"{name}: canon must be some of the letters {allowed}, each at most once, found {sites!r}")


class FeedForward(Recurrent):
    """``W_2 dropout(f(W_1 x + b_1)) + b_2`` at each position (Vaswani et al., arXiv:1706.03762, section 3.3).

    Args:
        d_model: width of input and output, ``(..., d_model)``.
        width: hidden width.
        function: activation function f.
        dropout: dropout rate of the hidden features.
        make_linear: builds a linear map from its two widths.
        canon: apply a canon layer before f. Its last inputs are the state; without it, there is no state.
    """

    def __init__(
        self,
        d_model: int,
        width: int,
        function: Callable[[Tensor], Tensor] = F.gelu,
        dropout: float = 0.0,
        make_linear: Callable[[int, int], nn.Linear] = nn.Linear,
        *,
        canon: bool = False,
    ) -> None:
        super().__init__()
        self.function = function
        self.hidden = make_linear(d_model, width)
        self.out = make_linear(width, d_model)
        self.dropout = nn.Dropout(dropout)
        self.canon = canon_layer(width) if canon else NoConv()

    def initial_state(self, batch: int) -> Tensor | None:
        return self.canon.initial_state(batch)

    def run(self, x: Tensor, state: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        hidden, state = self.canon.run(self.hidden(x), state, mask)
        return self.out(self.dropout(self.function(hidden))), state


class GatedFeedForward(Recurrent):
    """``W_down (f(W_gate x) * W_up x)`` at each position (SwiGLU for f = SiLU; Shazeer, arXiv:2002.05202).

    Args:
        d_model: width of input and output, ``(..., d_model)``.
        width: hidden width.
        function: activation function f, ``silu`` or ``gelu``.
        canon: apply a canon layer to ``W_gate x`` and ``W_up x``, as in :class:`FeedForward`.
    """

    out_name = "down_proj"

    def __init__(
        self, d_model: int, width: int, function: Literal["silu", "gelu"] = "silu", *, canon: bool = False
    ) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(d_model, width, bias=False)
        self.up_proj = nn.Linear(d_model, width, bias=False)
        self.down_proj = nn.Linear(width, d_model, bias=False)
        self.function = F.silu if function == "silu" else functools.partial(F.gelu, approximate="tanh")
        self.canon = canon_layer(2 * width) if canon else NoConv()

    def initial_state(self, batch: int) -> Tensor | None:
        return self.canon.initial_state(batch)

    def run(self, x: Tensor, state: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        gate, up = self.gate_proj(x), self.up_proj(x)
        if isinstance(self.canon, ShortConv):
            both, state = self.canon.run(torch.cat((gate, up), -1), state, mask)
            gate, up = both.chunk(2, -1)
        return self.down_proj(self.function(gate) * up), state


def silu_feedforward(d_model: int, width: int, dropout: float = 0.0, *, truncated: bool) -> FeedForward:
    """Build the feed-forward map of MEGA, with SiLU and with weights from :func:`linear`."""
    return FeedForward(d_model, width, F.silu, dropout, functools.partial(linear, truncated=truncated))
