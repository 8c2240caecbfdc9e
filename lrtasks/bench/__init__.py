"""Measure the cost of models: time, memory and state at several lengths, next to a Transformer in the same process.

``measure`` measures one model at one length, ``run`` goes through all cases and keeps finished measurements, ``report``
makes tables from them.
"""

from __future__ import annotations

from typing import Literal

BASELINE = "transformer"
UNFUSED = "transformer-unfused"
"""The baseline without a fused attention kernel: it stores its attention weights, as the papers' Transformer does."""
VOCABULARY, CLASSES = 256, 2
SHARED_PARAMETERS = ("d_model", "layers")
"""Model parameters that the settings set for all models."""

Phase = Literal["training", "inference"]
PHASES: tuple[Phase, ...] = ("training", "inference")
PARTS = (*PHASES, "sizes")
"""Parts of a measurement, each of which can fail alone."""
