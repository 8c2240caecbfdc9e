"""The fingerprint: the task instances that make up the profile of a model."""

from __future__ import annotations

FINGERPRINT: dict[str, tuple[str, ...]] = {
    "state": (
        *("word-problem@s3", "flip-flop", "word-problem@z2", "word-problem@a5"),
        *("chomsky@modular-arithmetic", "chomsky@parity-check"),
    ),
    "structure": (
        *("dyck", "chomsky@modular-arithmetic-brackets", "listops", "stack"),
        *("chomsky@missing-duplicate", "in-context-language"),
    ),
    "copying": (
        *("selective-copying@spread", "induction-heads", "copying@forward", "copying@reverse", "copying@lookup"),
        *("selective-copying@delay", "shift", "reverse", "select", "select-fixed"),
    ),
    "retrieval": ("mqar", "overwrite", "recall", "noisy-recall", "fuzzy-recall", "joint-recall", "mips"),
    "hops": ("k-hop", "variable-tracking@forward", "variable-tracking@shuffled", "depo"),
    "capacity": ("compression", "memorization"),
    "latching": ("adding", "cummax", "cumsum"),
}
"""The instances that make up the profile of a model, by group, the most informative first.

An instance is a task at preset ``small`` or at another named preset (``word-problem@a5``). In a suite,
``--tasks fingerprint`` selects all instances. ``listops-root`` is left out: it is ``listops`` with fewer labels.
"""

SCORED_ON = {"flip-flop": "sparse"}
"""Instances scored on a further test: in flip-flop, a model that loses the stored bit fails most at rare reads."""

QUICK = 2
"""Number of instances of each group in a quick profile."""


def instances(quick: bool = False) -> list[str]:
    """Return all instances of the fingerprint, or the first :data:`QUICK` of each group.

    >>> len(instances()), len(instances(quick=True))
    (38, 14)
    """
    return [name for names in FINGERPRINT.values() for name in (names[:QUICK] if quick else names)]
