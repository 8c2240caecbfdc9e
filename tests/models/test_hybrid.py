"""Stacks of different mixers: reference arrays, composition, settings by prefix, invalid input."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from modern import arrays, check_outputs, settings
from parity import gap
from torch import Tensor, nn

from lrtasks.check.model import check_model
from lrtasks.errors import UsageError
from lrtasks.models import build, registry
from lrtasks.models.base import Backbone, ResidualBlock, state_bytes
from lrtasks.models.factory import model_factory
from lrtasks.models.ops.attention import MultiHeadAttention
from lrtasks.models.ops.layers import ShortConv
from lrtasks.models.recurrent import GatedFeedForward
from lrtasks.models.rwkv7 import RWKV7Layer
from lrtasks.run_config import RunConfig
from lrtasks.spec import Spec
from lrtasks.suite.expand import make_suite

SIGNAL = Spec("real", 37, 3)
STACKS: dict[str, dict[str, Any]] = {
    "gdn2_attention1": {
        "layers": "gated-deltanet:2,attention:1",
        "gated-deltanet.allow_neg_eigval": True,
        "gated-deltanet.expand_v": 1,
        "gated-deltanet.heads": 2,
        "attention.heads": 2,
        "attention.positions": "nope",
    },
    "gla1_window1": {
        "layers": "gla:1,window:1",
        "n_layers": 4,
        "gla.heads": 2,
        "gla.expand_k": 1,
        "gla.rank": 5,
        "window.heads": 2,
        "window.window": 8,
        "window.positions": "nope",
    },
}


def built(layers: str, **hyper: Any) -> Backbone:
    torch.manual_seed(0)
    return build("hybrid", SIGNAL, SIGNAL, d_model=8, layers=layers, **hyper)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", STACKS)
def test_equals_the_arrays(name: str, dtype: torch.dtype) -> None:
    found = arrays(f"stack_{name}_a")
    cfg = settings(found)
    assert STACKS[name]["layers"] == cfg["pattern"]
    model = build("hybrid", SIGNAL, SIGNAL, d_model=16, mlp_width=cfg["mlp"], **STACKS[name]).to(dtype)
    places = {}
    for layer in range(len(model.blocks) // 2):
        mixer = model.blocks[2 * layer].mixer
        for own, _ in mixer.named_parameters() if not isinstance(mixer, MultiHeadAttention) else ():
            places[f"mixers.{layer}.{own}"] = f"blocks.{2 * layer}.mixer.{own}"
        places[f"norm1.{layer}.weight"] = f"blocks.{2 * layer}.norm.gain"
        places[f"norm2.{layer}.weight"] = f"blocks.{2 * layer + 1}.norm.gain"
        for part in ("gate_proj", "up_proj", "down_proj"):
            places[f"mlps.{layer}.{part}.weight"] = f"blocks.{2 * layer + 1}.mixer.{part}.weight"
    places["norm.weight"] = "final_norm.gain"

    def forward(given: dict[str, Tensor]) -> tuple[Tensor]:
        values = {own: given[theirs] for theirs, own in places.items()}
        for layer in range(len(model.blocks) // 2):
            attention = f"mixers.{layer}"
            if isinstance(model.blocks[2 * layer].mixer, MultiHeadAttention):
                maps = torch.cat([given[f"{attention}.{each}_proj.weight"] for each in "qkv"])
                values[f"blocks.{2 * layer}.mixer.qkv.weight"] = maps
                values[f"blocks.{2 * layer}.mixer.qkv.bias"] = torch.zeros(48, dtype=dtype)
                values[f"blocks.{2 * layer}.mixer.out.weight"] = given[f"{attention}.o_proj.weight"]
                values[f"blocks.{2 * layer}.mixer.out.bias"] = torch.zeros(16, dtype=dtype)
        stack = nn.Sequential(*model.blocks, model.final_norm)
        renamed = {
            key.removeprefix("blocks.").replace("final_norm", str(len(stack) - 1)): value
            for key, value in values.items()
        }
        assert renamed.keys() == dict(stack.named_parameters()).keys()
        return (torch.func.functional_call(stack, renamed, (given["x"],)),)

    check_outputs(found, forward, dtype)


OWN = """
import torch
from torch import nn

class MyMixer(nn.Module):
    def __init__(self, d_model, width=3):
        super().__init__()
        self.down, self.up = nn.Linear(d_model, width), nn.Linear(width, d_model)

    def forward(self, x):
        return self.up(self.down(x).cumsum(1))

def whole(input, target):
    return nn.Linear(1, 1)
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "mylayer.py"
    file.write_text(OWN)
    return file


@pytest.mark.parametrize(
    ("layers", "hyper"),
    [
        ("mamba:1,window:1", {"window.heads": 2, "window.window": 5}),
        ("dlr:1,seqboat:1,longvq:1", {"dlr.d_state": 6, "seqboat.window": 5, "longvq.codebook": 7}),
        ("hyena:1,lrtasks.models.attention:Attention:1", {"hyena.filter_width": 8, "Attention.heads": 2}),
        ("rwkv7:1,short-conv:1,rwkv7:1", {"rwkv7.heads": 2, "mlp": False, "short-conv.gate": True}),
        ("short-conv:1,rwkv7:2", {"rwkv7.heads": 2}),
        ("gla:1,rwkv7:2,attention:1", {"canon": "ABCD", "gla.heads": 2, "rwkv7.heads": 2, "attention.heads": 2}),
        ("mlstm:1,slstm:1,lstm:1", {"slstm.mlp": True, "mlp": False, "slstm.heads": 2}),
        ("rglru:1,transformer:1", {"prenorm": False, "norm": "layer", "transformer.positions": "alibi"}),
    ],
)
def test_mixed_stacks_conform(layers: str, hyper: dict[str, Any]) -> None:
    """Causality, padding, streaming as in parallel, and gradients."""
    check_model("hybrid", input=SIGNAL, target=SIGNAL, dtype=torch.float64, d_model=8, layers=layers, **hyper)


def test_a_start_that_depends_on_the_depth_counts_all_layers_of_the_stack() -> None:
    """Standard deviations and biases of the sources count layers of a whole model, not those of one kind."""
    stack = built("mlstm:7,slstm:1", mlp=False, **{"slstm.heads": 1})
    alone = registry.get("slstm").make(d_model=8, layers=8, heads=1).layer(7)
    assert torch.equal(stack.blocks[-1].mixer.bias, alone.bias)
    assert not torch.equal(alone.bias, registry.get("slstm").make(d_model=8, layers=8, heads=1).layer(0).bias)
    std = torch.cat([block.mixer.proj_down.weight.flatten() for block in list(stack.blocks)[:7]]).std().item()
    assert std == pytest.approx(2 / (8 * 8**0.5), rel=0.1)
    rwkv = built("gla:1,rwkv7:2", mlp=False, **{"gla.heads": 2, "rwkv7.heads": 2}).blocks[0].blocks
    assert [layer.mixer.v_lora is None for layer in list(rwkv)[1:]] == [True, False]
    assert [round(layer.mixer.g_norm.weight[0].item(), 4) for layer in list(rwkv)[1:]] == [
        round((number / 3) ** 0.7, 4) for number in (2, 3)
    ]


@pytest.mark.parametrize(
    ("name", "path", "ratio"),
    [("attention", "mixer.out", 2), ("gla", "mixer.o_proj", 2), ("hyena", "mixer.out", 2), ("dlr", "mixer.output", 1)],
)
def test_output_maps_start_divided_by_the_root_of_the_number_of_residual_blocks(
    name: str, path: str, ratio: float
) -> None:
    """Four blocks instead of one; the mixers of long convolutions start as in their own models."""
    one, four = (built(f"{name}:{count}", mlp=False).get_parameter(f"blocks.0.{path}.weight") for count in (1, 4))
    assert gap(ratio * four, one) < 1e-6


def test_a_gated_short_convolution() -> None:
    conv = built("short-conv:1", mlp=False, **{"short-conv.gate": True, "short-conv.taps": 3}).blocks[0].mixer
    x = torch.randn(2, 5, 8)
    padded = nn.functional.pad(x, (0, 0, 2, 0))
    summed = sum(padded[:, tap : tap + 5] * conv.conv.weight[:, 0, tap] for tap in range(3))
    assert torch.allclose(conv(x), summed * (x @ conv.gate.weight.T + conv.gate.bias), atol=1e-6)


def test_a_stack_may_look_ahead_if_its_mixers_do() -> None:
    hyper = {"dlr.d_state": 6, "attention.heads": 2}
    check_model("hybrid", input=SIGNAL, target=SIGNAL, causal=False, d_model=8, layers="dlr:1,attention:1", **hyper)
    with pytest.raises(UsageError, match="gla is a causal model"):
        build("hybrid", SIGNAL, SIGNAL, causal=False, layers="dlr:1,gla:1")
    with pytest.raises(UsageError, match="hybrid with canon is a causal model"):
        build("hybrid", SIGNAL, SIGNAL, causal=False, layers="dlr:1", canon="A")


@pytest.mark.parametrize(
    ("preset", "kinds"),
    [
        ("samba", "MambaLayer MultiHeadAttention"),
        ("jamba", "MambaLayer MambaLayer MambaLayer MambaLayer MultiHeadAttention MambaLayer MambaLayer MambaLayer"),
        ("griffin", "GriffinLayer GriffinLayer MultiHeadAttention"),
        ("gated-deltanet-hybrid", "DeltaLayer DeltaLayer DeltaLayer MultiHeadAttention"),
        ("kimi", "DeltaLayer DeltaLayer DeltaLayer MultiHeadAttention"),
        ("based", "LinearAttentionLayer MultiHeadAttention"),
        ("xlstm-7-1", "MLSTMLayer " * 7 + "SLSTMLayer"),
        ("zoology", "GatedShortConv MultiHeadAttention"),
    ],
)
def test_named_presets(preset: str, kinds: str) -> None:
    model = RunConfig.make("shift", "hybrid", preset=preset).build()
    mixers = [block.mixer for block in model.blocks if isinstance(block, ResidualBlock)]
    found = [mixer for mixer in mixers if not isinstance(mixer, GatedFeedForward)]
    assert [type(mixer).__name__ for mixer in found] == kinds.split()
    maps = {"xlstm-7-1": 1, "zoology": 0}.get(preset, len(found))
    assert len(mixers) - len(found) == maps
    attention = [mixer for mixer in found if isinstance(mixer, MultiHeadAttention)]
    assert all((mixer.window is not None) == (preset in ("samba", "griffin", "based")) for mixer in attention)
    assert all((mixer.positions == "nope") == (preset in ("jamba", "kimi")) for mixer in attention)
    assert preset != "kimi" or all(mixer.decay == "channel" for mixer in found[:3])


def test_the_pattern_repeats() -> None:
    model = built("lstm:2,short-conv:1", n_layers=7, mlp=False)
    found = ["C" if isinstance(block.mixer, ShortConv) else "R" for block in model.blocks]
    assert "".join(found) == "RRCRRCR"


def test_values_of_the_first_rwkv7_layer_pass_other_mixers() -> None:
    model = built("rwkv7:1,attention:1,rwkv7:1", mlp=False, **{"attention.heads": 2, "rwkv7.heads": 2}).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    x = torch.randn(2, 37, 8, dtype=torch.float64)
    first, attention, second = model.blocks[0].blocks
    assert isinstance(first.mixer, RWKV7Layer) and first.mixer.v_lora is None
    start = first.mixer.initial_state(2)
    mixed, _, values = first.mixer.mix(first.norm(x), start, None, None)
    h = attention(x + mixed)
    h = h + second.mixer.mix(second.norm(h), start, None, values)[0]
    assert gap(model.blocks[0](x), h) < 1e-12


def test_state_bytes_are_those_of_the_layers() -> None:
    both = built("gla:1,window:1", mlp=False, **{"window.window": 8})
    layers = ("gla", {}), ("transformer", {"window": 8})
    parts = [build(name, SIGNAL, SIGNAL, d_model=8, layers=1, **hyper) for name, hyper in layers]
    assert state_bytes(both) == sum(state_bytes(part) or 0 for part in parts)


def test_an_own_argument_has_precedence_over_a_parameter_of_the_stack(own: Path) -> None:
    own.write_text(
        OWN.replace("width=3", "width=3, dropout=0.0").replace("()\n", "()\n        self.rate = dropout\n", 1)
    )
    layers = f"{own}:MyMixer:1"
    (block,) = built(layers, **{"mlp": False, "MyMixer.dropout": 0.5}).blocks
    assert (block.mixer.mixer.rate, block.dropout.p) == (0.5, 0)


def test_mixers_of_the_users(own: Path) -> None:
    layers = f"gla:1,{own}:MyMixer:2"
    hyper = {"gla.heads": 2, "MyMixer.width": 5}
    check_model("hybrid", input=SIGNAL, target=SIGNAL, d_model=8, layers=layers, **hyper)
    model = built(layers, **hyper)
    assert [tuple(value.shape) for name, value in model.named_parameters() if "down.weight" in name] == [(5, 8)] * 2
    before = model_factory("hybrid", {"layers": layers}).source
    own.write_text(OWN + "\n# changed\n")
    assert before is not None and model_factory("hybrid", {"layers": layers}).source != before
    with pytest.raises(UsageError, match="cannot be called with"):
        built(layers, **{"MyMixer.widht": 5})
    with pytest.raises(UsageError, match=r"form MIXER\(d_model, ...\)"):
        built(f"{own}:whole:1")


@pytest.mark.parametrize(
    ("hyper", "message"),
    [
        ({"layers": "gla"}, "NAME:COUNT"),
        ({"layers": ""}, "NAME:COUNT"),
        ({"layers": "gla:1,"}, "NAME:COUNT"),
        ({"layers": "gla:two"}, "NAME:COUNT"),
        ({"layers": "gla:1.5"}, "found 'gla:1.5'$"),
        ({"layers": "gla:0"}, "1 to 256"),
        ({"layers": "gla:-1"}, "1 to 256"),
        ({"layers": "gla:257"}, "1 to 256"),
        ({"layers": "gla:200,lstm:200"}, "at most 256"),
        ({"layers": 3}, "layers must be"),
        ({"layers": "gla:1", "n_layers": 0}, "n_layers"),
        ({"layers": "gated-deltanett:1"}, "did you mean 'gated-deltanet'"),
        ({"layers": "hybrid:1"}, "cannot be a layer of a hybrid"),
        ({"layers": "lrtasks.models.hybrid:Hybrid:1"}, "cannot be a layer of a hybrid"),
        ({"layers": "nowhere.py:MyMixer:1"}, "there is no file"),
        ({"layers": "gla:1", "glaa.heads": 2}, "did you mean 'gla'"),
        ({"layers": "gla:1", "gla.haeds": 2}, "did you mean 'heads'"),
        ({"layers": "gla:1", "gla.heads": 5}, "heads must divide"),
        ({"layers": "gla:1", "gla.layers": 2}, "belongs to the whole stack"),
        ({"layers": "gla:1", "hyper": ("heads=2",)}, "NAME.PARAMETER=VALUE"),
        ({"layers": "gla:1", "canon": "X"}, "letters ABCD"),
        ({"layers": "deltanet:1", "canon": "AB"}, "no layer has canon site B"),
        ({"layers": "gla:1", "canon": "D", "mlp": False}, "no layer has canon site D"),
        ({"layers": "attention:1", "canon": "C", "mlp": False}, "no layer has canon site C"),
        ({"layers": "rwkv7:1", "canon": "D", "rwkv7.channel_mixing": True}, "no layer has canon site D"),
        ({"layers": "mega:1", "canon": "A"}, "no layer has canon site A"),
        ({"layers": "attention:1", "attention.expansion": 8}, "set mlp_width of the whole stack"),
    ],
)
def test_bad_input_is_told_in_one_line(hyper: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        registry.get("hybrid").make(**hyper)
    assert "\n" not in str(raised.value)


def test_settings_by_prefix_reach_a_run() -> None:
    """With dashes or underscores, over those of the preset, and the record's parameters make the same model again."""
    settings = {"gated_deltanet.allow_neg_eigval": False, "gated-deltanet.heads": 2}
    run = RunConfig.make("shift", "hybrid", preset="olmo-hybrid", settings=settings)
    wanted = ["gated_deltanet.allow_neg_eigval=false", "gated_deltanet.heads=2"]
    assert run.model.parameters["hyper"] == wanted
    assert not run.build().blocks[0].mixer.allow_neg_eigval and run.build().blocks[0].mixer.heads == 2
    assert model_factory("hybrid", run.model.parameters).parameters == run.model.parameters
    with pytest.raises(UsageError, match=r"transformer has no parameter 'gla\.heads'"):
        RunConfig.make("shift", "transformer", settings={"gla.heads": 2})


def test_layers_make_no_grid_and_other_settings_do() -> None:
    content = {"models": ["hybrid"], "tasks": ["shift"]}
    suite = make_suite(content, {"layers": "gla:2,attention:1", "gla.heads": "2,4"})
    assert [run.model.parameters["hyper"][-1] for run in suite.runs] == ["gla.heads=2", "gla.heads=4"]
    assert {run.model.parameters["layers"] for run in suite.runs} == {"gla:2,attention:1"}
    nested = make_suite({**content, "settings": {"layers": "gla:2", "gla": {"heads": 2}}}, {})
    assert nested.runs[0].model.parameters["hyper"] == ["gla.heads=2"]


def test_the_source_of_a_stack_covers_the_arguments_of_a_partial_and_registered_mixers_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "based.py").write_text(OWN)
    found = []
    for width in (3, 44):
        file = tmp_path / "mine.py"
        file.write_text(
            f"from functools import partial\nfrom based import MyMixer\nOwn = partial(MyMixer, width={width})\n"
        )
        found.append(model_factory("hybrid", {"layers": f"{file}:Own:1,gla:1"}).source)
    assert None not in found and found[0] != found[1]
    assert model_factory("hybrid", {"layers": "gla:1"}).source is None
    other = type("Other", (type(registry.get("attention").make()),), {"__module__": "based"})
    monkeypatch.setitem(registry._classes, "other", other)
    assert model_factory("hybrid", {"layers": "other:1,gla:1"}).source is not None
