"""SeqBoat-full: every active token sees all others; the window's ablation in the SeqBoat paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lrtasks.models.registration import registry
from lrtasks.models.seqboat import SeqBoat
from lrtasks.parameters import parameter


@registry.register("seqboat-full")
@dataclass(frozen=True)
class SeqBoatFull(SeqBoat):
    """SeqBoat without a window."""

    scope: Literal["window", "full", "chunk"] = parameter("full", "keys of a query, in the compressed sequence")
