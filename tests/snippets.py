"""Code blocks of Markdown files, and how tests run them.

A block that takes minutes has the line ``<!-- slow -->`` above its fence; it runs with the end-to-end tests.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

LANGUAGES = {"python": {"python", "py"}, "shell": {"bash", "sh", "shell", "console"}}
SLOW = "<!-- slow -->"
_FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*([\w+-]*)")


def blocks(path: Path, language: str, *, slow: bool = False) -> list[tuple[int, str]]:
    """Code blocks of ``language``, a key of :data:`LANGUAGES`: the number of the first line of code, and the code.

    Args:
        path: Markdown file.
        language: ``"python"`` or ``"shell"``.
        slow: give the blocks that are marked slow, or those that are not.
    """
    found: list[tuple[int, str]] = []
    lines = path.read_text().splitlines()
    number, marked = 0, False
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        if fence is None:
            if lines[number].strip():
                marked = lines[number].strip() == SLOW
            number += 1
            continue
        indent, mark, name = fence.groups()
        first = number + 1
        number = first
        while number < len(lines) and not re.fullmatch(rf"\s*{mark[0]}{{{len(mark)},}}\s*", lines[number]):
            number += 1
        if name.lower() in LANGUAGES[language] and marked == slow:
            code = [line.removeprefix(indent) for line in lines[first:number]]
            found.append((first + 1, "\n".join(code) + "\n"))
        number, marked = number + 1, False
    return found


def commands(code: str) -> list[str]:
    """The ``lrtasks`` commands of a shell block, one per line; lines that install, clone or test are left out."""
    lines = [line.strip().removeprefix("$ ") for line in code.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line.startswith("lrtasks ")]


def run_shell(code: str, folder: Path) -> None:
    """Run the ``lrtasks`` commands of a shell block in ``folder``; each must succeed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    for line in commands(code):
        ended = subprocess.run(
            ["bash", "-c", line],
            cwd=folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, f"{line}\n{ended.stderr}"


def run_python(code: str, path: Path, line: int) -> None:
    """Run a Python block, which starts at ``line`` of ``path``, here and now."""
    exec(compile("\n" * (line - 1) + code, path, "exec"), {"__name__": "__main__"})
