"""Numbers as a reader wants them."""

from __future__ import annotations

import json
import math
from typing import Any

MINUS = "\N{MINUS SIGN}"
NONE = "\N{EN DASH}"
"""Stands where there is no value."""


def score(value: float | None, digits: int = 3) -> str:
    """A score with a fixed number of digits.

    >>> score(0.12345), score(-0.5, 2), score(-0.0001), score(None)
    ('0.123', '−0.50', '0.000', '–')
    """
    if value is None:
        return NONE
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if float(text) == 0 else text.replace("-", MINUS)


def above(value: float | None) -> str:
    """A score above floor, two digits; how far below the floor is of no use beyond -1.

    >>> above(0.987), above(-0.38), above(-69.0)
    ('0.99', '−0.38', '< −1')
    """
    return f"< {MINUS}1" if value is not None and value < -1 else score(value, 2)


def count(value: float | None) -> str:
    """A whole number with separators.

    >>> count(58420), count(None)
    ('58,420', '–')
    """
    return NONE if value is None else f"{value:,.0f}"


def size(value: float | None) -> str:
    """Bytes in the largest binary unit that leaves at least 1.

    >>> size(512), size(33984), size(484167680)
    ('512 B', '33.2 KiB', '462 MiB')
    """
    if value is None:
        return NONE
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    power = next((power for power in range(len(units)) if value < 1000 * 1024**power), len(units) - 1)
    return f"{_digits(value / 1024**power)} {units[power]}"


def seconds(value: float | None) -> str:
    """A time in milliseconds, seconds, minutes or hours.

    >>> seconds(0.0296), seconds(59.2), seconds(5400), seconds(None)
    ('29.6 ms', '59.2 s', '90 min', '–')
    """
    if value is None:
        return NONE
    for limit, unit, name in ((1, 0.001, "ms"), (120, 1, "s"), (7200, 60, "min"), (math.inf, 3600, "h")):
        if value < limit:
            return f"{_digits(value / unit)} {name}"
    return NONE


def setting(value: Any) -> str:
    """A setting as JSON, texts without quotes.

    >>> setting([1, 2]), setting("layer"), setting(None)
    ('[1, 2]', 'layer', 'null')
    """
    return value if isinstance(value, str) else json.dumps(value)


def number(value: Any) -> str:
    """A number of a diagnostic with four digits that count.

    >>> number(0.4994897), number(-3), number(True), number(None)
    ('0.4995', '−3', 'true', '–')
    """
    if value is None:
        return NONE
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (f"{value:,}" if isinstance(value, int) else f"{value:.4g}").replace("-", MINUS)
    return setting(value)


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"
