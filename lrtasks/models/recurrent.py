"""Shared parts of the recurrent models: the stack of blocks around a mixer, initial weights, and weight decay.

A layer is a residual block ``x + mixer(norm(x))`` and, with ``mlp``, a second residual block with a gated feed-forward
map. All these models are causal. A new model subclasses :class:`RecurrentConfig` and names its ``layer_class``.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from lrtasks.config import parameter
from lrtasks.errors import UsageError
from lrtasks.models.base import Backbone, ModelConfig, ResidualBlock
from lrtasks.models.ops.layers import CONVOLUTIONS, GatedFeedForward, Portrait, Recurrent, check_canon
from lrtasks.spec import Spec


class RecurrentLayer(Recurrent):
    """The mixer of one layer.

    ``out_name`` is the name of the map back to the residual stream, whose initial weights are smaller in deeper stacks;
    empty for none. ``shown`` holds the gates of the last forward pass in evaluation mode, by name (:meth:`show`).
    """

    out_name: ClassVar[str] = ""

    def __init__(self) -> None:
        super().__init__()
        self.shown: dict[str, Tensor] = {}

    def show(self, **gates: Tensor | None) -> None:
        """In evaluation mode, keep the gates ``(batch, length, ...)`` of the first sample.

        The name of a logarithm begins with ``log_``. Gates that are None are skipped. Inputs of a single position, as
        in streaming, are not kept.
        """
        given = {name: gate for name, gate in gates.items() if gate is not None}
        if not self.training and all(gate.shape[1] > 1 for gate in given.values()):
            self.shown = {name: gate[0].detach().clone() for name, gate in given.items()}

    def portraits(self) -> list[Portrait]:
        """Return two figures per kept gate: statistics of each head or channel, and the values by position."""
        figures = []
        for name, gate in self.shown.items():
            title = name.removeprefix("log_").replace("_", " ")
            gate = (gate.double().exp() if name.startswith("log_") else gate.double()).flatten(1).mT
            gate = gate[gate.mean(1).argsort()].cpu()
            lines = {"mean": gate.mean(1).numpy(), "smallest": gate.amin(1).numpy(), "largest": gate.amax(1).numpy()}
            figures.append(Portrait(title, "lines", lines, "head or channel, sorted by its mean", title))
            image = {title: gate.numpy()}
            figures.append(Portrait(f"{title} by position, sample 0", "image", image, "position", "head or channel"))
        return figures


class QKVLayer(RecurrentLayer):
    """A mixer with maps to queries, keys and values, which may pass through short convolutions or canon layers."""

    def __init__(self, d_model: int, queries: int, keys: int, values: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (linear(d_model, width) for width in (queries, keys, values))

    def convolve(self, kind: Literal["silu", "canon", "none"]) -> None:
        """Add a convolution of this kind (:data:`lrtasks.models.ops.layers.CONVOLUTIONS`) to each of q, k and v."""
        sizes = (proj.out_features for proj in (self.q_proj, self.k_proj, self.v_proj))
        self.q_conv1d, self.k_conv1d, self.v_conv1d = map(CONVOLUTIONS[kind], sizes)

    def start_of_convolutions(self, batch: int) -> list[Tensor]:
        """Return the state of the convolutions before the first position."""
        return [conv.initial_state(batch) for conv in (self.q_conv1d, self.k_conv1d, self.v_conv1d)]

    def qkv(self, x: Tensor, before: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return q, k and v of ``x``, and the state of the convolutions after the last position."""
        mixed, after = [], []
        for name, last in zip("qkv", before, strict=True):
            y, last = getattr(self, f"{name}_conv1d").run(getattr(self, f"{name}_proj")(x), last)
            mixed.append(y)
            after.append(last)
        return mixed, after


@dataclass(frozen=True)
class GatedStack(ModelConfig):
    """Layers of a mixer and, with ``mlp``, a feed-forward map gated by ``function``, each in a residual block."""

    function: ClassVar[Literal["silu", "gelu"]] = "silu"

    norm: Literal["layer", "scalar", "scale", "rms", "batch", "none"] = parameter("rms", "normalisation of blocks")
    prenorm: bool = parameter(True, "normalise before mixer and feed-forward map instead of after the residual")
    mlp: bool = parameter(True, "use a gated feed-forward map after each mixer")
    mlp_width: int | None = parameter(None, "feed-forward map's width; none: 2 d_model", at_least=1, at_most=1 << 20)
    canon: str = parameter("", "sites of canon layers, some of the letters ACD; C and D need mlp")

    def feedforward(self, index: int) -> nn.Module:
        """Build the feed-forward map of layer ``index`` (from 0)."""
        width = self.mlp_width or 2 * self.d_model
        return GatedFeedForward(self.d_model, width, self.function, canon="D" in self.canon)

    def build(self, input: Spec, target: Spec, *, causal: bool) -> Backbone:
        model = super().build(input, target, causal=causal)
        shrink_outputs(model)
        # no weight decay for parameters of at most one axis (bias, gain, decay); inner modules have precedence
        spared = {name: {"weight_decay": 0.0} for name, value in model.named_parameters() if value.dim() < 2}
        model.parameter_options = functools.partial(dict, spared)  # type: ignore[assignment]
        return model


@dataclass(frozen=True)
class RecurrentConfig(GatedStack):
    """A stack of one kind of recurrent mixer, which subclasses choose.

    ``layer_class`` makes the mixer from the config. ``sites`` are the sites of canon layers of a stack with
    feed-forward maps.
    """

    layer_class: ClassVar[type[nn.Module]]
    sites: ClassVar[str] = "ACD"

    def canon_sites(self) -> str:
        """Return the sites of canon layers that this stack has: C and D are sites of feed-forward maps."""
        return self.sites if self.mlp else self.sites.replace("CD", "")

    def layer(self, index: int) -> nn.Module:
        """Build the mixer of layer ``index`` (from 0), on ``(batch, length, d_model)``."""
        return self.layer_class(self)

    def blocks(self, input: Spec, causal: bool) -> list[nn.Module]:
        self.require_causal(causal)
        check_canon(self.name, self.canon, self.canon_sites())
        blocks = []
        for index in range(self.layers):
            feedforward = functools.partial(self.feedforward, index) if self.mlp else None
            blocks += self.layer_blocks(self.layer(index), feedforward, self.canon)
        return blocks

    def divided(self, total: int, parts: int, what: str, of: str, at_least: int = 0) -> int:
        """Return ``total / parts``; raise :class:`UsageError` if it is not a whole number, or below ``at_least``.

        Args:
            what: name of ``parts`` in the message.
            of: name of ``total`` in the message.
        """
        if total % parts:
            raise UsageError(f"{self.name}: {what} must divide {of} ({total}) without a remainder, found {parts}")
        if total // parts < at_least:
            limit = f"{of} / {at_least} ({total // at_least})"
            raise UsageError(f"{self.name}: {what} must be at most {limit}, found {parts}")
        return total // parts


@dataclass(frozen=True)
class KernelConfig(RecurrentConfig):
    """A recurrent model whose op has a GPU kernel in flash-linear-attention."""

    op_backend: Literal["auto", "torch", "fla"] = parameter(
        "auto", "recurrence in torch or in flash-linear-attention; auto: the latter on a GPU", later=True
    )


@torch.no_grad()
def shrink_outputs(model: nn.Module) -> None:
    """Divide the weights of each mixer's map back to the stream by sqrt(number of residual blocks).

    The name of the map is the mixer's ``out_name``, or ``out`` if the mixer has none.
    """
    blocks = [module for module in model.modules() if isinstance(module, ResidualBlock)]
    for block in blocks:
        out = getattr(block.mixer, getattr(block.mixer, "out_name", "out"), None)
        if isinstance(out, nn.Linear):
            out.weight /= math.sqrt(len(blocks))


def step_bias(count: int) -> Tensor:
    """Draw initial biases b such that the steps softplus(b) are log-uniform between 0.001 and 0.1."""
    step = torch.empty(count).uniform_(math.log(0.001), math.log(0.1)).exp()
    return step + torch.log(-torch.expm1(-step))


def log_draws(count: int, low: float, high: float) -> Tensor:
    """Return the logarithms of uniform draws between ``low`` and ``high``."""
    return torch.empty(count).uniform_(low, high).log()


def linear(inputs: int, outputs: int) -> nn.Linear:
    """Build a linear map without bias."""
    return nn.Linear(inputs, outputs, bias=False)


def state_zeros(like: Tensor, *shape: int) -> Tensor:
    """Return zeros of this shape, in float32 or higher precision, on the device of ``like``."""
    return torch.zeros(shape, dtype=torch.promote_types(like.dtype, torch.float32), device=like.device)
