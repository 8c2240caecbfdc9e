"""How much memory a training step needs, estimated from shapes before any of it is allocated.

with torch.device("meta"):  # shapes only
    outline = lrtasks.models.build(...)
require_memory(outline, batch_size, device)
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from lrtasks.errors import UsageError
from lrtasks.models.base import Backbone, offered

# what to lower where a part is the largest
REMEDIES = {
    "parameters": "d_state, d_model or layers",
    "activations": "batch_size, length, d_model or layers",
    "passing": "d_state, d_model or length",
}


def estimate_bytes(model: Backbone, batch: int, device: torch.device) -> dict[str, int]:
    """Estimate what one training step of ``model`` holds at its peak in float32 on ``device``, in bytes by part.

    Only shapes are read, so that a model built on the meta device will do. ``parameters``: values, gradients and the
    two moments of AdamW. ``activations``: three signals ``(batch, length, d_model)`` per block (its input, and the
    argument and result of its norm), what modules say that they keep (``training_bytes``), and the output with its
    gradient. ``passing``: the largest need for a moment that a module declares (its kernel, or gradients on their way).
    A block that declares nothing counts with its three signals only, so that for such models this is a lower bound.
    """
    length, d_model = model.input.length, model.decoder.in_features
    declared = [method(batch, device) for _, method in offered(model, "training_bytes")]
    signals = 3 * len(model.blocks) * batch * length * d_model
    outputs = 3 * batch * model.target.length * model.target.width
    return {
        "parameters": 4 * sum(value.numel() * value.element_size() for value in model.parameters()),
        "activations": 4 * (signals + outputs) + sum(needs["kept"] for needs in declared),
        "passing": max((needs["passing"] for needs in declared), default=0),
    }


def available_bytes(device: torch.device) -> int | None:
    """Memory that is free for this process on ``device``; None where that cannot be known."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    kibibytes = next((line.split()[1] for line in lines if line.startswith("MemAvailable:")), None)
    return None if kibibytes is None else 1024 * int(kibibytes)


def require_memory(model: nn.Module, batch: int, device: torch.device) -> None:
    """Raise :class:`UsageError` if a training step cannot fit: how much is needed, and which settings to lower."""
    available = available_bytes(device)
    if available is None or not isinstance(model, Backbone):
        return
    needs = estimate_bytes(model, batch, device)
    total = sum(needs.values())
    if total > available:
        largest = max(needs, key=lambda part: needs[part])
        parts = ", ".join(f"{part} {needs[part] / 1e9:.1f}" for part in needs)
        raise UsageError(
            f"a training step needs about {total / 1e9:.1f} GB ({parts}), {available / 1e9:.1f} GB are free on"
            f" {device.type}: lower {REMEDIES[largest]}"
        )
