"""What models cost: time, memory and state at growing length, beside a Transformer that is timed in the same process.

``measure`` measures one model at one length, ``run`` goes through all cases and keeps finished measurements, ``report``
makes tables of them.
"""

from __future__ import annotations

from typing import Literal

BASELINE = "transformer"
UNFUSED = "transformer-unfused"
"""The baseline with its attention weights held as an array, as the papers' Transformer holds them."""
VOCABULARY, CLASSES = 256, 2
SHARED_PARAMETERS = ("d_model", "layers")
"""Parameters of every model that the settings give."""

Phase = Literal["training", "inference"]
PHASES: tuple[Phase, ...] = ("training", "inference")
