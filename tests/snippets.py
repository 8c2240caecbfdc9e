"""Run the code blocks of Markdown pages as a reader would: from top to bottom, in one folder.

python tests/snippets.py docs/data.md    # run the blocks of a page in the current folder, in a separate process
"""

from __future__ import annotations

import argparse
import contextlib
import doctest
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from lrtasks.cli import main

ROOT = Path(__file__).parents[1]
LANGUAGES = {"python": "python", "pycon": "session", "bash": "shell", "sh": "shell", "console": "prompt"}
NOT_RUN = ("git ", "mkdocs ", "pip ", "pytest ")
"""Prefixes of shell lines that install, fetch, test or serve. These lines are skipped; all other lines are run."""
FOLDERS = ("benchmarks", "examples", "results")
"""Folders of the repository that pages use; a page that names a folder gets a copy of it."""
THREADS = ("jax",)
"""Packages after whose import a process should not fork; the data loaders of later pages fork."""
_PLAIN = re.compile(r"(lrtasks [^|&;<>$`*?~#()]*?)(?: > ([\w./-]+))?(?: +#.*)?")
"""An lrtasks command that needs no shell, except to redirect its output to a file; a comment may follow."""
_PART = re.compile(r"cat > [^\n]*<<'(\w+)'\n.*?^\1$|[^\n]+", re.MULTILINE | re.DOTALL)
"""A line of a script, or a whole here-document that writes a file."""
_FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})\s*([\w+-]*)")


@dataclass(frozen=True)
class Block:
    """One fenced block: its kind (a value of :data:`LANGUAGES`), its code, and the code's first line in the page."""

    kind: str
    code: str
    line: int


def blocks(page: Path) -> list[Block]:
    """Return the blocks of ``page`` whose language can be run."""
    found: list[Block] = []
    lines = page.read_text().splitlines()
    number = 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        if fence is None:
            number += 1
            continue
        indent, mark, name = fence.groups()
        first = number = number + 1
        while number < len(lines) and not re.fullmatch(rf"\s*{mark[0]}{{{len(mark)},}}\s*", lines[number]):
            number += 1
        if name.lower() in LANGUAGES:
            code = "".join(line.removeprefix(indent) + "\n" for line in lines[first:number])
            found.append(Block(LANGUAGES[name.lower()], code, first + 1))
        number += 1
    return found


def follow(page: Path, folder: Path) -> None:
    """Run the blocks of ``page`` in ``folder``; all Python blocks share one session.

    Args:
        page: Markdown file.
        folder: the current folder, which is empty.
    """
    chosen = blocks(page)
    for name in FOLDERS:
        if any(f"{name}/" in block.code for block in chosen):
            shutil.copytree(ROOT / name, folder / name)
    session: dict[str, Any] = {"__name__": "__main__"}
    for block in chosen:
        if block.kind in ("shell", "prompt"):
            run_shell(block, page, folder)
        else:
            (run_python if block.kind == "python" else run_session)(block, page, session)


def wants_own_process(page: Path) -> bool:
    """Return whether ``page`` needs a separate process, because it imports one of :data:`THREADS`."""
    return any(re.search(rf"import {name}\b", block.code) for block in blocks(page) for name in THREADS)


def script(block: Block) -> str:
    """Return the lines of a shell block that are run; in a block with prompts, only lines with a prompt."""
    lines = block.code.replace("\\\n", " ").splitlines()
    if block.kind == "prompt":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return "\n".join(line for line in lines if not line.lstrip().startswith(NOT_RUN))


def run_shell(block: Block, page: Path, folder: Path) -> None:
    """Run a shell block in ``folder``; every command must succeed. Plain lrtasks commands run in this process."""
    code = script(block)
    parts = [found[0] for found in _PART.finditer(code)]
    for part in parts if all(part.startswith(("lrtasks ", "cat > ")) for part in parts) else [code]:
        status, said = call(part, folder) if _PLAIN.fullmatch(part) else shell(part, folder)
        assert status == 0, f"{page}:{block.line}\n{part}\n{said}"


def shell(code: str, folder: Path) -> tuple[int, str]:
    """Run a script in ``folder``; return its exit code and its output."""
    ended = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=folder,
        env={**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return ended.returncode, ended.stdout


def call(line: str, folder: Path) -> tuple[int, str]:
    """Run a plain lrtasks command in ``folder``, the current folder; return its exit code and its output."""
    plain = _PLAIN.fullmatch(line)
    assert plain is not None
    code, printed, told = 0, io.StringIO(), io.StringIO()
    state = mock.patch.object(sys, "argv", shlex.split(plain[1])), mock.patch.object(sys, "path", [*sys.path])
    with state[0], state[1], contextlib.redirect_stdout(printed), contextlib.redirect_stderr(told):
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
    if plain[2]:
        (folder / plain[2]).write_text(printed.getvalue())
    return code, printed.getvalue() + told.getvalue()


def run_python(block: Block, page: Path, session: dict[str, Any]) -> None:
    """Run a Python block in this process; ``session`` keeps its definitions."""
    exec(compile("\n" * (block.line - 1) + block.code, page, "exec"), session)


def run_session(block: Block, page: Path, session: dict[str, Any]) -> None:
    """Run a Python block with prompts; its output must be the output shown in the block."""
    test = doctest.DocTestParser().get_doctest(block.code, session, page.name, str(page), block.line - 1)
    test.globs = session  # the parser made a copy
    told: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=told.append, clear_globs=False)
    assert not told, "".join(told)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Do in the current folder what a page shows.")
    parser.add_argument("page", type=Path)
    follow(parser.parse_args().page, Path.cwd())
