"""Papers on tasks and models: authors, title and URL for each arXiv number that a text names."""

from __future__ import annotations

import functools
import re
import tomllib
from dataclasses import dataclass
from importlib import resources

NUMBER = re.compile(r"arXiv:\s*(\d{4}\.\d{4,5})")
"""Pattern of the arXiv numbers in docstrings and pages."""


@dataclass(frozen=True)
class Paper:
    """One paper on arXiv."""

    number: str
    authors: str
    title: str

    @property
    def url(self) -> str:
        """Return the URL of the abstract."""
        return f"https://arxiv.org/abs/{self.number}"


@functools.cache
def papers() -> dict[str, Paper]:
    """Return all known papers by arXiv number."""
    listed = tomllib.loads(resources.files("lrtasks").joinpath("papers.toml").read_text(encoding="utf-8"))
    return {number: Paper(number, *entry) for number, entry in listed.items()}


def named_in(text: str | None) -> list[Paper]:
    """Return the known papers whose arXiv numbers occur in ``text``, in order of first occurrence."""
    known = papers()
    return [known[number] for number in dict.fromkeys(NUMBER.findall(text or "")) if number in known]
