"""SeqBoat-local: the gated attention unit runs everywhere, in a window; the configurator's ablation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lrtasks.models.registration import registry
from lrtasks.models.seqboat import SeqBoat
from lrtasks.parameters import parameter


@registry.register("seqboat-local")
@dataclass(frozen=True)
class SeqBoatLocal(SeqBoat):
    """SeqBoat without a configurator."""

    router: Literal["softmax", "sigmoid", "gumbel", "moe", "always"] = parameter(
        "always", "latent configurator; 'always' for none"
    )
