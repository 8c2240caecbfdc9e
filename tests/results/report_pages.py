"""Reports made up for tests, and a reader of their HTML."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from made_records import made, stored

from lrtasks.results import RunRecord
from lrtasks.results.report import Report, make_report

HOSTILE = """</script><img src=x onerror="alert('1')">&amp;{{ 7 * 7 }}\"' --> <b>"""
"""A name that tries to leave wherever it is written."""

VOID = ("meta", "br", "img", "input", "col", "link", "hr", "wbr")


def report_of(*records: RunRecord) -> Report:
    """Return the report of records that are in no folder."""
    return make_report([(Path(f"run{number}"), record) for number, record in enumerate(records)])


def write_runs(folder: Path, *records: RunRecord) -> Path:
    """Write each record into a folder of its own below ``folder``."""
    for number, record in enumerate(records):
        stored(record, folder / record.task["name"].replace("/", "-")[:20] / f"run{number}")
    return folder


def opened(page: Element) -> dict[str, Element]:
    """Return the compressed details in the page, by the name of the result."""
    packed = gzip.decompress(base64.b64decode(page.one("script", id="packed").text()))
    return {name: parse(html) for name, html in json.loads(packed).items()}


def trained(**changes: Any) -> RunRecord:
    """A finished run with everything that a run can write."""
    fields: dict[str, Any] = {
        "curve": [{"step": step, "loss": 1 / step, "r2": step / 100} for step in (20, 40, 60, 80)],
        "slices": {
            "position": [{"label": label, "r2": 1 - label / 256, "elements": 32} for label in range(0, 256, 32)]
        },
        "diagnostics": {"blocks.0": {"activation_rate": 0.25, "frequency_response": [[1.0, 0.5], [0.25, None]]}},
        "notes": ["a slow path was taken"],
        "environment": {"torch": "2.13.0", "commit": "0123abc"},
    }
    return made(**{**fields, **changes})


def renamed(record: RunRecord, *, task: str | None = None, model: str | None = None) -> RunRecord:
    """The record of another task or model, otherwise the same."""
    return dataclasses.replace(
        record,
        task=record.task | ({"name": task} if task else {}),
        model=record.model | ({"name": model} if model else {}),
    )


@dataclasses.dataclass
class Element:
    """One element of a page."""

    tag: str
    attributes: dict[str, str]
    parent: Element | None
    children: list[Element | str] = dataclasses.field(default_factory=list)

    def all(self, tag: str | None = None, **attributes: str) -> list[Element]:
        """Elements below this one by tag and attributes; ``data_x`` stands for ``data-x``, ``class_`` holds a class."""
        return [
            element for element in self._below() if (tag or element.tag) == element.tag and element._has(attributes)
        ]

    def one(self, tag: str | None = None, **attributes: str) -> Element:
        """The only such element."""
        (found,) = self.all(tag, **attributes)
        return found

    def text(self) -> str:
        """All text below, with single spaces."""
        parts = [child if isinstance(child, str) else child.text() for child in self.children]
        return " ".join("".join(parts).split())

    def _below(self) -> Iterator[Element]:
        for child in self.children:
            if isinstance(child, Element):
                yield child
                yield from child._below()

    def _has(self, attributes: dict[str, str]) -> bool:
        for name, value in attributes.items():
            found = self.attributes.get(name.rstrip("_").replace("_", "-"))
            if found is None or value not in (found, *(found.split() if name == "class_" else ())):
                return False
        return True


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.root = self.now = Element("document", {}, None)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute of <{tag}> is given twice"
        element = Element(tag, {name: value or "" for name, value in attrs}, self.now)
        self.now.children.append(element)
        if tag not in VOID:
            self.now = element

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.now.tag == tag, f"</{tag}> ends <{self.now.tag}>"
        assert self.now.parent is not None
        self.now = self.now.parent

    def handle_data(self, data: str) -> None:
        self.now.children.append(data)


def parse(html: str) -> Element:
    """The page as a tree; every element must be closed where it was opened."""
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert reader.now is reader.root, f"<{reader.now.tag}> is never closed"
    return reader.root
