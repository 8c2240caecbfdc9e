"""What happens in the steps of a run: losses, rates, clipping, precision, which weights are tested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from quick_runs import OWN_LENGTHS, TASK, folders, run
from torch import Tensor, nn
from toys import Labels, Net, Reporting, plain

from lrtasks.evaluation import loop
from lrtasks.evaluation.batches import BatchStream, Replay
from lrtasks.evaluation.optimiser import LOSSES


def test_the_time_of_evaluations_is_told_from_that_of_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, real = [0.0], loop._evaluate_and_note

    def slow(*arguments: Any) -> None:
        now[0] += 100.0
        real(*arguments)

    class Timed(Net):
        def forward(self, x: Tensor) -> Tensor:
            now[0] += 1.0 * self.training
            return super().forward(x)

    monkeypatch.setattr(loop, "_evaluate_and_note", slow)
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    cost = run(Timed(TASK.input, TASK.target), tmp_path).cost
    assert (cost["seconds"], cost["seconds_with_evaluation"]) == (12.0, 312.0)


def test_extra_losses_enter_the_loss_and_diagnostics_the_record(tmp_path: Path) -> None:
    module = nn.Sequential(Reporting(TASK.input, TASK.target))
    record = run(module, tmp_path, budget={"lr": 1.0, "steps": 40, "eval_every": 20})
    # the extra loss pulls the bias to 7, 3 · 2 · 49 away from it at the start
    assert 10 < record.curve[0]["loss"] < 300
    assert record.diagnostics == {"0": {"bias": pytest.approx(module[0].decoder.bias.mean().item())}}
    assert record.diagnostics["0"]["bias"] > 4
    losses = [run(Reporting, tmp_path, budget={"accumulate": parts}).curve[0]["loss"] for parts in (1, 2)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)  # not twice as much


def test_the_curve_shows_the_mean_loss_since_the_last_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses: list[float] = []
    real = LOSSES["mse"]

    def spy(*arguments: Tensor) -> Tensor:
        value = real(*arguments)
        losses.append(value.item())
        return value

    monkeypatch.setitem(LOSSES, "mse", spy)
    record = run(plain, tmp_path, budget={"steps": 10})
    expected = [np.mean(losses[start:end]) for start, end in ((0, 4), (4, 8), (8, 10))]
    assert [point["loss"] for point in record.curve] == pytest.approx(expected)
    assert [point["step"] for point in record.curve] == [4, 8, 10], "the last step is always evaluated"


def test_class_weights_change_what_a_run_learns(tmp_path: Path) -> None:
    task = Labels()
    ones, heavy = [1.0] * task.target.width, [1.0] * task.target.width
    heavy[0] = 1e4
    found = {}
    for name, weights in {"none": None, "ones": ones, "heavy": heavy}.items():
        record = run(plain, tmp_path / name, task, budget={"steps": 20, "class_weights": weights})
        assert record.budget.get("class_weights") == weights
        found[name] = record.curve[-1]["loss"]
    assert found["ones"] == pytest.approx(found["none"], rel=1e-5)
    assert found["heavy"] != pytest.approx(found["none"], rel=1e-2)


def test_stop_at(tmp_path: Path) -> None:
    budget = {"steps": 400, "eval_every": 5, "stop_at": 1.0, "lr": 0.005}
    record = run(plain, tmp_path, Labels(), budget=budget)
    scores = [point["accuracy"] for point in record.curve]
    assert record.status == "done"
    assert record.curve[-1]["step"] < 400
    assert scores[-1] == 1.0 > max(scores[:-1])


def test_bf16(tmp_path: Path) -> None:
    kinds: set[torch.dtype] = set()

    class Seeing(Net):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            kinds.add(out.dtype)
            return out

    rounded, exact = Seeing(TASK.input, TASK.target), Net(TASK.input, TASK.target)
    exact.load_state_dict(rounded.state_dict())
    record = run(rounded, tmp_path, budget={"precision": "bf16"})
    assert kinds == {torch.bfloat16}
    score = run(exact, tmp_path).headline()
    assert record.headline() == pytest.approx(score, abs=0.01)
    assert record.headline() != score


@pytest.mark.parametrize("before", [False, True])
def test_models_compute_without_denormal_numbers_and_the_caller_keeps_its_setting(tmp_path: Path, before: bool) -> None:
    def flushed() -> bool:
        return bool(torch.full((1,), 2.0**-130) * 1.0 == 0)

    seen = {"training": set[bool](), "evaluation": set[bool](), "gradient": set[bool]()}

    class Noting(Net):
        def forward(self, x: Tensor) -> Tensor:
            seen["training" if self.training else "evaluation"].add(flushed())
            output = super().forward(x)
            if self.training:
                output.register_hook(lambda _: seen["gradient"].add(flushed()))
            return output

    if not torch.set_flush_denormal(before):
        pytest.skip("this processor has no such setting")
    try:
        run(Noting(TASK.input, TASK.target), tmp_path)
        assert flushed() == before
    finally:
        torch.set_flush_denormal(False)
    assert seen["training"] == seen["gradient"] == {True}
    assert True in seen["evaluation"]  # the check of causality after the run computes as the caller does


def test_learning_rates_follow_the_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []
    real = torch.optim.AdamW.step

    def step(self: torch.optim.AdamW, *arguments: Any) -> Any:
        rates.extend(group["lr"] for group in self.param_groups)
        return real(self, *arguments)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    run(plain, tmp_path, budget={"warmup_steps": 4, "lr": 0.1})
    assert rates == pytest.approx([0.025, 0.05, 0.075] + [0.1] * 9)


def test_gradients_are_clipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    norms: dict[float, list[float]] = {0.0: [], 0.01: []}
    real = torch.optim.AdamW.step
    for clip, found in norms.items():

        def step(self: torch.optim.AdamW, *arguments: Any, found: list[float] = found) -> Any:
            gradients = [value.grad for group in self.param_groups for value in group["params"]]
            found.append(float(torch.cat([value.flatten() for value in gradients]).norm()))
            return real(self, *arguments)

        monkeypatch.setattr(torch.optim.AdamW, "step", step)
        run(Net(TASK.input, TASK.target), tmp_path, budget={"clip": clip})
    assert min(norms[0.0]) > 0.011
    assert max(norms[0.01]) == pytest.approx(0.01, rel=1e-3)


def test_a_finite_training_set_is_tested_at_its_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the second one of five evaluations is made the best, and the third one equal to it
    real, calls = loop.score, []

    def score(*arguments: Any, **options: Any) -> Any:
        scorer = real(*arguments, **options)
        if options.get("slices") is False and len(calls) < 5:
            calls.append(scorer)
            scores = {**scorer.scores(), "r2": [0.1, 0.3, 0.3, 0.2, 0.25][len(calls) - 1]}
            monkeypatch.setattr(scorer, "scores", lambda: scores)
        return scorer

    monkeypatch.setattr(loop, "score", score)
    module = Net(TASK.input, TASK.target)
    record = run(module, tmp_path, budget={"train_samples": 8, "eval_every": 3, "steps": 15})
    saved = torch.load(folders(tmp_path)[0] / "weights.pt", weights_only=True)
    assert saved["step"] == 6
    assert torch.equal(module.decoder.weight, saved["model"]["decoder.weight"])
    assert record.scores["val"].items() < record.curve[1].items()
    train = Replay(BatchStream(TASK, 0, "train", 4, samples=8), 3, 0)  # as many batches as the test has
    for split, batches in (("train", train), ("test", [TASK.batch(range(12), split="test")])):
        x, y = (np.concatenate([getattr(batch, name) for batch in batches]) for name in "xy")
        with torch.no_grad():
            error = ((module(torch.from_numpy(x)).numpy() - y) ** 2).mean()
        assert record.scores[split]["r2"] == pytest.approx(1 - error / y.var(), abs=1e-6)


def test_with_fresh_samples_the_last_weights_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, values = loop.score, iter((0.3, 0.2, 0.1))

    def score(*arguments: Any, **options: Any) -> Any:
        scorer = real(*arguments, **options)
        if options.get("slices") is False:
            scores = {**scorer.scores(), "r2": next(values)}
            monkeypatch.setattr(scorer, "scores", lambda: scores)
        return scorer

    monkeypatch.setattr(loop, "score", score)
    record = run(plain, tmp_path)
    assert [point["r2"] for point in record.curve] == [0.3, 0.2, 0.1]
    assert record.scores["val"]["r2"] == 0.1


def test_evaluation_mode_is_left_again(tmp_path: Path) -> None:
    modes: list[bool] = []

    class Watching(Net):
        def forward(self, x: Tensor) -> Tensor:
            modes.append(self.training)
            return super().forward(x)

    run(Watching(TASK.input, TASK.target), tmp_path, budget={"steps": 8, **OWN_LENGTHS})
    # two evaluations of two batches each, then the test's three batches and one batch of each further test, and five
    # passes of one batch that show whether the model is causal
    assert modes == [True] * 4 + [False] * 2 + [True] * 4 + [False] * 2 + [False] * (3 + len(TASK.tests()) + 5)


def test_the_padding_mask_reaches_models_that_take_it(tmp_path: Path) -> None:
    given: list[Tensor | None] = []

    class Masked(Net):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            given.append(mask)
            return super().forward(x)

    class Padded(Labels):
        def sample(self, rng: np.random.Generator) -> Any:
            return super().sample(rng)._replace(mask=np.arange(self.length) < 7)

    model = Masked(Labels().input, Labels().target)
    run(model, tmp_path, Padded())
    assert all(mask is not None and mask.sum(1).tolist() == [7] * 4 for mask in given)
    assert run(plain, tmp_path, Padded()).status == "done"  # and is kept from those that do not
