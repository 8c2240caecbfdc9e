"""A stack of different mixers: ``layers="gated-deltanet:3,attention:1"`` is three Gated DeltaNets, then attention.

A layer is a residual block ``x + mixer(norm(x))`` and, with ``mlp``, a second residual block with a gated feed-forward
map. A mixer is one of the following:

* a registered model that is made of mixers (``gated-deltanet``, ``dlr``, ``hyena``, ``transformer``): this stack puts
  its mixer into a block;
* a registered model that has its own blocks (``seqboat``, ``mega``, ``longvq``, ``focus``): one layer of this model is
  used unchanged, including its own feed-forward map;
* a user's own mixer or model class, ``mylayer.py:MyMixer``;
* a part that is not a model by itself (:data:`PARTS`): ``attention`` and ``window`` are the attention of
  ``transformer`` over all keys and over a sliding window; ``short-conv`` is a short convolution.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from lrtasks.config import Presets, parameter, parse_assignment
from lrtasks.errors import UsageError, unknown
from lrtasks.models import registry
from lrtasks.models.attention import Transformer, TransformerLike
from lrtasks.models.base import PAPER, SMALL, ModelConfig
from lrtasks.models.factory import own_arguments, stack_of
from lrtasks.models.ops.layers import Recurrent, ShortConv, check_canon
from lrtasks.models.recurrent import GatedStack, RecurrentConfig
from lrtasks.models.rwkv7 import RWKV7, RWKV7Stack
from lrtasks.registry import address_digest, has_own_name, load_object, own_source, source_digest
from lrtasks.spec import Spec


@dataclass(frozen=True)
class Attention(Transformer):
    """The attention of ``transformer``, over all keys."""

    name = "attention"


@dataclass(frozen=True)
class Window(Attention):
    """The attention of ``transformer``, over a sliding window."""

    name = "window"

    window: int | None = parameter(
        64, "a query sees keys fewer than this many positions away", at_least=1, at_most=1 << 24
    )


@dataclass(frozen=True)
class ShortConvolution(ModelConfig):
    """A short convolution followed by SiLU, or, with ``gate``, a gated short convolution without SiLU."""

    name = "short-conv"

    taps: int = parameter(4, "number of taps of the convolution", at_least=1, at_most=1024)
    bias: bool = parameter(False, "add a bias to each channel")
    gate: bool = parameter(False, "gate with a linear map of the input, instead of SiLU")

    def mixer(self, length: int, causal: bool) -> Recurrent:
        self.require_causal(causal)
        if self.gate:
            return GatedShortConv(self.d_model, self.taps, bias=self.bias)
        return ShortConv(self.d_model, self.taps, bias=self.bias)


class GatedShortConv(Recurrent):
    """``conv(x) * (W x + b)`` on ``(batch, length, d_model)``: the first layer of zoology's models for recall."""

    def __init__(self, d_model: int, taps: int, *, bias: bool) -> None:
        super().__init__()
        self.conv = ShortConv(d_model, taps, bias=bias, silu=False)
        self.gate = nn.Linear(d_model, d_model)

    def initial_state(self, batch: int) -> Tensor:
        return self.conv.initial_state(batch)

    def run(self, x: Tensor, state: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        y, state = self.conv.run(x, state, mask)
        return y * self.gate(x), state


PARTS: dict[str, type[ModelConfig]] = {part.name: part for part in (Attention, Window, ShortConvolution)}
"""Mixers that can be used only inside a stack. Here ``attention`` is the attention of ``transformer``, not of the
registered model ``attention``, whose layer has another form."""

LARGEST = 256
"""Largest number of layers in a stack."""


@registry.register("hybrid")
@dataclass(frozen=True)
class Hybrid(GatedStack):
    """A stack of different mixers: layers=gated-deltanet:3,attention:1; NAME.PARAMETER=VALUE configures a mixer.

    Sources: Samba (arXiv:2406.07522), Jamba (arXiv:2403.19887), Griffin (arXiv:2402.19427), Gated DeltaNet
    (arXiv:2412.06464), Kimi Linear (arXiv:2510.26692), Based (arXiv:2402.18668), xLSTM (arXiv:2405.04517), Zoology
    (arXiv:2312.04927), and the canon layers of Allen-Zhu (arXiv:2512.17351).
    """

    version: ClassVar[int] = 2

    presets: ClassVar[Presets] = {
        # "small" and "paper" have no settings of mixers, so that they also fit other choices of layers.
        "small": {**SMALL, "layers": "gated-deltanet:1,attention:1", "mlp_width": 40},
        "samba": {**SMALL, "layers": "mamba:1,window:1"},
        "jamba": {**SMALL, "layers": "mamba:4,attention:1,mamba:3", "hyper": ("attention.positions=nope",)},
        "griffin": {**SMALL, "layers": "rglru:2,window:1"},
        "gated-deltanet-hybrid": {**SMALL, "layers": "gated-deltanet:3,attention:1"},
        "kimi": {**SMALL, "layers": "kda:3,attention:1", "hyper": ("attention.positions=nope",)},
        "olmo-hybrid": {**SMALL, "layers": "gated-deltanet:3,attention:1"}
        | {"hyper": ("gated_deltanet.allow_neg_eigval=true",)},
        "based": {**SMALL, "layers": "linear-attention:1,window:1"}
        | {"hyper": ("linear_attention.feature_dim=16", "linear_attention.feature_map=taylor", "window.window=64")},
        # Only the blocks of the scalar memory (sLSTM) have a feed-forward map.
        "xlstm-7-1": {**SMALL, "layers": "mlstm:7,slstm:1", "mlp": False}
        | {"hyper": ("slstm.mlp=true", "slstm.mlp_width=83")},
        "zoology": {**SMALL, "layers": "short-conv:1,attention:1", "mlp": False}
        | {"hyper": ("short_conv.gate=true", "short_conv.taps=3")},
        "paper": {**PAPER, "layers": "gated-deltanet:3,attention:1"},
    }

    # a string in this class; in other models, the number of equal layers
    layers: str = parameter("gated-deltanet:1,attention:1", "mixers in order, NAME:COUNT with commas")  # type: ignore[assignment]
    n_layers: int | None = parameter(
        None, "number of layers, filled by repeating the pattern; none: the pattern once", at_least=1, at_most=LARGEST
    )
    hyper: tuple[str, ...] = parameter((), "hyper-parameters of the mixers; --set NAME.PARAMETER=VALUE adds to them")
    canon: str = parameter("", "sites of canon layers, some of the letters ABCD")

    @classmethod
    def make(cls, **values: Any) -> Hybrid:
        """Make a config as for every model; ``NAME.PARAMETER`` sets a hyper-parameter of the mixer called NAME."""
        given = {name: value for name, value in values.items() if "." in name}
        own = {name: value for name, value in values.items() if name not in given}
        if given:
            hyper = own.get("hyper", ())
            before = dict(parse_assignment(text) for text in ([hyper] if isinstance(hyper, str) else hyper))
            merged = before | {name.replace("-", "_"): value for name, value in given.items()}
            own["hyper"] = tuple(f"{name}={_text(value)}" for name, value in sorted(merged.items()))
        return super().make(**own)

    def check(self) -> None:
        check_canon(self.name, self.canon)
        names = self.sequence()
        labels = {_label(name): name for name in names}
        for text in self.hyper:
            prefix, dot, bare = parse_assignment(text)[0].partition(".")
            if not dot or not bare:
                raise UsageError(f"{self.name}: hyper must be NAME.PARAMETER=VALUE, found {text!r}")
            if prefix not in labels:
                raise unknown(f"mixer in {text!r}; layers={self.layers} has no", prefix, labels)
        parts = [self._part(name, len(names)) for name in labels.values()]
        sites = "".join(map(self._canon_sites, parts))
        for site in (site for site in self.canon if site not in sites):
            found = f"layers={self.layers}, mlp={str(self.mlp).lower()}"
            raise UsageError(f"{self.name}: no layer has canon site {site}, found {found}")

    def _canon_sites(self, part: ModelConfig) -> str:
        """Return the sites of canon layers in a layer with the mixer ``part``."""
        if isinstance(part, RecurrentConfig):
            return part.canon_sites()
        if type(part).mixer is ModelConfig.mixer:
            return ""
        return "A" + ("CD" if self.mlp else "") + getattr(part, "canon", "")

    def sequence(self) -> list[str]:
        """Return the names of the mixers, one for each layer.

        Raises:
            UsageError: if ``layers`` has a wrong format or more than :data:`LARGEST` layers.
        """
        pattern: list[str] = []
        for entry in self.layers.split(","):
            name, _, count = entry.strip().rpartition(":")
            if not name or not count.isascii() or not count.removeprefix("-").isdigit():
                uncounted = entry.strip() and not count[:1].isdigit() and name not in (*registry.names(), *PARTS)
                counted = f"; write {entry.strip()}:1" if uncounted else ""
                raise UsageError(f"{self.name}: layers must be NAME:COUNT with commas, found {entry!r}{counted}")
            if not 1 <= int(count) <= LARGEST:
                raise UsageError(f"{self.name}: counts in layers must be 1 to {LARGEST}, found {entry!r}")
            pattern += [name] * int(count)
        total = self.n_layers or len(pattern)
        if total > LARGEST:
            raise UsageError(f"{self.name}: at most {LARGEST} layers are allowed, found {total}")
        return list(itertools.islice(itertools.cycle(pattern), total))

    def own_source(self) -> str | None:
        sources = [_source(name) for name in sorted(set(self.sequence()))]
        found = [source for source in sources if source is not None]
        return hashlib.blake2b("".join(found).encode(), digest_size=16).hexdigest() if found else None

    def blocks(self, input: Spec, causal: bool) -> list[nn.Module]:
        names = self.sequence()
        parts = {name: self._part(name, len(names)) for name in names}
        blocks: list[nn.Module] = []
        for index, name in enumerate(names):
            blocks += self._layer(parts[name], index, name not in names[:index], input, causal)
        # later RWKV-7 layers receive the values v of the first RWKV-7 layer
        return [RWKV7Stack(blocks)] if any(isinstance(part, RWKV7) for part in parts.values()) else blocks

    def _layer(self, part: ModelConfig, index: int, first: bool, input: Spec, causal: bool) -> list[nn.Module]:
        """Build the blocks of layer ``index``; ``first``: whether it is the first layer with this mixer."""
        stack: GatedStack = self
        if isinstance(part, RecurrentConfig):
            part.require_causal(causal)
            mixer = part.layer(index, first) if isinstance(part, RWKV7) else part.layer(index)
            stack = part
        elif type(part).mixer is ModelConfig.mixer:
            return part.blocks(input, causal)
        else:
            mixer = part.mixer(input.length, causal)
        if self.canon:
            self.require_causal(causal, "canon")
        feedforward = functools.partial(stack.feedforward, index) if stack.mlp else None
        return part.layer_blocks(mixer, feedforward, self.canon)

    def _part(self, name: str, layers: int) -> ModelConfig:
        """Return the config of the mixer ``name``, with the settings of the stack and the settings in ``hyper``.

        A mixer's config gets the number of layers of the stack, ``layers``, because the initial weights of some mixers
        depend on it. A model with its own blocks gets one layer.
        """
        given = dict(parse_assignment(text) for text in self.hyper)
        own = {key.partition(".")[2]: value for key, value in given.items() if key.partition(".")[0] == _label(name)}
        for taken in ("layers", "d_model", "canon"):
            if taken in own:
                raise UsageError(f"{self.name}: {taken} belongs to the whole stack, found {_label(name)}.{taken}")
        cls = _target(name)
        if isinstance(cls, type) and issubclass(cls, TransformerLike) and "expansion" in own:
            raise UsageError(f"{self.name}: {_label(name)}.expansion has no effect; set mlp_width of the whole stack")
        shared: dict[str, Any] = {key: getattr(self, key) for key in STACK}
        if not (isinstance(cls, type) and issubclass(cls, ModelConfig)):
            taken_by_class = own_arguments(cls)
            shared |= {key: own.pop(key) for key in STACK if key in own and key not in taken_by_class}
            return stack_of(cls, own)(**shared)
        if issubclass(cls, RecurrentConfig):
            sites = "".join(site for site in self.canon if site in cls.sites)
            shared |= {"mlp": self.mlp, "mlp_width": self.mlp_width, "canon": sites}
        elif issubclass(cls, Transformer):
            shared["canon"] = "B" if "B" in self.canon else ""
        blockwise = cls.mixer is ModelConfig.mixer and not issubclass(cls, RecurrentConfig)
        return cls.make(**{**shared, "layers": 1 if blockwise else layers, **own})


STACK = ("d_model", "norm", "prenorm", "dropout", "allow_batch_norm")
"""Parameters that every mixer takes from the stack."""


def _source(name: str) -> str | None:
    """Return the digest of the user's file that defines the mixer ``name``; ``None`` for a mixer of this package."""
    target = _target(name)
    if isinstance(target, type) and issubclass(target, ModelConfig):
        return own_source(target)
    return source_digest(target) if has_own_name(target) else address_digest(name)


def _target(name: str) -> Any:
    """Return the class behind the mixer ``name``: a subclass of :class:`ModelConfig`, or a user's class or function.

    Raises:
        UsageError: for an unknown name, or a hybrid model.
    """
    target: Any
    if name in PARTS:
        target = PARTS[name]
    elif ":" in name:
        target = load_object(name, "mixer")
        if isinstance(target, type) and issubclass(target, ModelConfig):
            target = registry.get(name)
    elif name in registry.names():
        target = registry.get(name)
    else:
        known = {*registry.names(), *PARTS} - {Hybrid.name}
        raise unknown("mixer", name, known, ", ".join([*PARTS, registry.allowed]))
    if isinstance(target, type) and issubclass(target, Hybrid):
        raise UsageError("a hybrid cannot be a layer of a hybrid; write out its layers")
    return target


def _label(name: str) -> str:
    """Return the prefix of a mixer's settings: its name (of an address, the part after ``:``) with ``_`` for ``-``."""
    return name.rpartition(":")[2].replace("-", "_")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=lambda number: number.item())
