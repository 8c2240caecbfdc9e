"""Elements of SVG pictures."""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.etree import ElementTree

_NOT_XML = re.compile(r"[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def add(parent: ElementTree.Element, tag: str, attributes: Mapping[str, object], text: str = "") -> ElementTree.Element:
    """Append an element: numbers are rounded to a tenth of a pixel, characters that XML does not have are replaced."""
    given = {name: f"{value:.1f}" if isinstance(value, float) else str(value) for name, value in attributes.items()}
    element = ElementTree.SubElement(parent, tag, given)
    element.text = _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
    return element
