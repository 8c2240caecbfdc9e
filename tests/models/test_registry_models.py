"""Requirements on every registered model. Registering a new model adds it to these tests."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from parity import gap
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from lrtasks import generators
from lrtasks.check.model import check_model
from lrtasks.errors import UsageError
from lrtasks.models import names, registry
from lrtasks.models.base import ResidualBlock
from lrtasks.models.ops.layers import NoConv
from lrtasks.run_config import RunConfig
from lrtasks.spec import Spec

# Values for small models, of which each takes those that it has.
SMALL = {"d_model": 8, "layers": 2, "d_state": 6, "heads": 2, "chunk": 5, "filter_width": 8}
LENGTH = 37  # not a multiple of any chunk
SPECS = {
    "signals": (Spec("real", LENGTH, 3), Spec("real", LENGTH, 2)),
    "symbols": (Spec("token", LENGTH, 7), Spec("token", LENGTH, 5)),
    "last positions": (Spec("real", LENGTH, 3), Spec("real", 9, 1)),
    "whole sequence": (Spec("token", LENGTH, 7), Spec("token", 1, 5, pooled=True)),
}
HYBRIDS = ("seqboat", "seqboat-full", "seqboat-local", "mega", "mega-chunk", "longvq")
LRA = ("listops", "listops-root", "pathfinder", "pathfinder-classification")


@pytest.mark.parametrize("name", names())
def test_a_model_can_be_pickled(name: str) -> None:
    model = registry.get(name).make(**small(name)).build(*SPECS["signals"], causal=True)
    state = pickle.loads(pickle.dumps(model)).state_dict()
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def small(name: str) -> dict[str, Any]:
    """Hyper-parameters of a small model."""
    known = {key: value for key, value in SMALL.items() if key in registry.get(name).parameter_names()}
    return known | {"layers": "gated-deltanet:1,attention:1"} if name == "hybrid" else known


@pytest.mark.parametrize("name", names())
def test_a_model_is_built_with_the_default_type_of_torch(name: str) -> None:
    given = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        model = registry.get(name).make(**small(name)).build(*SPECS["signals"], causal=True)
        outputs = model(torch.randn(2, LENGTH, 3))
    finally:
        torch.set_default_dtype(given)
    assert outputs.dtype == torch.float64
    assert all(torch.finfo(value.dtype).bits == 64 for value in model.parameters())


DROPPED = {"focus": 4, "focus-h": 3} | dict.fromkeys(("longvq", "mega", "mega-chunk"), 4)
"""Places with dropout in one layer of the models whose files name them in formulas; others: each mixer's output."""


@pytest.mark.parametrize("name", names())
def test_dropout_acts_in_training_wherever_it_should(name: str) -> None:
    hyper = small(name) if name == "hybrid" else {**small(name), "layers": 1}
    torch.manual_seed(0)
    model = registry.get(name).make(**hyper, dropout=0.25).build(*SPECS["symbols"], causal=True)
    rates: list[float] = []
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(lambda module, _, __: rates.append(module.p))
    x = torch.arange(2 * LENGTH).view(2, LENGTH) % 7
    assert not torch.equal(model.train()(x), model(x))
    places = len([block for block in model.modules() if isinstance(block, ResidualBlock)])
    assert sum(rate > 0 for rate in rates) == 2 * DROPPED.get(name, 2 if "seqboat" in name else places)
    assert torch.equal(model.eval()(x), model(x))


@pytest.mark.parametrize("prenorm", [True, False])
def test_a_block_drops_the_output_of_its_mixer(prenorm: bool) -> None:
    block = ResidualBlock(NoConv(), 4, "layer", prenorm, 0.5).train()
    block.dropout.p = 1.0
    x = torch.randn(2, 3, 4)
    assert torch.equal(block(x), x if prenorm else block.norm(x))


@pytest.mark.parametrize(
    ("name", "kind", "direction", "dtype"),
    [
        *((name, "signals", "causal", torch.float64) for name in names()),
        *((name, "symbols", "causal", torch.float32) for name in names()),
        *((name, "symbols", "bidirectional", torch.float64) for name in names()),
        # one class makes the outputs of all models
        *((name, "last positions", "causal", torch.float32) for name in ("dlr", "focus", "seqboat", "transformer")),
        *((name, "whole sequence", "causal", torch.float32) for name in ("dlr", "focus", "seqboat", "transformer")),
    ],
)
def test_conforms(name: str, kind: str, direction: str, dtype: torch.dtype) -> None:
    input, target = SPECS[kind]
    causal = direction == "causal"
    try:
        registry.get(name).make(**small(name)).build(input, target, causal=causal)
    except UsageError as error:
        if causal or "causal" not in str(error):
            raise
        pytest.skip(str(error))
    check_model(name, input=input, target=target, causal=causal, dtype=dtype, **small(name))


@pytest.mark.parametrize("name", names())
def test_a_stream_longer_than_the_model_was_built_for_is_right_or_refused(name: str) -> None:
    """It must not silently forget inputs that the parallel form uses."""
    torch.manual_seed(0)
    input, target = SPECS["signals"]
    model = registry.get(name).make(**small(name)).build(input, target, causal=True).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        x = torch.randn(2, LENGTH + 8, 3, dtype=torch.float64)
        wanted, state = model(x)[:, -8:], model.initial_state(2)
        for t in range(LENGTH):
            y, state = model.step(x[:, t], state)
        try:
            for t in range(8):
                y, state = model.step(x[:, LENGTH + t], state)
                assert gap(y, wanted[:, t]) < 1e-10
        except UsageError as error:
            assert f"built for {LENGTH} positions" in str(error)


@pytest.mark.parametrize("name", names())
def test_a_bidirectional_model_is_seen_to_look_ahead(name: str) -> None:
    """The model uses later inputs, and the causality check finds this in a new model."""
    spec = SPECS["symbols"][0]

    def factory(input: Spec, target: Spec) -> torch.nn.Module:
        return registry.get(name).make(**small(name)).build(input, target, causal=False)

    try:
        factory(spec, spec)
    except UsageError as error:
        pytest.skip(str(error))
    with pytest.raises(UsageError, match="not causal"):
        check_model(factory, input=spec, target=spec)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("name", names())
def test_computes_in_half_precision(name: str, dtype: torch.dtype) -> None:
    """A model turned to half precision gives about what it gives in float32, and finite gradients in its own type."""
    torch.manual_seed(0)
    model = registry.get(name).make(**small(name)).build(Spec("real", 40, 3), Spec("real", 40, 2), causal=True).eval()
    x = torch.randn(2, 40, 3)
    with torch.no_grad():
        expected = model(x)
    found = model.to(dtype)(x.to(dtype))
    assert found.dtype == dtype
    assert gap(found.float(), expected) < 0.1
    found.float().square().mean().backward()
    for parameter in model.parameters():
        assert parameter.grad is None or (parameter.grad.dtype == parameter.dtype and parameter.grad.isfinite().all())


def parameter_count(name: str) -> int:
    """Of the small preset, on the shift task at length 256 with 8 shifts."""
    config = registry.get(name).make(**registry.get(name).preset_values("small")[0])
    model = config.build(Spec("real", 256, 3), Spec("real", 256, 8), causal=True)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", sorted(set(registry.built_in()) - {"attention", "dlr", "sgconv"}))
def test_small_presets_have_about_the_parameters_of_dlr(name: str) -> None:
    assert parameter_count(name) == pytest.approx(parameter_count("dlr"), rel=0.15)


@pytest.mark.filterwarnings("ignore:.*divide the length")
@pytest.mark.parametrize("name", names())
def test_small_presets_fit_every_causal_task(name: str) -> None:
    """Each resolves to a model; it can be built for each kind of input and target, and where it has presets."""
    built = set()
    for task in generators.names():
        run = RunConfig.make(task, name)
        input, target = run.task.input, run.task.target
        kind = input.kind, target.kind, target.pooled, json.dumps(run.model.identity["parameters"])
        if run.task.causal and kind not in built:
            built.add(kind)
            with torch.device("meta"):
                model = run.build()
            assert model.input == input and model.target == target


@pytest.mark.parametrize(
    ("name", "task", "schedule"),
    [
        *((name, task, "linear") for name in HYBRIDS for task in LRA),
        *((name, "recall", "cosine") for name in ("focus", "focus-h", "hyena", "transformer")),
        *((name, "shift", "constant") for name in (*HYBRIDS, "focus")),
    ],
)
def test_paper_presets_follow_the_papers_schedules(name: str, task: str, schedule: str) -> None:
    budget = RunConfig.make(task, name, preset="paper").budget
    assert budget.schedule == schedule
    assert (budget.warmup_steps > 0) == (schedule != "constant")


def test_recall_models_share_a_budget() -> None:
    """The models in Focus's Table 1 have equal budgets except for the learning rate, at every length."""
    runs = [
        RunConfig.make("recall", name, preset="paper", settings={"task.length": length})
        for name in ("focus", "focus-h", "hyena", "transformer")
        for length in (30, 256)
    ]
    assert len({json.dumps({**run.budget.parameters(), "lr": None}) for run in runs}) == 1
    assert {(run.model.parameters["layers"], run.model.parameters["d_model"]) for run in runs} == {(2, 64)}
    assert {run.task.parameters()["vocab"] for run in runs} == {30} and runs[0].budget.train_samples == 2000


COMPILED = """
import torch
from lrtasks.models import build
from lrtasks.spec import Spec

model = build("gru", Spec("real", 8, 1), Spec("real", 8, 1))
x = torch.randn(2, 8, 1)
found = torch.compile(model, backend="eager")(x)
assert torch.equal(found, model(x))
"""


@pytest.mark.e2e
def test_torch_compile_takes_a_model_whose_loops_are_not_compiled_yet(tmp_path: Path) -> None:
    """It would otherwise trace numba's compiler, and fail there."""
    subprocess.run([sys.executable, "-c", COMPILED], check=True, env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)})


class NoWaiting(TorchDispatchMode):
    """Refuses copies from the CPU that wait until a GPU has done all earlier work."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        copies = func is torch.ops.aten._to_copy.default and args[0].device.type == "cpu"
        assert not copies or kwargs.get("non_blocking") or torch.device(kwargs.get("device", "cpu")).type == "cpu"
        return func(*args, **kwargs)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, {}) for name in ("attention", "dlr", "dss", "hyena", "mamba", "mega", "retnet", "s4d", "sgconv")),
        ("mamba3", {"rank": 2}),
        ("transformer", {"positions": "alibi"}),
    ],
)
def test_a_training_step_copies_nothing_to_the_device(
    name: str, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = registry.get(name).make(**small(name) | settings)
    model = config.build(*SPECS["signals"], causal=True).to("meta")
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # has no device "meta"
    with NoWaiting():
        model(torch.empty(2, LENGTH, 3, device="meta")).sum().backward()
