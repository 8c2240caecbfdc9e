"""Generated regions of Markdown pages: text between two comments, which a renderer replaces.

<!-- generated: task shift -->

(the output of the renderer called ``task`` for ``shift``)

<!-- end of generated part -->
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

Renderer = Callable[[Path, Sequence[str]], str]
"""A function that returns Markdown, given the path of the page and the words after the region's name."""

_REGION = re.compile(r"^(<!-- generated: (.+?) -->\n)(.*?)(^<!-- end of generated part -->$)", re.DOTALL | re.MULTILINE)


def filled(page: Path, renderers: Mapping[str, Renderer]) -> str:
    """Return the text of ``page`` with every generated region made again.

    Raises:
        ValueError: for a region without a renderer, or without an end.
    """
    text = page.read_text()

    def made(match: re.Match[str]) -> str:
        name, *words = match[2].split()
        if name not in renderers:
            raise ValueError(f"{page}: nothing generates {name!r}; there are: {', '.join(renderers)}")
        return f"{match[1]}\n{renderers[name](page, words).strip()}\n\n{match[4]}"

    if len(re.findall(r"^<!-- generated: ", text, re.MULTILINE)) != len(_REGION.findall(text)):
        raise ValueError(f"{page}: a generated region does not end")
    return _REGION.sub(made, text)


def regions(page: Path) -> list[list[str]]:
    """Return the words in the opening comment of each generated region of ``page``."""
    return [match[1].split() for match in _REGION.findall(page.read_text())]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def link(page: Path, target: Path) -> str:
    """Return the relative address of ``target`` for a link in ``page``."""
    return Path(os.path.relpath(target, page.parent)).as_posix()
