"""What streaming forms have in common."""

from __future__ import annotations

from lrtasks.errors import UsageError


def require_causal(causal: bool) -> None:
    """Raise :class:`UsageError` for what is not causal: it has no streaming form."""
    if not causal:
        raise UsageError("a bidirectional model has no streaming form; build it with causal=True")
