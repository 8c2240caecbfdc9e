"""Conformance checks for tasks and models, ours and other people's; they report problems in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from lrtasks.errors import in_one_line

S = TypeVar("S")


class ContractError(Exception):
    """A problem that ends the check which found it."""


def collect(subject: S, *checks: Callable[[S], Iterable[str] | None]) -> list[str]:
    """Run checks and collect the problems that they return, yield or raise, one line each.

    Any other exception is a problem too, since checks call other people's code.
    """
    found: list[str] = []
    for check in checks:
        try:
            for problem in check(subject) or ():
                found.append(" ".join(problem.split()))
        except ContractError as problem:
            found.append(" ".join(str(problem).split()))
        except Exception as error:
            found.append(f"{check.__name__.removeprefix('_').replace('_', ' ')} raised {in_one_line(error)}")
    return found
