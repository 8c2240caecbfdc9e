"""A reader of ListOps expressions that shares nothing with the package."""

from __future__ import annotations

import statistics
from typing import NamedTuple


class Node(NamedTuple):
    """An operator of an expression: where it closes, what it is, and what it gives."""

    close: int
    operator: str
    value: int
    length: int
    height: int
    depth: int
    arguments: int


def parse(text: str) -> list[Node]:
    """Operators in post-order, by reading tokens from left to right."""
    functions = {
        "MIN": min,
        "MAX": max,
        "SM": lambda values: sum(values) % 10,
        "MED": lambda values: int(statistics.median(values)),
    }
    open_nodes: list[tuple[int, str, list[int], list[int]]] = []
    nodes = []
    for position, token in enumerate(text.split()):
        if token.startswith("["):
            open_nodes.append((position, token[1:], [], []))
            continue
        value, height = (int(token), 0) if token != "]" else (0, 0)
        if token == "]":
            start, operator, values, heights = open_nodes.pop()
            value, height = functions[operator](values), 1 + max(heights)
            depth = len(open_nodes) + 1
            nodes.append(Node(position, operator, value, position - start + 1, height, depth, len(values)))
        if open_nodes:
            open_nodes[-1][2].append(value)
            open_nodes[-1][3].append(height)
    assert not open_nodes
    return nodes
