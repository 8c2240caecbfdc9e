"""Axes of charts: where a value lies, and which values are marked."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

TICKS = 6
"""About how many marks a linear axis gets."""


@dataclass(frozen=True)
class Axis:
    """Values from ``low`` to ``high``, linear or logarithmic (then ``low`` is above 0)."""

    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        """Where a value lies: 0 at ``low``, 1 at ``high``, no further than these."""
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, max(value, self.low)))
        return min((value - low) / (high - low), 1.0)

    def ticks(self) -> list[float]:
        """Round values between ``low`` and ``high``.

        >>> Axis(0, 2000).ticks()
        [0.0, 500.0, 1000.0, 1500.0, 2000.0]
        >>> Axis(0.02, 3.0, log=True).ticks()
        [0.1, 1.0]
        >>> Axis(1.1, 1.4, log=True).ticks()
        [1.1, 1.15, 1.2, 1.25, 1.3, 1.35, 1.4]
        """
        return self._powers() if self.log else self._multiples()

    def _multiples(self) -> list[float]:
        rough = (self.high - self.low) / TICKS
        power = 10.0 ** math.floor(math.log10(rough))
        width = power * next(factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)
        first, last = math.ceil(self.low / width - 1e-9), math.floor(self.high / width + 1e-9)
        return [_round(number * width) for number in range(first, last + 1)]

    def _powers(self) -> list[float]:
        """Powers of ten; where fewer than two fall inside, also their double and fivefold; else any round values."""
        exponents = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        for factors in ((1,), (1, 2, 5)):
            marks = [_round(factor * 10.0**e) for e in exponents for factor in factors]
            marks = [mark for mark in marks if self.low <= mark * (1 + 1e-9) and mark <= self.high * (1 + 1e-9)]
            if len(marks) > 1:
                return marks
        return self._multiples()


def _round(value: float) -> float:
    """Without what arithmetic adds in the last digits, however small the value is."""
    return float(f"{value:.12g}")


def axis_for(values: Iterable[float], *, log: bool = False) -> Axis:
    """The axis that just holds ``values``; one value alone gets room on both sides.

    >>> axis_for([4, 1, 2])
    Axis(low=1, high=4, log=False)
    """
    found = list(values)
    low, high = min(found), max(found)
    if low == high:
        room = max(1.0, abs(low) / 10)
        low, high = (low / 2, high * 2) if log else (low - room, high + room)
    return Axis(low, high, log)


def tick_label(value: float) -> str:
    """A mark's value, short.

    >>> tick_label(2000.0), tick_label(0.5), tick_label(-0.25), tick_label(1e-05)
    ('2,000', '0.5', '−0.25', '1e−05')
    """
    text = f"{value:,.0f}" if value == int(value) and abs(value) < 1e6 else f"{value:g}"
    return text.replace("-", "\N{MINUS SIGN}")
