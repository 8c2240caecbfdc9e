"""Tables of parameters and settings as Markdown, from the result of ``describe_parameters``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from regions import table

WORDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "`true`, `false`",
    "str": "a string",
    "tuple[int, ...]": "whole numbers",
    "tuple[float, ...]": "numbers",
    "tuple[str, ...]": "strings",
    "None": "none",
}


def parameter_table(entries: Iterable[Mapping[str, Any]]) -> str:
    """Return a table with one row for each entry of ``describe_parameters()``."""
    rows = [[f"`{entry['name']}`", code(entry["default"]), allowed(entry), entry["doc"]] for entry in entries]
    return table(["parameter", "default", "allowed", "meaning"], rows)


def allowed(entry: Mapping[str, Any]) -> str:
    """Return the allowed values of a parameter, in words."""
    if "choices" in entry:
        return ", ".join(code(choice) for choice in entry["choices"])
    kinds = [_kind(part) for part in re.split(r" \| (?![^\[]*\])", entry["type"])]
    low, above, high = (entry.get(key) for key in ("at_least", "above", "at_most"))
    if low is not None and high is not None:
        limits = f"{number(low)} to {number(high)}"
    else:
        limits = " and ".join(
            f"{word} {number(value)}"
            for word, value in (("at least", low), ("above", above), ("at most", high))
            if value is not None
        )
    first = f"{kinds[0]}, {limits}" if limits else kinds[0]
    return (", or " if limits else " or ").join([first, *kinds[1:]])


def settings(values: Mapping[str, Any]) -> str:
    """Return settings as ``name=value``, as the command line of ``lrtasks`` takes them."""
    return " ".join(f"`{name}={_plain(value)}`" for name, value in values.items())


def code(value: Any) -> str:
    """Return a value as Markdown code; ``None`` and the empty string become the words none and empty."""
    if value is None or value == "":
        return "none" if value is None else "empty"
    return f"`{_plain(value)}`"


def number(value: float) -> str:
    """Return a whole number with separated thousands, any other number as short as possible."""
    return f"{int(value):,}" if (float(value).is_integer() and abs(value) >= 1) or value == 0 else f"{value:g}"


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:g}"
    return json.dumps(value)


def _kind(text: str) -> str:
    if text.startswith("Literal["):
        return ", ".join(f"`{choice}`" for choice in re.findall(r"'([^']*)'", text))
    several = re.fullmatch(r"tuple\[(\w+)((?:, \1)+)\]", text)
    if several is None:
        return WORDS.get(text, f"`{text}`")
    return f"{('two', 'three', 'four')[several[2].count(',') - 1]}: {WORDS[several[1]]} each"
