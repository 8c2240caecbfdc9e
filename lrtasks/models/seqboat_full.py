"""SeqBoat-full: every active token sees all others; the window's ablation in the SeqBoat paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from lrtasks.config import Presets, parameter
from lrtasks.models import registry
from lrtasks.models.seqboat import SeqBoat


@registry.register("seqboat-full")
@dataclass(frozen=True)
class SeqBoatFull(SeqBoat):
    """SeqBoat without a window."""

    presets: ClassVar[Presets] = {
        # About as many parameters as dlr's small preset (73,164 on shift against 71,688); a step takes longer.
        "small": {"d_model": 64, "layers": 2, "norm": "layer", "budget.lr": 0.001},
        # The budget of the DLR paper's atomic tasks, at that paper's width; N = 16, d_z as in most rows of the
        # SeqBoat paper's table.
        "paper": {"d_model": 128, "layers": 1, "norm": "layer", "d_z": 64, "d_state": 16, "budget.lr": 0.001},
        # Focus and Hyena papers, associative recall: width 64, two layers, 2,000 samples.
        "paper/recall": {"d_model": 64, "d_z": 32, "layers": 2, "budget.lr": 0.0005},
        # SeqBoat paper, hyper-parameters of LRA: ListOps, and Path-X for images of pixels in a row, here whether the
        # task asks once or at every position. The rate falls in a line, as in the public code.
        "paper/listops-root": {
            "d_model": 80,
            "layers": 6,
            "temperature": 0.3,
            "dropout": 0.1,
            "kernel_length": 1024,
            "max_positions": 2002,
            "budget.steps": 90000,
            "budget.batch_size": 64,
            "budget.lr": 0.004,
            "budget.weight_decay": 0.001,
            "budget.betas": (0.9, 0.98),
            "budget.schedule": "linear",
            "budget.warmup_steps": 27000,
            "budget.clip": 1.0,
        },
        "paper/listops": {
            "d_model": 80,
            "layers": 6,
            "temperature": 0.3,
            "dropout": 0.1,
            "kernel_length": 1024,
            "max_positions": 2002,
            "budget.steps": 90000,
            "budget.batch_size": 64,
            "budget.lr": 0.004,
            "budget.weight_decay": 0.001,
            "budget.betas": (0.9, 0.98),
            "budget.schedule": "linear",
            "budget.warmup_steps": 27000,
            "budget.clip": 1.0,
        },
        "paper/pathfinder-classification": {
            "layers": 6,
            "attention": "relu2",
            "norm": "batch",
            "prenorm": True,
            "max_positions": 16384,
            "sinusoids": True,
            "budget.steps": 125000,
            "budget.batch_size": 128,
            "budget.lr": 0.01,
            "budget.weight_decay": 0.01,
            "budget.betas": (0.9, 0.98),
            "budget.schedule": "linear",
            "budget.warmup_steps": 25000,
            "budget.clip": 1.0,
        },
        "paper/pathfinder": {
            "layers": 6,
            "attention": "relu2",
            "norm": "batch",
            "prenorm": True,
            "max_positions": 16384,
            "sinusoids": True,
            "budget.steps": 125000,
            "budget.batch_size": 128,
            "budget.lr": 0.01,
            "budget.weight_decay": 0.01,
            "budget.betas": (0.9, 0.98),
            "budget.schedule": "linear",
            "budget.warmup_steps": 25000,
            "budget.clip": 1.0,
        },
    }

    scope: Literal["window", "full", "chunk"] = parameter("full", "keys of a query, in the compressed sequence")
