"""Inputs on which outputs must not depend: the future and padding, even with large inputs or NaN in the padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from parity import gap
from torch import Tensor, nn

from lrtasks.errors import UsageError
from lrtasks.models import names, registry
from lrtasks.models.base import Backbone
from lrtasks.models.dlr import DLR, DLRKernel
from lrtasks.models.focus import Focus
from lrtasks.models.hyena import Hyena, HyenaOperator
from lrtasks.models.mega import EMAKernel
from lrtasks.models.ops.attention import MultiHeadAttention, attend
from lrtasks.models.ops.convolution import SSM, LongConvLayer
from lrtasks.models.ops.quantised_attention import attend_quantised
from lrtasks.models.ops.scoped_attention import AttentionFunction, Scope
from lrtasks.models.ops.scoped_attention import attend as attend_in_scope
from lrtasks.spec import Spec

SMALL = {"d_model": 8, "layers": 2, "d_state": 4, "heads": 2, "chunk": 8, "filter_width": 8, "window": 6, "codebook": 5}
LENGTH, CUT = 32, 20
HYBRIDS = ("focus", "focus-h", "mega", "mega-chunk", "seqboat", "seqboat-full", "seqboat-local", "longvq")
FUNCTIONS: tuple[AttentionFunction, ...] = ("softmax", "relu2", "laplace")


def built(name: str, causal: bool, pooled: bool = False, **settings: Any) -> Backbone:
    """A small model in double precision and evaluation mode, its weights large enough for everything to matter."""
    cls = registry.get(name)
    own = {key: value for key, value in SMALL.items() if key in cls.parameter_names()}
    if name == "hybrid":
        own["layers"] = "gated-deltanet:1,attention:1"
    settings = {**own, **settings}
    if name == "seqboat-full":
        settings["window"] = None
    target = Spec("real", 1, 2, pooled=True) if pooled else Spec("real", LENGTH, 2)
    torch.manual_seed(0)
    try:
        model = cls.make(**settings).build(Spec("real", LENGTH, 3), target, causal=causal).double().eval()
    except UsageError as error:
        if causal or "causal" not in str(error):
            raise
        pytest.skip(str(error))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def padding() -> Tensor:
    """At the end, in the middle, at the start, and everywhere."""
    at = torch.arange(LENGTH)
    return torch.stack([at < CUT, (at < 5) | (at > 11), at > 9, at < 0])


def signal(scale: float = 1.0) -> Tensor:
    return scale * torch.randn(4, LENGTH, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def settings_of(name: str) -> list[dict[str, Any]]:
    if name.startswith("focus"):
        return [{}]
    other = {"qk_norm": False} if name == "longvq" else {}  # normalised keys bound the scores
    return [{"attention": function, **other} for function in FUNCTIONS]


@pytest.mark.parametrize("scale", [1e5, 1e7])
@pytest.mark.parametrize(("name", "settings"), [(name, settings) for name in HYBRIDS for settings in settings_of(name)])
def test_large_inputs_leak_neither_future_nor_padding(name: str, settings: dict[str, Any], scale: float) -> None:
    """Scores far above any finite mask: later inputs and padding still change no output."""
    model, x = built(name, causal=True, **settings), signal(scale)
    later = torch.where(torch.arange(LENGTH).unsqueeze(1) < CUT, x, -7 * x.flip(0))
    with torch.no_grad():
        assert gap(model(later)[:, :CUT], model(x)[:, :CUT]) < 1e-8
        mask = padding()
        for each in (model, built(name, causal=False, **settings)):
            other = torch.where(mask.unsqueeze(-1), x, -7 * x.flip(0))
            assert gap(each(other, mask)[mask], each(x, mask)[mask]) < 1e-8


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("name", names())
def test_nan_in_padding_reaches_nothing(name: str, pooled: bool, causal: bool) -> None:
    """Outputs at valid positions and all gradients are those of padding with zeros."""
    model, mask, x = built(name, causal, pooled).train(), padding()[:3], signal()[:3]
    state = {key: value.clone() for key, value in model.state_dict().items()}
    results = []
    for filler in (0.0, torch.nan):
        model.load_state_dict(state)  # a codebook starts in the first training call
        model.zero_grad()
        torch.manual_seed(2)
        y = model(torch.where(mask.unsqueeze(-1), x, filler), mask)
        found = y if pooled else y[mask]
        found.square().sum().backward()
        results.append((found.detach(), {key: value.grad for key, value in model.named_parameters()}))
    (wanted, gradients), (found, found_gradients) = results
    assert found.isfinite().all() and gap(found, wanted) < 1e-12
    for key, gradient in gradients.items():
        assert (gradient is None) == (found_gradients[key] is None)
        assert gradient is None or torch.allclose(found_gradients[key], gradient, rtol=0, atol=1e-9), key


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", names())
def test_padding_at_the_end_gives_what_the_shorter_sequence_gives(name: str, causal: bool) -> None:
    model, x, mask = built(name, causal), signal(), (torch.arange(LENGTH) < CUT).expand(4, -1)
    with torch.no_grad():
        assert gap(model(x, mask)[:, :CUT], model(x[:, :CUT])) < 1e-9


def mixers(causal: bool) -> dict[str, nn.Module]:
    directions = 1 if causal else 2
    found: dict[str, nn.Module] = {
        "attention": MultiHeadAttention(8, 2, causal=causal),
        "local": MultiHeadAttention(8, 2, causal=causal, chunk=5),
        "convolution": LongConvLayer(
            DLRKernel(DLR(d_model=8, d_state=4, dt_min=1e-2, dt_max=1e-1), directions), 8, LENGTH, None, False
        ),
        "ssm": SSM(EMAKernel(8, 4, directions), 8, LENGTH),
    }
    if causal:
        found["hyena"] = HyenaOperator(Hyena(d_model=8, filter_width=8), LENGTH)
    (found["focus"],) = Focus(d_model=8, chunk=8).blocks(Spec("real", LENGTH, 1), causal)
    for name in ("mega", "seqboat", "longvq"):
        settings = {key: value for key, value in SMALL.items() if key in registry.get(name).parameter_names()}
        found[name] = registry.get(name).make(**{**settings, "layers": 1}).blocks(Spec("real", LENGTH, 1), causal)[0]
    return found


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", mixers(True))
def test_nan_in_padding_reaches_no_valid_position_of_a_mixer(name: str, causal: bool) -> None:
    """Also where a mixer gets it directly, without an encoder that removes it."""
    torch.manual_seed(0)
    if name not in mixers(causal):
        pytest.skip("causal only")
    mixer, mask = mixers(causal)[name].double().eval(), padding()[:3]
    x = torch.randn(3, LENGTH, 8, dtype=torch.float64)
    with torch.no_grad():
        wanted = mixer(torch.where(mask.unsqueeze(-1), x, 0.0), mask)[mask]
        assert gap(mixer(torch.where(mask.unsqueeze(-1), x, torch.nan), mask)[mask], wanted) < 1e-12


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("form", ["heads", *FUNCTIONS, *(f"quantised {function}" for function in FUNCTIONS)])
def test_a_query_without_keys_gets_zeros(form: str, causal: bool) -> None:
    """Gradients are finite too, beside rows that see some keys."""
    q, k, v = (torch.randn(2, 12, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    valid = torch.tensor([[False] * 12, [False] * 3 + [True] * 9])
    if form == "heads":
        y = attend(*(x.unsqueeze(1) for x in (q, k, v)), causal=causal, valid=valid)[:, 0]
    elif form.startswith("quantised"):
        function: Any = form.split()[1]
        codes, centres = torch.zeros(2, 12, dtype=torch.int64), torch.ones(1, 4, dtype=torch.float64)
        y = attend_quantised(q, k, v, codes, centres, block=2, causal=causal, function=function, valid=valid)
    else:
        y = attend_in_scope(q, k, v, scope=Scope(causal), function=form, valid=valid)  # type: ignore[arg-type]
    assert not y[0].any() and y[1].any()
    assert not causal or not y[1, :3].any()
    y.square().sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))


@pytest.mark.parametrize("name", ["dlr", "transformer", "mega"])
def test_a_pooled_target_is_read_at_the_last_valid_position(name: str) -> None:
    """With padding at the start, at the end, and in the middle: as the full output there."""
    pooled, full = built(name, causal=True, pooled=True), built(name, causal=True)
    full.load_state_dict(pooled.state_dict())
    mask, x = padding()[:3], signal()[:3]
    last = torch.tensor([CUT - 1, LENGTH - 1, LENGTH - 1])
    with torch.no_grad():
        assert gap(pooled(x, mask)[:, 0], full(x, mask)[torch.arange(3), last]) < 1e-12
        assert gap(pooled(x)[:, 0], full(x)[:, -1]) < 1e-12
