"""MEGA-chunk: attention inside blocks of the sequence, at linear cost; the moving average spans them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lrtasks.config import Presets, parameter
from lrtasks.models import registry
from lrtasks.models.mega import Mega
from lrtasks.models.ops.scoped_attention import Scope, warn_of_padding


@registry.register("mega-chunk")
@dataclass(frozen=True)
class MegaChunk(Mega):
    """MEGA with attention inside chunks; the moving average spans the sequence."""

    presets: ClassVar[Presets] = {
        # About as many parameters as dlr's small preset (66,134 on shift against 71,688); a step takes longer.
        "small": {"d_model": 48, "layers": 2, "norm": "layer", "chunk": 32, "budget.lr": 0.001},
        # The budget of the DLR paper's atomic tasks, at that paper's width; N = 16 and d_z as in most rows of the MEGA
        # paper's table.
        "paper": {
            "d_model": 128,
            "layers": 1,
            "norm": "layer",
            "d_z": 64,
            "d_state": 16,
            "chunk": 128,
            "budget.lr": 0.001,
        },
        # Focus and Hyena papers, associative recall: width 64, two layers, 2,000 samples.
        "paper/recall": {"d_model": 64, "d_z": 32, "layers": 2, "budget.lr": 0.0005},
        # MEGA paper, hyper-parameters of LRA: ListOps, and Path-X for images of pixels in a row, here whether the
        # task asks once or at every position. The rate falls in a line, as in the public code.
        "paper/listops-root": {
            "d_model": 80,
            "layers": 6,
            "dropout": 0.1,
            "chunk": 128,
            "budget.steps": 90000,
            "budget.batch_size": 64,
            "budget.lr": 0.001,
            "budget.weight_decay": 0.01,
            "budget.betas": (0.9, 0.98),
            "budget.schedule": "linear",
            "budget.warmup_steps": 3000,
            "budget.clip": 1.0,
        },
        "paper/listops": {
            "d_model": 80,
            "layers": 6,
            "dropout": 0.1,
            "chunk": 128,
            "budget.steps": 90000,
            "budget.batch_size": 64,
            "budget.lr": 0.001,
            "budget.weight_decay": 0.01,
            "budget.betas": (0.9, 0.98),
            "budget.schedule": "linear",
            "budget.warmup_steps": 3000,
            "budget.clip": 1.0,
        },
        "paper/pathfinder-classification": {
            "d_model": 64,
            "d_z": 32,
            "layers": 4,
            "attention": "laplace",
            "norm": "batch",
            "prenorm": True,
            "sinusoids": True,
            "chunk": 4096,
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
            "d_model": 64,
            "d_z": 32,
            "layers": 4,
            "attention": "laplace",
            "norm": "batch",
            "prenorm": True,
            "sinusoids": True,
            "chunk": 4096,
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

    chunk: int = parameter(128, "positions per chunk; the last one is padded", at_least=1)

    def attention_scope(self, length: int, causal: bool) -> Scope:
        warn_of_padding(self.name, length, self.chunk)
        return Scope(causal, chunk=self.chunk)
