"""Settings that the presets of several models share."""

from __future__ import annotations

from typing import Any

CAREFUL = {"budget.lr": 0.001, "budget.clip": 1.0, "budget.warmup_steps": 100}
SMALL = {"d_model": 64, "layers": 2, **CAREFUL}
"""Settings that the presets ``small``, ``recall-16k`` and ``recall-64k`` share. With the widths in these presets, a
``small`` model has about as many parameters as dlr. The other two have states of 16,384 and 65,536 bytes, to compare
recall at equal state size."""

TRACKING = {"d_model": 128, "layers": 1, **CAREFUL}
"""Settings of the ``state-tracking`` presets: one layer. The presets add heads of width 32 and
negative eigenvalues, for the models that have them."""

PAPER: dict[str, Any] = {"d_model": 128, "layers": 2, "budget.steps": 20_000, "budget.batch_size": 256}
PAPER |= {"budget.lr": 0.001, "budget.weight_decay": 0.1, "budget.schedule": "cosine", "budget.warmup_steps": 2_000}
"""Settings of the parity task in the public code of Grazzi et al., arXiv:2411.12537; the papers of the models
themselves train language models."""

PAPER_MQAR = {**PAPER, "mlp": False, "budget.steps": 22_500, "budget.lr": 10**-2.5, "budget.warmup_steps": 0}
PAPER_MQAR |= {"budget.train_samples": 180_000}
"""Settings of recall in zoology's code: 32 epochs, at the best learning rate of 10^-3, 10^-2.5, 10^-2 and 10^-1.5."""

ATOMIC: dict[str, Any] = {"d_model": 128, "layers": 1, "norm": "layer", "budget.lr": 0.001}
"""The budget of the DLR paper's atomic tasks, at that paper's width."""

RECALL: dict[str, Any] = {"d_model": 64, "layers": 2, "budget.lr": 0.0005}
"""Focus and Hyena papers, associative recall: 2,000 samples, 200 epochs (10 of them warm-up), 500 test sequences."""
