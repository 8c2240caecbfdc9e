"""Runs that diverge, fail or cannot be."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from quick_runs import TASK, folders, outcome, run
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from toys import Labels, Net, plain

import lrtasks
from lrtasks.data import generate
from lrtasks.errors import UsageError
from lrtasks.generators.base import overlap
from lrtasks.results import read_record
from lrtasks.spec import Spec


def test_diverging_is_recorded(tmp_path: Path) -> None:
    record = run("toys:exploding", tmp_path, hyper={"healthy": 5})
    assert record.status == "diverged"
    assert record.notes[-1] == "the loss was no longer finite at step 8"
    assert [point["step"] for point in record.curve] == [4]
    assert "test" not in record.scores
    (folder,) = folders(tmp_path)
    assert [path.name for path in folder.iterdir()] == ["record.json"]
    assert outcome(read_record(folder)) == outcome(record)
    with pytest.raises(UsageError, match=r"has no weights.pt; the status of the run is diverged"):
        lrtasks.load_model(folder)


def test_diverging_is_noticed_between_evaluations(tmp_path: Path) -> None:
    record = run("toys:exploding", tmp_path, hyper={"healthy": 5}, budget={"steps": 40, "eval_every": 40})
    assert record.notes[-1] == "the loss was no longer finite at step 20"


def test_an_extra_loss_that_explodes_later_is_divergence(tmp_path: Path) -> None:
    class Usage(Net):
        calls = 0

        def extra_losses(self) -> dict[str, Tensor]:
            self.calls += 1
            return {"usage": self.decoder.bias.sum() * (math.inf if self.calls > 5 else 0.0)}

    record = run(Usage(TASK.input, TASK.target), tmp_path)
    assert (record.status, record.notes[-1]) == ("diverged", "the loss was no longer finite at step 8")


def test_weights_that_diverge_at_the_last_step_are_noticed(tmp_path: Path) -> None:
    class Steep(Net):
        def forward(self, x: Tensor) -> Tensor:
            zero = self.decoder.bias - self.decoder.bias
            return super().forward(x) + zero.sqrt()  # a value of 0, and no gradient

    record = run(Steep(TASK.input, TASK.target), tmp_path, budget={"steps": 1})
    assert record.status == "diverged"
    assert record.notes == ["the weights were no longer finite at step 1"]


def test_wrong_diagnostics_end_a_run_before_its_training_is_lost(tmp_path: Path) -> None:
    class Wrong(Net):
        steps = 0

        def forward(self, x: Tensor) -> Tensor:
            self.steps += self.training
            return super().forward(x)

        def diagnostics(self) -> Any:
            return {"rate": self.decoder.bias}

    model = Wrong(TASK.input, TASK.target)
    with pytest.raises(UsageError, match=r"diagnostics of the model: rate must be numbers.* Parameter "):
        run(model, tmp_path, budget={"steps": 8, "eval_every": 4})
    assert model.steps == 4
    assert list(tmp_path.iterdir()) == []


def test_diverging_leaves_other_runs_alone(tmp_path: Path) -> None:
    run(plain, tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    run("toys:exploding", tmp_path)
    assert len(folders(tmp_path)) == 2
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("seed", [-1, 2**63, "0", 1.5])
def test_bad_seeds_are_found_before_anything_is_built(tmp_path: Path, seed: Any) -> None:
    def never(*_: Any, **__: Any) -> nn.Module:
        raise AssertionError

    with pytest.raises(UsageError, match="seed must be a whole number"):
        run(never, tmp_path, seed=seed)


def test_a_bug_in_a_model_is_recorded_and_raised(tmp_path: Path) -> None:
    class Buggy(Net):
        def forward(self, x: Tensor) -> Tensor:
            raise ZeroDivisionError("oh")

    with pytest.raises(ZeroDivisionError):
        run(Buggy(TASK.input, TASK.target), tmp_path)
    record = read_record(folders(tmp_path)[0])
    assert record.status == "failed"
    assert re.fullmatch(r"ZeroDivisionError: oh \(line \d+ of test_run_failures\.py\)", record.notes[0])


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_too_little_memory_is_said_in_one_line(tmp_path: Path, error: Exception) -> None:
    class Hungry(Net):
        def forward(self, x: Tensor) -> Tensor:
            raise error

    with pytest.raises(UsageError, match="not enough memory for this run; choose a smaller batch_size"):
        run(Hungry(TASK.input, TASK.target), tmp_path)


@pytest.mark.e2e
def test_a_worker_that_dies_is_said_in_one_line(tmp_path: Path) -> None:
    class Deadly(Labels):
        def sample(self, rng: np.random.Generator) -> Any:
            import multiprocessing
            import os
            import signal
            import time

            if multiprocessing.parent_process() is not None:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.1)  # the first batch is made here, to see how long one takes
            return super().sample(rng)

    with pytest.raises(UsageError, match=r"a background process that makes batches died .*; try --workers 0"):
        run(plain, tmp_path, Deadly(), workers=1)


def test_a_faulty_task_is_an_error_in_words(tmp_path: Path) -> None:
    class Faulty(Labels):
        def sample(self, rng: np.random.Generator) -> Any:
            sample = super().sample(rng)
            return sample._replace(y=sample.y + 2)

    with pytest.raises(UsageError, match=r"labels: in its samples y holds -98; allowed: 0\.\.3, and -100"):
        run(plain, tmp_path, Faulty())
    assert list(tmp_path.iterdir()) == []


forward: Any = Net.forward


def variant(**members: Any) -> type[Net]:
    """A net with other members."""
    return type("Variant", (Net,), members)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (variant(forward=lambda self, x: (forward(self, x),)), "output of forward in training must be one tensor"),
        (
            variant(forward=lambda self, x: forward(self, x).long()),
            "output of forward in training must hold floating-point values, found torch.int64",
        ),
        (variant(forward=lambda self, x: forward(self, x).detach()), "forward returned an output without a gradient"),
        (variant(forward=lambda self, x: forward(self, x.mul_(2.0))), "forward changes its input in place"),
        (
            variant(forward=lambda self, x: forward(self, x)[:, : None if self.training else -1]),
            "output of forward in evaluation must have shape",
        ),
        (variant(extra_losses=lambda _: [1.0]), "extra_losses of the model must return a dictionary by name"),
        (
            variant(extra_losses=lambda self: {"balance": self.decoder.bias.sum() * float("nan")}),
            "extra_losses of the model: balance must be finite, found nan",
        ),
    ],
)
def test_a_faulty_model_is_an_error_in_words(tmp_path: Path, model: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(model, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_was_compiled_too_early_is_an_error_in_words(tmp_path: Path) -> None:
    compiled: Any = torch.compile(Net(TASK.input, TASK.target), backend="eager")
    assert run(compiled, tmp_path / "known").status == "done"
    compiled._compile_kwargs = None  # what Fabric notes in each model that is compiled after its import
    with pytest.raises(UsageError, match=r"import lightning_fabric before torch\.compile"):
        run(compiled, tmp_path / "unknown")


def test_training_without_gradients_is_an_error_in_words(tmp_path: Path) -> None:
    with torch.no_grad(), pytest.raises(UsageError, match="gradients are off"):
        run(Net, tmp_path)


def test_predictions_that_are_no_numbers_are_not_done(tmp_path: Path) -> None:
    record = run(variant(forward=lambda self, x: forward(self, x) * (1 if self.training else math.nan)), tmp_path)
    assert record.status == "diverged"
    assert "predictions are not finite numbers" in record.notes[-1]


def test_state_outside_the_state_dict_is_warned_of(tmp_path: Path) -> None:
    class Counting(Net):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x)

    with pytest.warns(UserWarning, match=r"state outside state_dict\(\) changed in a forward pass \(calls\)"):
        record = run(Counting, tmp_path)
    assert any("(calls)" in note for note in record.notes)


def test_a_random_generator_is_state(tmp_path: Path) -> None:
    class Noisy(Net):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.noise = torch.Generator().manual_seed(0)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x + torch.randn(x.shape, generator=self.noise))

    with pytest.warns(UserWarning, match=r"state outside state_dict\(\) changed in a forward pass \(noise\)"):
        run(Noisy, tmp_path)


def test_extra_state_is_in_the_state_dict(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    class Counting(Net):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x)

        def get_extra_state(self) -> int:
            return self.calls

        def set_extra_state(self, state: int) -> None:
            self.calls = state

    assert run(Counting, tmp_path).status == "done"
    assert not recwarn.list


def test_state_may_be_a_column_of_a_matrix(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    class WithColumns(Net):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.register_buffer("column", torch.rand(4, 2)[:, 0], persistent=False)
            self.first, self.ones = torch.rand(4, 2)[:1, 0], torch.ones(1).expand(4)

    assert run(WithColumns, tmp_path).status == "done"
    assert not recwarn.list


def test_extra_state_that_a_checkpoint_cannot_hold_is_refused_before_training(tmp_path: Path) -> None:
    class WithArray(Net):
        def get_extra_state(self) -> Any:
            return {"array": np.zeros(2)}

        def set_extra_state(self, state: Any) -> None:
            pass

    with pytest.raises(UsageError, match="a checkpoint cannot hold _extra_state of the model"):
        run(WithArray, tmp_path)
    assert not list(tmp_path.iterdir())


def test_tables_that_do_not_change_are_no_state(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    class WithTables(Net):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.register_buffer("table", torch.full((3, 3), math.nan), persistent=False)
            self.sparse = torch.eye(3).to_sparse()

        def forward(self, x: Tensor) -> Tensor:
            self.table = self.table.clone()
            return super().forward(x)

    assert not run(WithTables, tmp_path).notes
    assert not recwarn.list


def test_a_table_that_changes_is_state(tmp_path: Path) -> None:
    class Averaging(Net):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            self.register_buffer("average", torch.zeros(3), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            self.average.data += 1
            return super().forward(x)

    with pytest.warns(UserWarning, match=r"changed in a forward pass \(average\)"):
        run(Averaging, tmp_path)


def test_a_result_of_the_forward_pass_is_no_state(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    class WithLoss(Net):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            self.kept = y.square().mean()
            return y

        def extra_losses(self) -> dict[str, Tensor]:
            return {"size": self.kept}

    assert not run(WithLoss, tmp_path).notes
    assert not recwarn.list


def test_weights_that_are_not_trained_are_warned_of(tmp_path: Path) -> None:
    class CutOff(Net):
        def __init__(self, input: Spec, target: Spec) -> None:
            super().__init__(input, target)
            self.inner = nn.Linear(target.width, target.width)

        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            return y + self.inner(y).detach()

    class InList(Net):
        def __init__(self, input: Spec, target: Spec) -> None:
            super().__init__(input, target)
            self.inner = [nn.Linear(target.width, target.width)]

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + self.inner[0](super().forward(x))

    class InForward(Net):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            if not hasattr(self, "inner"):
                self.inner = nn.Linear(y.shape[-1], y.shape[-1])
            return y + self.inner(y)

    with pytest.warns(UserWarning, match=r"no gradient reaches inner\.weight, inner\.bias$"):
        assert "no gradient reaches" in run(CutOff, tmp_path).notes[0]
    with pytest.warns(UserWarning, match="have gradients, but are not trained; register them"):
        assert "but are not trained" in run(InList, tmp_path).notes[0]
    with pytest.warns(UserWarning, match="have gradients, but are not trained; register them"):
        assert "but are not trained" in run(InForward, tmp_path).notes[0]


def test_weights_in_a_backward_pass_of_its_own_are_reached(tmp_path: Path) -> None:
    class Reentrant(nn.Linear):
        def __init__(self, d_model: int) -> None:
            super().__init__(d_model, d_model)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(super().forward, x, use_reentrant=x.requires_grad)

    assert run(Reentrant, tmp_path).notes == []


class Averaging(nn.Module):
    """A mixer that sees the future, if ``ahead`` is true."""

    def __init__(self, d_model: int, ahead: bool = True) -> None:
        super().__init__()
        self.map, self.ahead = nn.Linear(d_model, d_model), ahead

    def forward(self, x: Tensor) -> Tensor:
        return self.map(x + x.mean(1, keepdim=True) if self.ahead else x)


@pytest.mark.parametrize("task", ["shift", "mqar", "listops"])
def test_a_model_that_sees_the_future_is_warned_of(task: str, tmp_path: Path) -> None:
    made = lrtasks.make(task, preset="small")
    with pytest.warns(UserWarning, match="the model is not causal, but the task is"):
        assert any("not causal" in note for note in run(Averaging, tmp_path, made).notes)
    assert not any("not causal" in note for note in run(Averaging, tmp_path, made, hyper={"ahead": False}).notes)


@pytest.mark.parametrize("size", [2, 3, 4, 16])
def test_a_model_that_sees_the_future_inside_chunks_is_warned_of(size: int, tmp_path: Path) -> None:
    class Chunks(Averaging):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([Averaging.forward(self, part) for part in x.split(size, 1)], 1)

    with pytest.warns(UserWarning, match="the model is not causal, but the task is"):
        run(Chunks, tmp_path, lrtasks.make("cumsum", length=64))


def test_nothing_can_come_after_a_pooled_output(tmp_path: Path) -> None:
    assert not any("not causal" in note for note in run(Averaging, tmp_path, lrtasks.make("adding", length=16)).notes)


def test_a_model_with_random_outputs_does_not_count_as_not_causal(tmp_path: Path) -> None:
    noisy = variant(forward=lambda self, x: forward(self, x) + torch.randn(1))
    assert not any("not causal" in note for note in run(noisy, tmp_path).notes)


def test_links_in_a_results_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "shift").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is a symbolic link"):
        run(plain, tmp_path / "runs")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_small_space_is_noted(tmp_path: Path) -> None:
    record = run(plain, tmp_path, lrtasks.make("recall", length=2, vocab=8))
    assert any("of the test inputs occur in training" in note for note in record.notes)


def test_the_noted_share_counts_all_training_inputs(tmp_path: Path) -> None:
    task = lrtasks.make("recall", length=4)
    record = run(plain, tmp_path, task, budget={"steps": 100, "batch_size": 100, "eval_every": 100, "test_batches": 3})
    share, first = overlap(task, 10_000, 300), overlap(task, 4_100, 300)
    assert share > first + 0.02
    assert any(note.startswith(f"{share:.1%} of the test inputs") for note in record.notes)


def test_inputs_that_stored_splits_share_are_noted(tmp_path: Path) -> None:
    shared, none = lrtasks.make("recall", length=2, vocab=8), lrtasks.make("recall", length=64)
    for task, noted in ((shared, True), (none, False)):
        data = tmp_path / f"data-{noted}"
        generate(task, data, samples=100, split=(0.6, 0.2, 0.2), workers=1)
        record = run(plain, tmp_path / f"runs-{noted}", task, data=str(data))
        assert any("of the test inputs occur in training" in note for note in record.notes) == noted
