"""The table of papers, each with its address and the tasks and models that come from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from model_pages import named as named_model
from regions import table
from task_pages import named as named_task

from lrtasks import generators, models
from lrtasks.papers import named_in, papers


def list_of_papers(page: Path, _: Sequence[str]) -> str:
    """Return the table of all papers that the docstrings of tasks and models name, sorted by arXiv number."""
    sources: dict[str, list[str]] = {}
    for registry, named in ((generators.registry, named_task), (models.registry, named_model)):
        for name in registry.built_in():
            for paper in named_in(registry.get(name).__doc__):
                sources.setdefault(paper.number, []).append(named(page, name))
    rows = [
        [f"{paper.authors}, [{paper.title}]({paper.url})", f"arXiv:{paper.number}", ", ".join(sources[paper.number])]
        for paper in sorted(papers().values(), key=lambda paper: paper.number)
        if paper.number in sources
    ]
    return table(["paper", "number", "source of"], rows)
