"""Small Focus models for tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lrtasks.models import build
from lrtasks.models.focus import GlobalKernel
from lrtasks.models.ops.convolution import LongConvLayer
from lrtasks.spec import Spec

SMALL: dict[str, Any] = {"d_model": 6, "layers": 2, "chunk": 8}


def spec(length: int = 48) -> Spec:
    return Spec("real", length, 2)


def built(name: str = "focus", length: int = 48, causal: bool = True, **settings: Any) -> Any:
    """A model in double precision and evaluation mode, its parameters large enough for everything to matter."""
    torch.manual_seed(0)
    model = build(name, spec(length), spec(length), causal=causal, **{**SMALL, **settings}).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model


def signal(length: int = 48, batch: int = 2) -> Tensor:
    return torch.randn(batch, length, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def convolution(channels: int, taps: int, threshold: float = 0.0, dropout: float = 0.0) -> LongConvLayer:
    """The global convolution of a hypernetwork."""
    return LongConvLayer(GlobalKernel(channels, taps, threshold, None, dropout), channels, taps, taps, glu=True)
