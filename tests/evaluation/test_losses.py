"""Losses against their plain definitions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lrtasks.budget import Budget
from lrtasks.evaluation.optimiser import LOSSES, make_loss

RNG = np.random.default_rng(5)


def example(classes: int = 5, present: tuple[int, ...] = (0, 1, 3)) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Logits, labels among ``present`` or ignored, and log-probabilities of the labels by numpy."""
    logits = RNG.normal(size=(3, 20, classes)) * 3
    labels = RNG.choice(np.array([*present, -100]), p=[0.6, 0.2, 0.1, 0.1], size=(3, 20))
    log = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    of_label = np.take_along_axis(log, np.maximum(labels, 0)[..., None], -1)[..., 0]
    return torch.from_numpy(logits), torch.from_numpy(labels), of_label


def test_mse_is_the_mean_over_every_element() -> None:
    output, target = RNG.normal(size=(2, 3, 5, 4)).astype(np.float32)
    found = LOSSES["mse"](torch.from_numpy(output), torch.from_numpy(target), torch.from_numpy(target))
    assert float(found) == pytest.approx(np.mean((output - target) ** 2), rel=1e-6)


def test_cross_entropy_is_the_mean_over_labelled_positions() -> None:
    logits, labels, log = example()
    expected = -log[labels.numpy() >= 0].mean()
    assert float(LOSSES["cross-entropy"](logits, labels, labels)) == pytest.approx(expected, rel=1e-5)


def test_balanced_cross_entropy_weights_by_inverse_counts_of_the_batch() -> None:
    logits, labels, log = example()
    by_class = [-log[labels.numpy() == label].mean() for label in (0, 1, 3)]
    found = float(LOSSES["balanced-cross-entropy"](logits, labels, labels))
    assert found == pytest.approx(np.mean(by_class), rel=1e-5)
    assert abs(found + log[labels.numpy() >= 0].mean()) > 1e-2  # the unweighted mean is another number


def test_fixed_class_weights_give_a_weighted_mean_also_in_parts() -> None:
    logits, labels, log = example()
    weights = (0.5, 2.0, 9.0, 4.0, 1.0)
    loss = make_loss("balanced-cross-entropy", Budget(class_weights=weights), torch.device("cpu"))
    of_label = np.array(weights)[np.maximum(labels.numpy(), 0)] * (labels.numpy() >= 0)
    expected = -(of_label * log).sum() / of_label.sum()
    assert float(loss(logits, labels, labels)) == pytest.approx(expected, rel=1e-5)
    parts = sum(float(loss(logits[at : at + 1], labels[at : at + 1], labels)) for at in range(3))
    assert parts == pytest.approx(expected, rel=1e-5)
    none = torch.full((3, 20), -100)
    assert float(loss(logits, none, none)) == 0.0
    assert make_loss("cross-entropy", Budget(), torch.device("cpu")) is LOSSES["cross-entropy"]


@pytest.mark.parametrize("name", ["cross-entropy", "balanced-cross-entropy"])
def test_ignored_positions_have_no_gradient(name: str) -> None:
    logits, labels, _ = example()
    logits.requires_grad_()
    LOSSES[name](logits, labels, labels).backward()
    moved = logits.grad.abs().sum(-1) > 0
    assert torch.equal(moved, labels >= 0)


@pytest.mark.parametrize("name", ["cross-entropy", "balanced-cross-entropy"])
def test_a_batch_without_labels_trains_nothing(name: str) -> None:
    logits = example()[0].requires_grad_()
    none = torch.full((3, 20), -100)
    loss = LOSSES[name](logits, none, none)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.item() == 0.0
    assert not gradient.any()


def test_losses_are_taken_in_float32() -> None:
    logits, labels, log = example()
    found = LOSSES["cross-entropy"](logits.bfloat16(), labels, labels)
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(-log[labels.numpy() >= 0].mean(), rel=1e-2)
