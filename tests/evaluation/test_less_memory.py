"""Parts of a batch one after the other, and blocks computed again: the same run in less memory."""

from __future__ import annotations

import random
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from quick_runs import run
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from toys import Labels, Net

import lrtasks
from lrtasks.budget import Budget
from lrtasks.errors import UsageError
from lrtasks.evaluation import checkpoint, loop
from lrtasks.evaluation.optimiser import LOSSES
from lrtasks.models.base import recompute_blocks
from lrtasks.models.factory import model_factory
from lrtasks.run_config import RunConfig
from lrtasks.spec import IGNORED, Spec

SHORT: dict[str, Any] = {"steps": 2, "eval_every": 2, "batch_size": 6, "val_batches": 1, "test_batches": 1}
SHORT |= {"test_lengths": ()}


def weights(model: Any, out: Path, task: Any, hyper: dict[str, Any], **budget: Any) -> dict[str, torch.Tensor]:
    """What a short run ends with."""
    record = run(model, out, task, hyper=hyper, budget={**SHORT, **budget})
    assert record.status == "done"
    (path,) = out.rglob("weights.pt")
    found: dict[str, torch.Tensor] = checkpoint.load(path)["model"]
    return found


@pytest.mark.parametrize("task", [lrtasks.make("shift", length=16), Labels()])
def test_a_batch_in_parts_gives_the_same_weights(tmp_path: Path, task: Any) -> None:
    hyper = {"d_model": 8}
    whole = weights("attention", tmp_path / "whole", task, hyper)
    for parts in (2, 3):
        found = weights("attention", tmp_path / str(parts), task, hyper, accumulate=parts)
        assert all(torch.allclose(found[name], value, rtol=0, atol=1e-5) for name, value in whole.items())


@pytest.mark.parametrize("loss", ["cross-entropy", "balanced-cross-entropy"])
@pytest.mark.parametrize("parts", [1, 3])
def test_logits_at_labelled_positions_alone_give_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str, parts: int
) -> None:
    task = lrtasks.make("mqar", preset="small")
    monkeypatch.setattr(type(task), "loss", loss)
    rows: dict[bool, list[int]] = {True: [], False: []}
    linear = torch.nn.Linear.forward
    found = {}
    for selecting, seen in rows.items():

        def spy(layer: torch.nn.Linear, x: torch.Tensor, seen: list[int] = seen) -> torch.Tensor:
            if layer.training and layer.out_features == task.target.width:
                seen.append(x[..., 0].numel())
            return linear(layer, x)

        with monkeypatch.context() as patch:
            patch.setattr(torch.nn.Linear, "forward", spy)
            if not selecting:
                patch.setattr(loop, "labelled", lambda _: None)
            found[selecting] = weights("attention", tmp_path / str(selecting), task, {"d_model": 8}, accumulate=parts)
    assert 0 < sum(rows[True]) < sum(rows[False]) / 5
    assert all(torch.allclose(found[True][name], value, rtol=0, atol=1e-5) for name, value in found[False].items())


@pytest.mark.parametrize("name", LOSSES)
def test_losses_of_parts_add_up(name: str) -> None:
    loss, real = LOSSES[name], name == "mse"
    output = torch.randn(6, 5, 3)
    target = torch.randn(6, 5, 3) if real else torch.randint(3, (6, 5))
    if not real:
        target[0, 2:] = IGNORED
        target[4] = IGNORED
    parts = zip(output.split([2, 3, 1]), target.split([2, 3, 1]), strict=True)
    assert torch.allclose(sum(loss(x, y, target) for x, y in parts), loss(output, target, target))


@pytest.mark.parametrize(
    ("model", "hyper"),
    [
        ("dlr", {"d_model": 8}),
        ("transformer", {"d_model": 8, "dropout": 0.2}),
        ("longvq", {"d_model": 8, "window": 8}),
        ("seqboat", {"d_model": 8, "window": 8, "router": "gumbel"}),
        ("mega", {"d_model": 8, "norm": "batch", "allow_batch_norm": True}),
        ("rwkv7", {"d_model": 8, "heads": 2}),
        ("focus", {"d_model": 8}),
        ("focus-h", {"d_model": 8, "dropout": 0.2}),
        ("hybrid", {"d_model": 8, "layers": "rwkv7:1,seqboat:1", "n_layers": 4, "hyper": ("rwkv7.heads=2",)}),
    ],
)
def test_blocks_that_are_computed_again_give_the_same_weights(
    tmp_path: Path, model: str, hyper: dict[str, Any]
) -> None:
    """Random numbers, running averages and counters of a block are those of one forward pass."""
    task = lrtasks.make("shift", length=16)
    hyper = {"layers": 2, **hyper}
    plain = weights(model, tmp_path / "plain", task, hyper)
    again = weights(model, tmp_path / "again", task, hyper, checkpoint_blocks=True)
    assert all(torch.equal(again[name], value) for name, value in plain.items())


class Wayward(nn.Module):
    """Replaces buffers, counts calls, and draws from NumPy and Python; one buffer is an expanded tensor."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.calls = 0
        self.maps = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(2))
        self.register_buffer("size", torch.ones(()))
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("ones", torch.ones(1).expand(d_model), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.maps[random.randrange(2) if self.training else 0](x)) * self.ones
        if self.training:
            self.size = 0.9 * self.size + 0.1 * y.detach().abs().mean()
            self.count = self.count + 1
            self.calls += 1
            y = y * (0.5 + np.random.random()) / self.calls
        return y / self.size


def test_a_users_mixer_that_is_computed_again_gives_the_same_weights(tmp_path: Path) -> None:
    plain, again = (
        weights(Wayward, tmp_path / str(flag), lrtasks.make("shift", length=16), {}, checkpoint_blocks=flag, steps=4)
        for flag in (False, True)
    )
    assert plain["blocks.0.mixer.mixer.count"] == 4
    assert all(torch.equal(again[name], value) for name, value in plain.items())


class Counting(nn.Module):
    """Has a form in TorchScript, with a buffer that each call changes."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.map = nn.Linear(d_model, d_model)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return torch.tanh(torch.cumsum(self.map(x), 1)) / self.count


def scripted(d_model: int) -> nn.Module:
    return torch.jit.script(Counting(d_model))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_a_mixer_in_torchscript_can_be_computed_again(tmp_path: Path) -> None:
    task = lrtasks.make("shift", length=16)
    plain, again = (weights(scripted, tmp_path / str(flag), task, {}, checkpoint_blocks=flag) for flag in (False, True))
    assert all(torch.allclose(again[name], value, rtol=0, atol=1e-5) for name, value in plain.items())


class Living(TorchDispatchMode):
    """Counts the bytes of the tensors made inside that still live; ``peak`` is the most there were at once."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: set[int] = set()
        self.living = self.peak = 0

    def free(self, storage: int, size: int) -> None:
        self.storages.remove(storage)
        self.living -= size

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        for value in tree_leaves(found):
            storage = value.untyped_storage() if isinstance(value, torch.Tensor) else None
            if storage is not None and storage._cdata not in self.storages:
                self.storages.add(storage._cdata)
                self.living += storage.nbytes()
                weakref.finalize(storage, self.free, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.living)
        return found


@pytest.mark.parametrize(
    ("model", "hyper"),
    [
        ("transformer", {"layers": 8}),
        ("rwkv7", {"layers": 8}),
        ("focus", {"layers": 8}),
        ("focus-h", {"layers": 8}),
        ("hybrid", {"layers": "rwkv7:1,focus:1", "n_layers": 8}),
    ],
)
def test_blocks_that_are_computed_again_take_less_memory(model: str, hyper: dict[str, Any]) -> None:
    spec = Spec("real", 64, 1)
    built = model_factory(model, {"d_model": 16, **hyper}).build(spec, spec, True)
    peaks = []
    for _ in range(2):
        with Living() as living:
            built(torch.randn(2, 64, 1)).square().sum().backward()
        built.zero_grad()
        peaks.append(living.peak)
        recompute_blocks(built)
    assert peaks[1] < peaks[0] / 2


def test_only_a_stack_of_blocks_can_be_computed_again(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"checkpoint_blocks needs a stack of blocks.*found Net"):
        run(Net, tmp_path, budget={**SHORT, "checkpoint_blocks": True})


def test_parts_divide_the_batch() -> None:
    with pytest.raises(UsageError, match=r"accumulate must divide batch_size \(6\), found 4"):
        Budget(batch_size=6, accumulate=4)


def test_runs_from_before_these_fields_keep_their_names() -> None:
    plain = RunConfig.make("shift", "dlr")
    assert not {"accumulate", "checkpoint_blocks"} & plain.identity()["budget"].keys()
    assert RunConfig.make("shift", "dlr", settings={"accumulate": 2}).digest != plain.digest
