"""Focus and Focus-H: which inputs each output may depend on, streaming, ragged sizes."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from focus_models import SMALL, built, signal, spec
from parity import gap
from torch import nn

from lrtasks.check.model import check_model
from lrtasks.errors import UsageError
from lrtasks.models import build, registry
from lrtasks.models.base import state_bytes
from lrtasks.spec import Spec

pytestmark = pytest.mark.filterwarnings("ignore:.*divide the length")


# what an output may see

CAUSAL: list[dict[str, Any]] = [
    {"filtering": "carry", "filters": 2},
    {"signed": True, "bins": 6, "bias": "none"},
    {"norm": "rms", "prenorm": True, "d_k": 4, "d_v": 5},
    {"bins": 37, "filters": 2},
    {"bins": 30, "chunk": None},
]


LEARNED: list[dict[str, Any]] = [
    {"shared": False, "smooth": 3, "pooled": 7, "kernel_length": 9},
    {"shared": False},
    {"shared": False, "smooth": 3, "pooled": 5},
    {"shared": False, "kernel_length": 7, "pooled": 20},
]


@pytest.mark.parametrize(
    ("name", "settings"),
    [*(("focus", settings) for settings in (*CAUSAL, *LEARNED)), *(("focus-h", settings) for settings in CAUSAL)],
)
def test_every_option_conforms(name: str, settings: dict[str, Any]) -> None:
    """Causality, padding, streaming and gradients."""
    small = Spec("real", 37, 2)
    check_model(name, input=small, target=small, dtype=torch.float64, **{**SMALL, "layers": 1, **settings})


def reach(model: nn.Module, position: int, length: int = 48) -> list[int]:
    """Outputs that change with the input at ``position``."""
    x = signal(length, 1)
    other = x.clone()
    other[:, position] += 1.0
    with torch.no_grad():
        change = (model(other) - model(x)).abs().amax((0, 2))
    return (change > 1e-9).nonzero().flatten().tolist()


def test_bins_are_joined_by_coefficients_only() -> None:
    """One layer of four bins of 12 and chunks of 4: an input moves the later outputs of its bin, and later bins."""
    # the first position of a bin has nothing to be filtered with
    assert reach(built(layers=1, chunk=4), 30) == [*range(30, 36), *range(37, 48)]
    # without a hypernetwork nothing crosses an edge of bins, unless filters carry their outputs over it
    assert reach(built("focus-h", layers=1, chunk=4), 30) == list(range(30, 36))
    assert max(reach(built("focus-h", layers=1, chunk=4, filtering="carry"), 30)) > 36
    # the first bin is not filtered: its inputs move the rest of their chunk, then the bins after
    assert reach(built(layers=1, chunk=4), 5) == [5, 6, 7, *range(13, 24), *range(25, 36), *range(37, 48)]


def test_circular_filters_are_refused_where_causality_is_asked_for() -> None:
    with pytest.raises(UsageError, match=r"filtering='circular' is not causal.*allow_non_causal=true"):
        built(filtering="circular")
    for name in ("focus", "focus-h"):
        with pytest.warns(UserWarning, match=f"{name}: filtering='circular' is not causal"):
            model = built(name, filtering="circular", allow_non_causal=True)
        assert model.blocks[0].diagnostics() == {"causal": False}
        assert min(reach(model, 30)) < 30
        with pytest.raises(UsageError, match="no streaming form"):
            model.initial_state(1)
    assert built().blocks[0].diagnostics() == {"causal": True}
    assert built(causal=False, filtering="circular").blocks[0].diagnostics() == {"causal": False}
    forced = {**SMALL, "filtering": "circular", "allow_non_causal": True}
    with pytest.warns(UserWarning, match="mean nothing"), pytest.raises(UsageError, match="not causal: outputs up to"):
        check_model("focus", input=spec(), target=spec(), **forced)


def test_the_conjugate_turns_the_circular_form_around() -> None:
    outputs = [built("focus-h", causal=False, filtering="circular", conjugate=flag)(signal()) for flag in (True, False)]
    assert gap(*outputs) > 1e-3


def test_a_bidirectional_model_sees_its_chunk() -> None:
    """Attention sees all of the query's chunk; filters look back as before, unless they are circular."""
    found = reach(built(layers=1, causal=False), 30)
    assert found == [24, 25, 26, 27, 28, 29, *range(30, 48)]
    # a circular filter's bin is 24 to 35, the chunks there 24 to 31 and 32 to 39
    assert reach(built(layers=1, causal=False, filtering="circular"), 30) == list(range(24, 48))


@pytest.mark.parametrize(("name", "options"), [("focus", {}), ("focus", {"shared": False}), ("focus-h", {})])
@pytest.mark.parametrize("causal", [True, False])
def test_padding_weighs_nothing(name: str, options: dict[str, Any], causal: bool) -> None:
    """What stands in the padding, at the end or elsewhere, moves no other output; nor does its length at the end."""
    model = built(name, causal=causal, filtering="reset" if causal else "circular", **options)
    x, at = signal(), torch.arange(48)
    for mask in (at < 29, (at < 8) | (at > 10)):
        padding = mask.expand(2, -1)
        other = torch.where(mask.unsqueeze(-1), x, 3.0)
        assert gap(model(other, padding)[:, mask], model(x, padding)[:, mask]) < 1e-9
    model = built(name, causal=causal, **options)
    assert gap(model(x, (at < 29).expand(2, -1))[:, :29], model(x[:, :29])) < 1e-9


# streaming


def test_state_does_not_grow() -> None:
    """Two outputs per filter and the keys and values of a chunk; with a hypernetwork the inputs of its convolution."""
    sizes = {length: [state_bytes(built(name, length)) for name in ("focus", "focus-h")] for length in (48, 96)}
    assert sizes[48][1] == sizes[96][1] == 8 * 2 * (6 * 2 + 8 * (3 + 6))
    assert sizes[96][0] - sizes[48][0] == 8 * 6 * 48


@pytest.mark.filterwarnings("default")
def test_ragged_bins_and_chunks_are_padded_and_said_so() -> None:
    with pytest.warns(UserWarning, match="5 bins do not divide the length 48; 5 bins of 10 .* padded by 2"):
        built(bins=5)
    with pytest.warns(UserWarning, match="10 bins do not divide the length 48; 10 bins of 5 .* padded by 2"):
        built(bins=10)
    with pytest.warns(UserWarning, match="20 bins do not divide the length 48; 16 bins of 3 .* padded by 0"):
        built(bins=20)
    with pytest.warns(UserWarning, match="chunk 7 does not divide the length 48; the last chunk is padded by 1"):
        built(chunk=7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        built(bins=4, chunk=8)
        registry.get("focus").make().build(spec(256), spec(256), causal=True)


def test_a_chunk_longer_than_the_built_length_is_kept_for_longer_inputs() -> None:
    spec = Spec("real", 32, 2)
    model = build("focus-h", spec, spec, d_model=8, chunk=64)
    stack: Any = model.blocks[0]
    assert all(layer.attention.scope.chunk == 64 for layer in stack.layers)
