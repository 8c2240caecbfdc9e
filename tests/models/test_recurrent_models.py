"""The recurrent models as a whole: rejected settings, padding, weight decay, state sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from modern import plain_short_conv
from parity import gap
from torch import nn

from lrtasks.budget import Budget
from lrtasks.check.model import check_model
from lrtasks.evaluation.optimiser import make_optimiser
from lrtasks.models import build, names, registry
from lrtasks.models.base import Backbone, offered, state_bytes
from lrtasks.models.linear_attention import elu_features
from lrtasks.models.ops.layers import ShortConv
from lrtasks.models.recurrent import RecurrentConfig
from lrtasks.spec import Spec

RECURRENT = [name for name in names() if issubclass(registry.get(name), RecurrentConfig)]
SIGNAL = Spec("real", 50, 3)
HELD = ("A_log", "D", "Lambda")
"""Decays and skips, which have no weight decay however many axes they have."""


def model(name: str, **hyper: Any) -> Backbone:
    torch.manual_seed(0)
    hyper = {"heads": 2} | hyper if "heads" in registry.get(name).parameter_names() else hyper
    return build(name, SIGNAL, SIGNAL, **{"d_model": 8, "layers": 2, **hyper})


def test_the_inner_width_of_mlstm_is_not_rounded_up_by_the_error_of_a_quotient() -> None:
    assert registry.get("mlstm").make(d_model=56, expand=116 / 56, round_up=4).inner == 116
    assert registry.get("mlstm").make(d_model=56, expand=117 / 56, round_up=4).inner == 120


def test_features_of_negative_keys_keep_their_digits() -> None:
    x = torch.tensor([-18.0, -1.0, 0.0, 2.0])
    assert torch.allclose(elu_features(x), torch.tensor([math.exp(-18), math.exp(-1), 1.0, 3.0]), rtol=1e-6)


@pytest.mark.parametrize("name", [name for name in RECURRENT if name != "slstm"])
def test_a_sequence_in_two_parts_is_as_in_one(name: str) -> None:
    """A layer starts from the state that it is given, and leaves the state after its last position."""
    layer = model(name).double().eval().blocks[0]
    mixer = getattr(layer, "blocks", [layer])[0].mixer
    x = torch.randn(2, 11, 8, dtype=torch.float64)
    with torch.no_grad():
        before, state = mixer.run(x[:, :4], mixer.initial_state(2))
        after, _ = mixer.run(x[:, 4:], state)
        assert gap(torch.cat((before, after), 1), mixer(x)) < 1e-9


@pytest.mark.parametrize("name", RECURRENT)
def test_padding_before_the_sequence_is_skipped(name: str) -> None:
    """Inputs before the first valid position and after the last one change no output between them."""
    double = model(name).double().eval()
    with torch.no_grad():
        for parameter in double.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        x = torch.randn(2, 50, 3, dtype=torch.float64)
        mask = torch.zeros(2, 50, dtype=torch.bool)
        mask[:, 13:41] = True
        assert gap(double(x, mask)[:, 13:41], double(x[:, 13:41])) < 1e-9


@pytest.mark.parametrize("name", RECURRENT)
def test_vectors_decays_and_taps_have_no_weight_decay(name: str) -> None:
    built = model(name)
    groups = make_optimiser(built, Budget(weight_decay=0.5)).param_groups
    decayed = {id(value) for group in groups if group["weight_decay"] for value in group["params"]}
    assert decayed
    taps = {id(module.weight) for module in built.modules() if isinstance(module, ShortConv)}
    for full, value in built.named_parameters():
        spared = value.dim() < 2 or id(value) in taps or full.rpartition(".")[2] in HELD
        assert not (spared and id(value) in decayed), full
    assert all(id(module.weight) in decayed for module in built.modules() if type(module) is nn.Linear)


@pytest.mark.parametrize(
    ("name", "rate", "parameters"),
    [
        ("rwkv7", 0.2, {"bias"}),
        ("lru", 0.05, {"nu_log", "theta_log", "gamma_log", "B_re", "B_im"}),
        ("s5", 0.001, {"Lambda_re", "Lambda_im", "B", "log_step"}),
    ],
)
def test_some_parameters_have_another_learning_rate(name: str, rate: float, parameters: set[str]) -> None:
    built = model(name)
    groups = make_optimiser(built, Budget(lr=0.1)).param_groups
    others = {id(value) for group in groups if group["lr"] != 0.1 for value in group["params"]}
    assert {group["lr"] for group in groups} == {0.1, rate}
    names = [full for full, value in built.named_parameters() if id(value) in others]
    assert {full.rpartition(".")[2] for full in names} == parameters
    assert all("w_lora.up" in full for full in names) or name != "rwkv7"


@pytest.mark.parametrize("preset", ["recall-16k", "recall-64k"])
@pytest.mark.parametrize("name", RECURRENT)
def test_recall_presets_have_equal_states(name: str, preset: str) -> None:
    if preset not in registry.get(name).presets:
        pytest.skip("a state of one vector would need millions of parameters")
    spec = Spec("token", 64, 8)
    built = build(name, spec, spec, **registry.get(name).preset_values(preset)[0])
    wanted = {"recall-16k": 16_384, "recall-64k": 65_536}[preset]
    assert state_bytes(built) == pytest.approx(wanted, rel=0.1)


@pytest.mark.parametrize("name", RECURRENT)
def test_half_precision(name: str) -> None:
    """Under autocast states and decays stay in float32, so that outputs differ by rounding; and a model in bfloat16."""
    built = model(name)
    x = torch.randn(2, 50, 3)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
        wanted = built(x)
    with torch.autocast("cpu", torch.bfloat16):
        y = built(x)
        assert (y.float() - wanted).norm() < 0.05 * wanted.norm()
        y.square().mean().backward()
        state = built.initial_state(2)
        for t in range(5):
            z, state = built.step(x[:, t], state)
        assert (z.float() - wanted[:, 4]).norm() < 0.05 * wanted[:, 4].norm()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in built.parameters())
    with torch.no_grad():
        half = built.bfloat16()
        assert half(x.bfloat16()).dtype == torch.bfloat16
        assert half.step(x[:, 0].bfloat16(), half.initial_state(2))[0].dtype == torch.bfloat16


# Bytes of state of one bare layer of width 64, as counted by hand.
BYTES: list[tuple[str, int, dict[str, Any]]] = [
    ("deltanet", 6_400, {}),
    ("gated-deltanet", 11_264, {}),
    ("gated-deltaproduct", 7_936, {"expand_v": 1}),
    ("kda", 6_400, {}),
    ("gla", 2_048, {}),
    ("retnet", 8_192, {}),
    ("mamba2", 18_688, {"d_state": 32, "head_dim": 16}),
    ("mlstm", 18_448, {}),
    ("slstm", 1_792, {}),
    ("lstm", 512, {}),
    ("gru", 256, {}),
    ("rglru", 1_024, {}),
    ("mamba", 9_728, {}),
    ("linear-attention", 4_352, {}),
    ("linear-attention", 41_616, {"feature_map": "taylor"}),
    ("mamba3", 18_176, {}),
    ("rwkv7", 4_352, {}),
    ("mingru", 4 * 96, {}),
    ("minlstm", 4 * 96, {}),
    ("lru", 8 * 64, {}),
    ("s5", 8 * 32, {}),
]


@pytest.mark.parametrize(("name", "wanted", "hyper"), BYTES)
def test_state_bytes_of_a_layer(name: str, wanted: int, hyper: dict[str, Any]) -> None:
    built = build(name, SIGNAL, SIGNAL, d_model=64, layers=1, mlp=False, **hyper)
    assert state_bytes(built) == wanted


VARIANTS = [
    ("gated-deltanet", {"value_heads": 4, "allow_neg_eigval": True, "gate": False}),
    ("gated-deltaproduct", {"n_h": 3, "forget": False}),
    ("gated-deltaproduct", {"n_h": 2, "value_heads": 6, "expand_v": 1}),
    ("kda", {"lower_bound": -5.0, "value_heads": 4}),
    ("gla", {"decay": "head", "conv": True}),
    ("gla", {"decay": "fixed", "expand_k": 1.0}),
    ("retnet", {"decay": "channel"}),
    ("mamba", {"eigenvalues": "negative"}),
    ("mamba2", {"head_dim": 4, "groups": 2, "norm_before_gate": True}),
    ("mamba3", {"head_dim": 4, "groups": 2, "rank": 3, "rope_fraction": 1.0}),
    ("mamba3", {"head_dim": 4, "rank": 2, "outproj_norm": True, "a_activation": "softplus"}),
    ("linear-attention", {"feature_map": "taylor", "feature_dim": 3, "head_norm": True}),
    ("slstm", {"conv": False, "mlp": False}),
    ("mlstm", {"mlp": True, "expand": 1.5}),
    ("lstm", {"hidden": 5, "orthogonal": True}),
    ("gru", {"hidden": 5, "orthogonal": True}),
    ("mingru", {"expansion": 1.0}),
    ("lru", {"r_min": 0.9, "r_max": 0.99, "recurrent_lr_factor": 0.25}),
    ("s5", {"d_state": 8, "blocks_of_start": 2, "discretisation": "bilinear"}),
    ("rglru", {"width": 12, "mlp": False}),
    ("rwkv7", {"channel_mixing": True, "allow_neg_eigval": True}),
    ("gla", {"canon": "ABCD"}),
    ("linear-attention", {"canon": "B"}),
    ("retnet", {"canon": "B"}),
    ("rwkv7", {"canon": "ACD", "prenorm": False, "norm": "layer"}),
    ("rwkv7", {"v_residual": False, "ranks": (2, 3, 4, 5), "prenorm": False, "norm": "layer"}),
]


@pytest.mark.parametrize(("name", "hyper"), VARIANTS)
def test_variants_conform(name: str, hyper: dict[str, Any]) -> None:
    """Causality, padding, streaming and gradients of the options that the defaults leave out."""
    if "heads" in registry.get(name).parameter_names():
        hyper = {"heads": 2, **hyper}
    layers = 2 if name == "rwkv7" else 1  # its later layers read the values of the first
    check_model(name, input=SIGNAL, target=SIGNAL, dtype=torch.float64, d_model=8, layers=layers, **hyper)


@pytest.mark.parametrize(("r_min", "r_max"), [(0.0, 1e-25), (1 - 1e-8, 1.0)])
def test_lru_starts_with_finite_values_at_the_ends_of_the_range(r_min: float, r_max: float) -> None:
    model = build("lru", SIGNAL, SIGNAL, d_model=8, r_min=r_min, r_max=r_max)
    assert all(value.isfinite().all() for value in model.parameters())


@pytest.mark.parametrize("name", ["gla", "retnet", "linear-attention"])
def test_canon_layers_convolve_queries_keys_and_values(name: str) -> None:
    """Site B equals maps followed by x + conv(x): a mixer without it, given these maps, gives the same."""
    torch.manual_seed(0)
    canon, plain = (model(name, layers=1, canon=sites).blocks[0].mixer.double() for sites in ("B", ""))
    plain.load_state_dict(canon.state_dict(), strict=False)
    for letter in "qkv":
        conv = getattr(canon, f"{letter}_conv1d")
        proj = getattr(plain, f"{letter}_proj")
        del plain._modules[f"{letter}_proj"]
        mapped = lambda x, proj=proj, conv=conv: proj(x) + plain_short_conv(proj(x), conv.weight)  # noqa: E731
        setattr(plain, f"{letter}_proj", mapped)
    x = torch.randn(2, 30, 8, dtype=torch.float64)
    assert gap(canon(x), plain(x)) < 1e-12


@pytest.mark.parametrize("v_residual", [True, False])
def test_rwkv7_passes_values_of_the_first_layer_on(v_residual: bool) -> None:
    """A stack of three, against its layers called by hand; without ``v_residual`` its layers are apart."""
    built = model("rwkv7", layers=3, mlp=False, v_residual=v_residual).double()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    x = torch.randn(2, 50, 8, dtype=torch.float64)
    hidden, v_first = x, None
    for block in built.blocks[0].blocks:  # type: ignore[union-attr]
        mixer = block.mixer
        mixed, _, v_first = mixer.mix(block.norm(hidden), mixer.initial_state(2), None, v_first)
        hidden = hidden + mixed
    assert gap(built.blocks[0](x), hidden.detach()) < 1e-12
    alone = x
    for block in built.blocks[0].blocks:  # type: ignore[union-attr]
        alone = block(alone)
    assert (gap(alone, hidden.detach()) > 1e-3) == v_residual


GATES = {
    "mamba": {"decay"},
    "mamba2": {"decay"},
    "mamba3": {"decay", "present share", "half turns"},
    "gla": {"decay"},
    "retnet": {"decay"},
    "deltanet": {"beta"},
    "gated-deltanet": {"decay", "beta"},
    "gated-deltaproduct": {"decay", "beta"},
    "kda": {"decay", "beta"},
    "rwkv7": {"decay", "erase"},
    "mlstm": {"forget gate", "input gate"},
    "rglru": {"decay"},
    "mingru": {"decay"},
    "minlstm": {"decay"},
}


def shown(built: Backbone) -> dict[str, np.ndarray]:
    """Gates of the first layer at the last evaluation, units by positions."""
    figures = next(portraits() for _, portraits in offered(built, "portraits") if portraits())
    suffix = " by position, sample 0"
    return {
        figure.title.removesuffix(suffix): next(iter(figure.series.values()))
        for figure in figures
        if figure.title.endswith(suffix)
    }


@pytest.mark.parametrize("name", GATES)
def test_portraits_show_the_gates_of_the_first_sample(name: str) -> None:
    built = model(name).eval()
    x = torch.randn(2, 50, 3)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
        built(x)
        gates = shown(built)
        assert set(gates) == GATES[name]
        for gate in gates.values():
            assert gate.shape[1] == 50 and (np.diff(gate.mean(1)) >= 0).all()
        if "decay" in gates:
            assert (gates["decay"] >= 0).all() and (gates["decay"] <= 1).all() and gates["decay"].min() < 1
        # gates of a later input differ and earlier ones do not: they belong to the positions below which they stand
        changed = x.clone()
        changed[0, 30:] += 1
        built(changed)
        for title, gate in shown(built).items():
            assert np.allclose(np.sort(gate[:, :30], 0), np.sort(gates[title][:, :30], 0))
            if (name, title) != ("retnet", "decay"):
                assert not np.allclose(np.sort(gate[:, 30:], 0), np.sort(gates[title][:, 30:], 0))
        kept = shown(built)
        built(x[:, :1])
        built.train()(x)
        assert all((kept[title] == gate).all() for title, gate in shown(built).items())


def test_portraits_show_fixed_decays_and_doubled_strengths() -> None:
    """RetNet's head h decays by 1 - 2^(-5-h); without an input, beta is half of its range."""
    with torch.no_grad():
        retnet = model("retnet", heads=4).eval()
        retnet(torch.randn(1, 50, 3))
        assert np.allclose(shown(retnet)["decay"][:, 0], 1 - 2.0 ** (-5 - np.arange(4)))
        for doubled in (False, True):
            delta = model("gated-deltaproduct", n_h=2, allow_neg_eigval=doubled).eval()
            for name, weight in delta.named_parameters():
                if "b_proj" in name:
                    weight.zero_()
            delta(torch.randn(1, 50, 3))
            beta = shown(delta)["beta"]
            assert beta.shape == (4, 50) and np.allclose(beta, 1.0 if doubled else 0.5)
