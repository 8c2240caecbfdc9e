"""The recurrent layers: against the arrays of their public code, and their start against the code's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from modern import ARRAYS, arrays, check_outputs, settings
from parity import gap
from torch import Tensor, nn

from lrtasks.models.deltanet import DeltaLayer
from lrtasks.models.gla import GLALayer
from lrtasks.models.mamba2 import Mamba2Layer
from lrtasks.models.xlstm import MLSTMLayer, SLSTMLayer

Settings = dict[str, Any]


def delta_layer(cfg: Settings, **options: Any) -> DeltaLayer:
    width = cfg.get("head_dim", cfg["d_model"] // cfg["heads"])
    options = {"allow_neg_eigval": bool(cfg["neg"]), "value_heads": cfg.get("v_heads"), **options}
    return DeltaLayer(cfg["d_model"], cfg["heads"], width, width * cfg.get("expand_v", 1), **options)


def gla_layer(cfg: Settings, expand_k: float, expand_v: float, **options: Any) -> GLALayer:
    width = cfg["d_model"] // cfg["heads"]
    return GLALayer(cfg["d_model"], cfg["heads"], int(expand_k * width), int(expand_v * width), **options)


def gate(cfg: Settings) -> str:
    return "silu" if cfg.get("gate", True) else "none"


# How to build the layer from the settings of its array.
LAYERS: dict[str, Callable[[Settings], nn.Module]] = {
    "deltanet": lambda cfg: delta_layer(cfg, decay="none", gate=gate(cfg)),
    "gated_deltanet": lambda cfg: delta_layer(cfg, gate=gate(cfg)),
    "gated_deltanet_neg": lambda cfg: delta_layer(cfg, gate=gate(cfg)),
    "gated_deltaproduct": lambda cfg: delta_layer(cfg, n_h=cfg["n_h"], decay="head" if cfg["forget"] else "none"),
    "kda": lambda cfg: delta_layer(cfg, decay="channel", gate="sigmoid", lower_bound=cfg["lower_bound"] or None),
    "mamba2": lambda cfg: Mamba2Layer(
        cfg["d_model"],
        2 * cfg["d_model"],
        cfg["d_state"],
        cfg["headdim"],
        groups=cfg["groups"],
        norm_before_gate=cfg["norm_before_gate"],
    ),
    "gla": lambda cfg: gla_layer(cfg, cfg["expand_k"], 1, rank=cfg["low_rank"], conv=cfg["conv"]),
    "retnet": lambda cfg: gla_layer(cfg, 1, cfg["expand_v"], decay="fixed"),
    "mlstm": lambda cfg: MLSTMLayer(cfg["d_model"], cfg["inner"], cfg["heads"]),
    "slstm": lambda cfg: SLSTMLayer(cfg["d_model"], cfg["heads"], conv=bool(cfg["conv"])),
}
# Names of the source: names here.
RENAMED = {
    "mlstm": {"mlstm_cell.": "", "conv1d.conv": "conv1d"},
    # the source's maps are called after each other's slots
    "slstm": {
        "conv1d.conv": "conv1d",
        "fgate": "input_i",
        "igate": "input_f",
        "zgate": "input_z",
        "ogate": "input_o",
        "slstm_cell._recurrent_kernel_": "R",
        "slstm_cell._bias_": "bias",
    },
}


def own_name(layer: str, name: str) -> str:
    for theirs, ours in RENAMED.get(layer, {}).items():
        name = name.replace(theirs, ours)
    return name


def run_with(module: nn.Module, values: dict[str, Tensor], x: Tensor) -> Tensor:
    """The layer's output with its parameters replaced by ``values``, all of them."""
    own = dict(module.named_parameters())
    assert own.keys() == values.keys()
    shaped = {name: value.view(own[name].shape) for name, value in values.items()}
    y: Tensor = torch.func.functional_call(module, shaped, x)
    with torch.no_grad():
        for parameter_name, value in shaped.items():
            own[parameter_name].copy_(value)
    return y


def streamed(module: Any, x: Tensor) -> Tensor:
    """Output one position after the other."""
    state, outputs = module.initial_state(len(x)), []
    with torch.no_grad():
        for x_t in x.unbind(1):
            y, state = module.step(x_t, state)
            outputs.append(y)
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_equal_their_public_code(name: str, dtype: torch.dtype) -> None:
    """Outputs and gradients of all inputs and parameters; the streaming form gives the same."""
    found = arrays(f"layer_{name}_a")
    module = LAYERS[name](settings(found)).to(dtype)

    def forward(leaves: dict[str, Tensor]) -> tuple[Tensor, ...]:
        values = {own_name(name, full): value for full, value in leaves.items() if f"param_{full}" in found}
        return (run_with(module, values, leaves["x"]),)

    check_outputs(found, forward, dtype)
    if dtype == torch.float64:
        assert gap(streamed(module, torch.from_numpy(found["in_x"])), found["out_y"]) < 1e-9


# Layers as the source makes them: width 64, heads of 16.
STARTS: dict[str, Callable[[], nn.Module]] = {
    "deltanet": lambda: DeltaLayer(64, 4, 16, 16, decay="none", gate="none"),
    "gated_deltanet": lambda: DeltaLayer(64, 4, 16, 32),
    "gated_deltaproduct": lambda: DeltaLayer(64, 4, 16, 16, n_h=2),
    "kda": lambda: DeltaLayer(64, 4, 16, 16, decay="channel", gate="sigmoid"),
    "mamba2": lambda: Mamba2Layer(64, 128, 32, 16),
    "gla": lambda: GLALayer(64, 4, 8, 16),
    "mlstm_4blocks": lambda: MLSTMLayer(64, 128, 4, layers=4),
    "slstm_block0_of4": lambda: SLSTMLayer(64, 4, index=0, layers=4),
    "slstm_block3_of4": lambda: SLSTMLayer(64, 4, index=3, layers=4),
}
SEEDS = 12


@pytest.mark.parametrize("name", STARTS)
def test_layers_start_as_in_their_public_code(name: str) -> None:
    """Twelve fresh layers: constants equal the source's, draws have its mean, deviation, quartiles and range."""
    stats = json.loads((ARRAYS / "init_stats.json").read_text())["layers"][name]
    with np.load(ARRAYS / "init_deterministic.npz") as stored:
        constants = {key.partition("/")[2]: stored[key] for key in stored if key.startswith(f"{name}/")}
    drawn: dict[str, list[Tensor]] = {}
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        for parameter, value in STARTS[name]().named_parameters():
            drawn.setdefault(parameter, []).append(value.detach())
    renamed = {own_name(name.partition("_")[0], full): full for full in stats}
    assert renamed.keys() == drawn.keys()
    for ours, theirs in renamed.items():
        wanted, values = stats[theirs], torch.stack(drawn[ours]).double()
        if wanted["deterministic"]:
            # stored where they differ from each other
            constant = constants.get(theirs, np.full(wanted["shape"], wanted["mean"]))
            assert all(gap(value.flatten(), constant.flatten()) < 1e-6 for value in values), ours
            continue
        assert values[0].numel() == np.prod(wanted["shape"]), ours
        # five standard errors of a difference of two sets of draws, wide enough for quartiles
        allowed = 5 * wanted["std"] * (2 / values.numel()) ** 0.5 * 1.5
        quartiles = torch.quantile(values.flatten(), torch.tensor([0.25, 0.5, 0.75]).double())
        found = [values.mean(), values.std(correction=0), *quartiles]
        for figure, number in zip(found, (wanted["mean"], wanted["std"], *wanted["quartiles"]), strict=True):
            assert abs(float(figure) - number) < allowed, ours
        assert abs(float(values.max() - values.min()) / (wanted["max"] - wanted["min"]) - 1) < 0.45, ours
