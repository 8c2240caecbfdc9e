"""The papers behind tasks and models: authors, title and address of the arXiv numbers that a text names."""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from importlib import resources

NUMBER = re.compile(r"arXiv:\s*(\d{4}\.\d{4,5})")
"""How docstrings and pages name a paper."""


@dataclass(frozen=True)
class Paper:
    """One paper on arXiv."""

    number: str
    authors: str
    title: str

    @property
    def url(self) -> str:
        """Address of its abstract."""
        return f"https://arxiv.org/abs/{self.number}"


@functools.cache
def papers() -> dict[str, Paper]:
    """All known papers by arXiv number."""
    listed = tomllib.loads(resources.files("lrtasks").joinpath("papers.toml").read_text(encoding="utf-8"))
    return {number: Paper(number, *entry) for number, entry in listed.items()}


def named_in(text: str | None) -> list[Paper]:
    """The papers whose arXiv numbers ``text`` names, in its order and without repeats."""
    known = papers()
    return [known[number] for number in dict.fromkeys(NUMBER.findall(text or "")) if number in known]
