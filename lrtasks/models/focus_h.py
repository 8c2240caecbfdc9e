"""Focus-H: Focus without its hypernetwork, the paper's ablation; its filters are learned, the same for all inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lrtasks.config import Presets
from lrtasks.models import registry
from lrtasks.models.focus import FocusLike
from lrtasks.models.ops.hypernetwork import SPREAD, Coefficients, starting_point
from lrtasks.models.ops.iir import stable_coefficients


class LearnedCoefficients(Coefficients):
    """One Θ per channel and filter for all bins, the first one too.

    At start its raw values spread as those of Focus's hypernetwork do.

    Args:
        d_model: channels.
        filters: F.
        signed: as :func:`lrtasks.models.ops.iir.stable_coefficients` takes it.
    """

    unfiltered = 0

    def __init__(self, d_model: int, filters: int, *, signed: bool) -> None:
        super().__init__()
        self.signed = signed
        self.raw = nn.Parameter(starting_point(filters, signed=signed) + SPREAD * torch.randn(d_model, filters, 2))

    def parameter_options(self) -> dict[str, dict[str, Any]]:
        return {"raw": {"weight_decay": 0.0}}

    def forward(self, x: Tensor, mask: Tensor | None, summary: Tensor | None) -> Tensor:
        return stable_coefficients(self.raw, signed=self.signed)[None, :, None]

    def initial_state(self, batch: int) -> tuple[Tensor, None]:
        return stable_coefficients(self.raw, signed=self.signed)[None], None

    def step(self, x: Tensor, summary: Tensor | None, state: None) -> tuple[None, None]:
        return None, None


@registry.register("focus-h")
@dataclass(frozen=True)
class FocusH(FocusLike):
    """Focus with learned filters that do not depend on the input."""

    presets: ClassVar[Presets] = {
        # About as many parameters as dlr's small preset (65,094 on shift against 71,688); a step takes longer.
        "small": {"d_model": 56, "layers": 2, "norm": "layer", "budget.lr": 0.001},
        # The budget of the DLR paper's atomic tasks, at that paper's width.
        "paper": {"d_model": 128, "layers": 1, "norm": "layer", "budget.lr": 0.001},
        # Focus paper, Table 6, associative recall with vocabulary 30: one filter, four bins, 2,000 samples, 10 epochs
        # that warm up. Not given there and taken from the Hyena paper: weight decay, 200 epochs, cosine, 500 test
        # sequences.
        "paper/recall": {"d_model": 64, "layers": 2, "bins": 4, "filters": 1, "budget.lr": 0.0001},
    }

    def coefficients(self, length: int, bin_length: int) -> LearnedCoefficients:
        return LearnedCoefficients(self.d_model, self.filters, signed=self.signed)
