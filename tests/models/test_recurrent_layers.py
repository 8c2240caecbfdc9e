"""The recurrent layers: outputs and initialisation compared with arrays from their public code."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from modern import ARRAYS, arrays, check_outputs, settings
from parity import gap, streamed
from torch import Tensor, nn

from lrtasks.models.deltanet import KDA, DeltaNet, GatedDeltaNet, GatedDeltaProduct
from lrtasks.models.griffin import RGLRU, Griffin
from lrtasks.models.linear_attention import GLA, LinearAttention, RetNet, linear_attention, taylor_features
from lrtasks.models.lru import LRU, S5, LRUCore, S5Core, SSMLayer, legs_eigenvalues
from lrtasks.models.lstm import GRU, LSTM
from lrtasks.models.mamba import Mamba, Mamba2, Mamba3, angle_sums, rotated, trapezoid
from lrtasks.models.mingru import MinGRU, MinLSTM
from lrtasks.models.recurrent import RecurrentConfig
from lrtasks.models.rwkv7 import RWKV7, ChannelMixing
from lrtasks.models.xlstm import MLSTM, SLSTM

Settings = dict[str, Any]


def delta(cls: type[DeltaNet], cfg: Settings, **options: Any) -> DeltaNet:
    names = {"d_model": "d_model", "heads": "heads", "head_dim": "head_dim", "v_heads": "value_heads", "n_h": "n_h"}
    given = {ours: cfg[theirs] for theirs, ours in names.items() if theirs in cfg}
    given |= {name: bool(cfg[name]) for name in ("gate", "forget") if name in cfg}
    return cls.make(**given, expand_v=cfg.get("expand_v", 1), allow_neg_eigval=bool(cfg["neg"]), **options)


def widths(cfg: Settings, **names: str) -> Settings:
    """``d_model``, and what the settings of an array hold under other names."""
    return {"d_model": cfg["d_model"], **{ours: cfg[theirs] for ours, theirs in names.items()}}


HEADED = {"d_state": "d_state", "head_dim": "headdim", "groups": "groups"}
# The configuration whose layer has the settings of its array.
LAYERS: dict[str, Callable[[Settings], RecurrentConfig]] = {
    "deltanet": lambda cfg: delta(DeltaNet, cfg),
    "gated_deltanet": lambda cfg: delta(GatedDeltaNet, cfg),
    "gated_deltanet_neg": lambda cfg: delta(GatedDeltaNet, cfg),
    "gated_deltaproduct": lambda cfg: delta(GatedDeltaProduct, cfg),
    "kda": lambda cfg: delta(KDA, cfg, lower_bound=cfg["lower_bound"] or None),
    "mamba2": lambda cfg: Mamba2(**widths(cfg, **HEADED), norm_before_gate=bool(cfg["norm_before_gate"])),
    "gla": lambda cfg: GLA(**widths(cfg, heads="heads", expand_k="expand_k", rank="low_rank"), conv=bool(cfg["conv"])),
    "retnet": lambda cfg: RetNet(**widths(cfg, heads="heads", expand_v="expand_v")),
    "mlstm": lambda cfg: MLSTM(**widths(cfg, heads="heads"), expand=cfg["inner"] / cfg["d_model"], round_up=4),
    "slstm": lambda cfg: SLSTM(**widths(cfg, heads="heads"), conv=bool(cfg["conv"])),
    "mamba": lambda cfg: Mamba(**widths(cfg, d_state="d_state", rank="dt_rank")),
    "mamba3": lambda cfg: Mamba3(
        **widths(cfg, **HEADED, rope_fraction="rope_fraction"), outproj_norm=bool(cfg["outproj_norm"])
    ),
    "rwkv7_layer0": lambda cfg: RWKV7(**widths(cfg, heads="heads", layers="layers"), ranks=(5, 4, 3, 6)),
    "griffin_recurrent": lambda cfg: Griffin(**widths(cfg, heads="heads", width="lru_width")),
    "mingru": lambda cfg: MinGRU(**widths(cfg, expansion="expansion")),
    "minlstm": lambda cfg: MinLSTM(**widths(cfg, expansion="expansion")),
    "linear_attention_elu": lambda cfg: LinearAttention(**widths(cfg, heads="heads"), head_norm=cfg["norm"] == "rms"),
    "based_taylor": lambda cfg: LinearAttention(
        **widths(cfg, heads="heads", feature_dim="feature_dim"), feature_map="taylor"
    ),
}
# Names of the source: names here.
RENAMED = {
    "mingru": {"to_hidden_and_gate": "to_gates"},
    "minlstm": {"to_hidden_and_f_i_gate": "to_gates"},
    "griffin_recurrent": {
        "conv_1d.w": "conv1d.weight",
        "conv_1d.b": "conv1d.bias",
        "a_param": "Lambda",
        "gate.w": "gate.weight",
        "gate.b": "gate.bias",
    },
    "rwkv7_layer0": {"lora.0": "down", "lora.2": "up"},
    "rwkv7_layer1": {"lora.0": "down", "lora.2": "up"},
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


# What is stored with its axes in another order.
TURNED: dict[str, Callable[[Tensor], Tensor]] = {"conv_1d.w": lambda w: w.T.unsqueeze(1)}


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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("name", "array"),
    # the second array of mamba3 has options that the first leaves out: ``rope_fraction`` of 1 and ``outproj_norm``
    [*((name, f"layer_{name}_a") for name in LAYERS), ("mamba3", "layer_mamba3_b")],
)
def test_layers_equal_their_public_code(name: str, array: str, dtype: torch.dtype) -> None:
    """Outputs and gradients of all inputs and parameters; the streaming form gives the same."""
    found = arrays(array)
    cfg = settings(found)
    module = LAYERS[name](cfg).layer(cfg.get("layer", 0)).to(dtype)

    def forward(leaves: dict[str, Tensor]) -> tuple[Tensor, ...]:
        values = {
            own_name(name, full): TURNED.get(full, torch.clone)(value)
            for full, value in leaves.items()
            if f"param_{full}" in found
        }
        return (run_with(module, values, leaves["x"]),)

    check_outputs(found, forward, dtype)
    if dtype == torch.float64:
        assert gap(streamed(module, torch.from_numpy(found["in_x"])), found["out_y"]) < 1e-9


# Layers as the source makes them: width 64, heads of 16.
STARTS: dict[str, Callable[[], nn.Module]] = {
    "deltanet": lambda: DeltaNet().layer(0),
    "gated_deltanet": lambda: GatedDeltaNet().layer(0),
    "gated_deltaproduct": lambda: GatedDeltaProduct(expand_v=1).layer(0),
    "kda": lambda: KDA().layer(0),
    "mamba2": lambda: Mamba2().layer(0),
    "gla": lambda: GLA().layer(0),
    "mamba": lambda: Mamba().layer(0),
    "mamba3": lambda: Mamba3().layer(0),
    "mamba3_mimo": lambda: Mamba3(rank=4).layer(0),
    "rwkv7_layer0_of4": lambda: RWKV7(layers=4).layer(0),
    "rwkv7_layer2_of4": lambda: RWKV7(layers=4).layer(2),
    "griffin_recurrent": lambda: Griffin(layers=2).layer(0),
    "lstm": lambda: LSTM(forget_bias=0).layer(0).rnn,
    "gru": lambda: GRU().layer(0).rnn,
    "mlstm_4blocks": lambda: MLSTM(layers=4).layer(0),
    "slstm_block0_of4": lambda: SLSTM(layers=4).layer(0),
    "slstm_block3_of4": lambda: SLSTM(layers=4).layer(3),
}
START_NAMES = {
    "mlstm_4blocks": "mlstm",
    "slstm_block0_of4": "slstm",
    "slstm_block3_of4": "slstm",
    "rwkv7_layer0_of4": "rwkv7_layer0",
    "rwkv7_layer2_of4": "rwkv7_layer1",
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
    renamed = {own_name(START_NAMES.get(name, name), full): full for full in stats}
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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_torch_layers(kind: Any, dtype: torch.dtype) -> None:
    found = arrays(f"layer_{kind}_a")
    config = (LSTM if kind == "lstm" else GRU)(d_model=int(found["cfg_d_model"]), hidden=int(found["cfg_hidden"]))
    rnn = config.layer(0).rnn.to(dtype)

    def forward(leaves: dict[str, Tensor]) -> tuple[Tensor, ...]:
        values = {name: value for name, value in leaves.items() if name != "x"}
        return (torch.func.functional_call(rnn, values, leaves["x"])[0],)

    check_outputs(found, forward, dtype)


@pytest.mark.parametrize("cls", [LSTM, GRU])
def test_the_recurrent_map_of_each_gate_starts_orthogonal_if_asked_to(cls: type[GRU]) -> None:
    for gate in cls(d_model=4, hidden=6, orthogonal=True).layer(0).rnn.weight_hh_l0.detach().split(6):
        assert gap(gate @ gate.T, torch.eye(6)) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", ["op", "layer"])
def test_lru(kind: str, dtype: torch.dtype) -> None:
    """The unit alone, and the layer with the norm (of 1e-6) and the residual around it, pre- or post-norm."""
    found = arrays(f"{kind}_lru_a")
    width, states = found["in_x"].shape[-1], len(found["param_nu_log" if kind == "op" else "param_seq.nu_log"])
    module: nn.Module = LRUCore(LRU(d_model=width, d_state=states))
    if kind == "layer":
        module = SSMLayer(module, width)  # type: ignore[arg-type]
    module.to(dtype)

    def forward(leaves: dict[str, Tensor]) -> tuple[Tensor, ...]:
        x, values = leaves["x"], {name: value for name, value in leaves.items() if name != "x"}
        if kind == "op":
            return (torch.func.functional_call(module, values, x),)
        # flax: linear maps are (inputs, outputs)
        values = {name.replace("kernel", "weight"): v.T if "kernel" in name else v for name, v in values.items()}
        norm = [(width,), values.pop("normalization.scale"), values.pop("normalization.bias"), 1e-6]
        if bool(found["cfg_prenorm"]):
            return (x + torch.func.functional_call(module, values, torch.nn.functional.layer_norm(x, *norm)),)
        return (torch.nn.functional.layer_norm(x + torch.func.functional_call(module, values, x), *norm),)

    check_outputs(found, forward, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_s5(dtype: torch.dtype) -> None:
    found = arrays("op_s5_a")
    core = S5Core(S5(d_model=found["in_x"].shape[-1], d_state=2 * len(found["param_Lambda_re"]))).to(dtype)

    def forward(leaves: dict[str, Tensor]) -> tuple[Tensor, ...]:
        return (torch.func.functional_call(core, {n: v for n, v in leaves.items() if n != "x"}, leaves["x"]),)

    check_outputs(found, forward, dtype)


@pytest.mark.parametrize("length", [1, 200])
@pytest.mark.parametrize("name", ["lru", "s5"])
def test_fixed_eigenvalues_keep_their_digits_in_float32(name: str, length: int) -> None:
    """Gradients of all parameters: phases over many positions, and steps so small that exp(lambda dt) is near 1."""
    for seed in range(4):
        torch.manual_seed(seed)
        core = LRUCore(LRU(d_model=6, d_state=16)) if name == "lru" else S5Core(S5(d_model=6, d_state=16))
        x, cotangent = torch.randn(2, length, 6), torch.randn(2, length, 6)
        results = []
        for dtype in (torch.float64, torch.float32):
            module = copy.deepcopy(core).to(dtype)
            y = (module(x.to(dtype)) * cotangent.to(dtype)).sum()
            results.append(torch.autograd.grad(y, list(module.parameters())))
        assert max(gap(found, wanted) for found, wanted in zip(results[1], results[0], strict=True)) < 5e-6


@pytest.mark.parametrize("states", [16, 64])
def test_s5_starts_from_hippo(states: int) -> None:
    wanted = arrays("s5_init_eigenvalues")[f"Lambda_N{states}"]
    found, vectors = legs_eigenvalues(states)
    assert np.abs(np.sort_complex(found) - np.sort_complex(wanted)).max() < 1e-9 * np.abs(wanted).max()
    half_steps = np.sqrt(np.arange(states) + 0.5)
    above = np.triu(np.outer(half_steps, half_steps), 1)
    normal = above - above.T - np.eye(states) / 2
    assert np.abs(normal @ vectors - vectors * found).max() < 1e-9 * np.abs(wanted).max()


def test_s5_starts_from_blocks_of_hippo() -> None:
    """Each block has the eigenvalues of a smaller matrix; B and C, drawn in real coordinates, are turned by block."""
    torch.manual_seed(0)
    core = S5Core(S5(d_model=3, d_state=16, blocks_of_start=2))
    values, vectors = map(torch.from_numpy, legs_eigenvalues(8))
    assert gap(torch.stack((core.Lambda_re, core.Lambda_im), -1), torch.view_as_real(values.repeat(2))) < 1e-6
    torch.manual_seed(0)
    B = torch.randn(2, 8, 3, dtype=torch.float64).to(vectors.dtype) / 4
    C = torch.randn(3, 2, 8, dtype=torch.complex128) / 8**0.5
    assert gap(core.B, torch.view_as_real((vectors.mH @ B).flatten(0, 1))) < 1e-6
    assert gap(core.C, torch.view_as_real((C @ vectors).flatten(1))) < 1e-6


def test_kda_with_a_bounded_decay_starts_at_rate_1() -> None:
    assert not KDA(lower_bound=-5.0).layer(0).A_log.any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rglru_alone(dtype: torch.dtype) -> None:
    found = arrays("op_rglru_a")
    unit = RGLRU(int(found["cfg_d_model"]), int(found["cfg_heads"])).to(dtype)

    def forward(leaves: dict[str, Tensor]) -> tuple[Tensor, ...]:
        values = {own_name("griffin_recurrent", name): v for name, v in leaves.items() if name not in ("x", "pos")}
        h = torch.func.functional_call(unit, values, leaves["x"])
        return h, h[:, -1]

    check_outputs(found, forward, dtype, ("y", "state"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_taylor_attention_alone(dtype: torch.dtype) -> None:
    """Against the array, and its features, whose products are the second-order exponential."""

    def forward(x: dict[str, Tensor]) -> tuple[Tensor, ...]:
        q, k, v = (x[name].transpose(1, 2) for name in "qkv")
        scale = q.shape[-1] ** -0.25
        return (linear_attention(q * scale, k * scale, v, "taylor", None, None, eps=1e-6)[0].transpose(1, 2),)

    check_outputs(arrays("op_based_taylor_a"), forward, dtype)
    torch.manual_seed(0)
    q, k = torch.randn(2, 5, 4, dtype=torch.float64), torch.randn(2, 5, 4, dtype=torch.float64)
    s = (q * k).sum(-1)
    assert gap((taylor_features(q) * taylor_features(k)).sum(-1), 1 + s + s**2 / 2) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rwkv7_mixes_values_with_those_of_the_first_layer(dtype: torch.dtype) -> None:
    found = arrays("layer_rwkv7_layer1_a")
    cfg = settings(found)
    module = LAYERS["rwkv7_layer0"](cfg).layer(cfg["layer"]).to(dtype)
    own = dict(module.named_parameters())

    def forward(leaves: dict[str, Tensor]) -> tuple[Tensor, ...]:
        values = {own_name("rwkv7_layer1", name): value for name, value in leaves.items() if f"param_{name}" in found}
        shaped = {f"layer.{name}": value.view(own[name].shape) for name, value in values.items()}
        return tuple(torch.func.functional_call(Mixing(module), shaped, (leaves["x"], leaves["v_first"])))

    check_outputs(found, forward, dtype, ("y", "v_first_out"))


@pytest.mark.parametrize(("allow_neg_eigval", "smallest"), [(False, 0.0), (True, -1.0)])
def test_rwkv7_erase_of_full_strength(allow_neg_eigval: bool, smallest: float) -> None:
    """With a = 1 and no decay one position multiplies S by I - kk kk^T, or by the reflection I - 2 kk kk^T."""
    torch.manual_seed(0)
    layer = RWKV7(d_model=8, heads=2, layers=1, allow_neg_eigval=allow_neg_eigval).layer(0).double()
    with torch.no_grad():
        layer.a_lora.up.bias.fill_(40.0)
        layer.w_lora.up.bias.fill_(-40.0)
        x, before = torch.randn(3, 8, dtype=torch.float64), torch.randn(3, 8, dtype=torch.float64)
        identity = torch.eye(4, dtype=torch.float64).expand(3, 2, 4, 4)
        written = layer.step(x, (torch.zeros_like(identity), before))[1][0]
        transition = layer.step(x, (identity, before))[1][0] - written
    wanted = torch.tensor([smallest, 1.0, 1.0, 1.0], dtype=torch.float64).expand(3, 2, 4)
    assert gap(torch.linalg.eigvalsh(transition), wanted) < 1e-9


def test_rwkv7_channel_mixing() -> None:
    """``W_v relu(W_k (x + (x_before - x) mu))²``, with zeros before the first position."""
    torch.manual_seed(0)
    mixing = ChannelMixing(6, 24, index=1, layers=4).double()
    assert not mixing.value.weight.any()
    assert 0.48 < mixing.key.weight.abs().max().item() * 6**0.5 <= 0.5
    wanted = 1 - (torch.arange(6) / 6) ** (0.75**4)
    assert gap(mixing.x_k.detach(), wanted) < 1e-6
    with torch.no_grad():
        mixing.value.weight.normal_()
        x = torch.randn(2, 5, 6, dtype=torch.float64)
        for t in range(5):
            before = x[:, t - 1] if t else torch.zeros_like(x[:, 0])
            mixed = x[:, t] + (before - x[:, t]) * mixing.x_k
            y = (mixed @ mixing.key.weight.T).clamp_min(0) ** 2 @ mixing.value.weight.T
            assert gap(mixing(x)[:, t], y) < 1e-12


class Mixing(nn.Module):
    """``mix`` of an RWKV-7 layer as forward."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, v_first: Tensor) -> tuple[Tensor, Tensor]:
        y, _, v_first = self.layer.mix(x, self.layer.initial_state(len(x)), None, v_first)
        return y, v_first


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", ["op_mamba3_a", "op_mamba3_mimo_a"])
def test_mamba3_core(name: str, dtype: torch.dtype) -> None:
    """One input per head, and several, which share a state."""
    found = arrays(name)
    several = "mimo" in name

    def forward(x: dict[str, Tensor]) -> tuple[Tensor, ...]:
        heads = len(x["D"])
        g, dt, lam = x["ADT"].mT, x["DT"].mT, x["Trap"].mT.sigmoid()
        theta = angle_sums(x["Angles"], dt)
        q, k = (x[n] if several else x[n].unsqueeze(2) for n in "QK")
        q_bias, k_bias = (x[n] if several else x[n].unsqueeze(1) for n in ("Q_bias", "K_bias"))
        q, k = (value.repeat_interleave(heads // value.shape[3], 3) for value in (q, k))
        q, k = q + q_bias.transpose(0, 1), k + k_bias.transpose(0, 1)
        q, k = rotated(theta.unsqueeze(2), q, k)
        v, z = x["V"].unsqueeze(2), x["Z"].unsqueeze(2)
        if several:
            v, z = v * x["MIMO_V"].transpose(0, 1), z * x["MIMO_Z"].transpose(0, 1)
        y, S = trapezoid(q, k, v, g, dt, lam, x["D"])
        y = y * torch.nn.functional.silu(z)
        y = (y * x["MIMO_O"].transpose(0, 1)).sum(2) if several else y.squeeze(2)
        return y, S.mT, theta[:, -1] % (2 * math.pi), k[:, -1, 0], x["V"][:, -1]

    check_outputs(found, forward, dtype, ("y", "state", *(() if several else ("angle_state", "k_state", "v_state"))))


def test_mamba3_rotates_pairs_and_keeps_the_rest() -> None:
    """Values and gradients, for an odd number of features and angles beyond a turn."""
    torch.manual_seed(0)
    theta = (torch.randn(2, 5, 1, 3, 2) * 20).double().requires_grad_()
    x, other = (torch.randn(2, 5, 4, 3, 7).double().requires_grad_() for _ in range(2))
    a, b, rest = x[..., 0:4:2], x[..., 1:4:2], x[..., 4:]
    turned = torch.stack((a * theta.cos() - b * theta.sin(), a * theta.sin() + b * theta.cos()), -1)
    wanted, found = torch.cat((turned.flatten(-2), rest), -1), rotated(theta, other, x)[1]
    weights = torch.randn(x.shape)
    gradients = [torch.autograd.grad((y * weights).sum(), (theta, x)) for y in (found, wanted)]
    pairs = [(found.detach(), wanted.detach()), *zip(*gradients, strict=True)]
    assert max(gap(*pair) for pair in pairs) < 1e-12


def test_mamba3_angles_stay_exact_over_long_sequences() -> None:
    """In float32, where a plain sum of 65,536 turns is off by more than 1e-4."""
    torch.manual_seed(0)
    length = 65_536
    angle, dt = torch.randn(1, length, 1, 2) + 1, 0.1 * torch.rand(1, length, 1)
    wanted = (math.pi * angle.double().tanh() * dt.double().unsqueeze(-1)).cumsum(1)
    assert (angle_sums(angle, dt) - wanted).abs().max() < 2e-5


def test_the_decays_of_retnet_are_not_rounded_with_the_parameters() -> None:
    torch.manual_seed(0)
    layer, x = RetNet(d_model=16, heads=2).layer(0).double(), torch.randn(2, 40, 16, dtype=torch.float64)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(parameter.bfloat16())
        assert torch.equal(layer(x), layer.bfloat16().double()(x))


def test_an_expansion_other_than_1_has_an_output_map() -> None:
    """Also where the rounded width of the state is that of the input."""
    layers = {factor: MinGRU(d_model=12, expansion=factor).layer(0) for factor in (1.0, 1.05)}
    assert [layer.inner for layer in layers.values()] == [12, 12]  # type: ignore[attr-defined]
    assert ["to_out.weight" in dict(layer.named_parameters()) for layer in layers.values()] == [False, True]


@pytest.mark.parametrize("cls", [GLA, RetNet])
def test_without_the_gate_each_head_is_normalised_alone(cls: type[GLA]) -> None:
    """The gate multiplies the normalised result: a gate that is 1 everywhere gives the same result as no gate."""
    torch.manual_seed(0)
    plain = cls(d_model=16, heads=2, gate=False).layer(0).double()
    gated = cls(d_model=16, heads=2).layer(0).double()
    gated.load_state_dict(plain.state_dict(), strict=False)
    gated.g_proj = nn.Linear(16, gated.o_proj.in_features).double()
    with torch.no_grad():
        gated.g_proj.weight.zero_()
        gated.g_proj.bias.fill_(1.2784645427610738)  # silu of it is 1
    x = torch.randn(2, 20, 16, dtype=torch.float64)
    assert gap(plain(x).detach(), gated(x).detach()) < 1e-12
    assert "g_proj.weight" not in dict(plain.named_parameters())
