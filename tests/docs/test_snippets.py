"""Everything that the README and the pages of the documentation show is run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import snippets
from snippets import ROOT, Block, blocks, follow, run_session, run_shell, script, wants_own_process

from lrtasks import generators, models
from lrtasks.processes import Template
from lrtasks.registry import Registry
from lrtasks.suite.backends import local

PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if blocks(page)]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def read(page: Path, folder: Path) -> None:
    if not wants_own_process(page):
        follow(page, folder)
        return
    command = [sys.executable, snippets.__file__, str(page)]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


class Kept(Template):
    """A template process that stays for the next suite."""

    def close(self) -> None:
        """Do nothing; see :meth:`end`."""

    def end(self) -> None:
        super().close()


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the reader's own; what a page registers is forgotten afterwards.

    All suites fork from one template process, which loads torch once.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for variable in ("HF_HOME", "HF_DATASETS_CACHE"):
        monkeypatch.setenv(variable, str(tmp_path / "cache"))
    registries: list[Registry[Any]] = [generators.registry, models.registry]
    before = [registry.names() for registry in registries]
    made: list[Kept] = []

    def template(_: int) -> Kept:
        made.extend([] if made else [Kept(1)])
        return made[0]

    monkeypatch.setattr(local, "Template", template)
    yield tmp_path
    for kept in made:
        kept.end()
    for registry, names in zip(registries, before, strict=True):
        for added in set(registry.names()) - set(names):
            del registry._classes[added]


@pytest.mark.e2e
@pytest.mark.usefixtures("samples_drawn_once")
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_page(page: Path, reader: Path) -> None:
    read(page, reader)


def test_the_readme_shows_something() -> None:
    assert {block.kind for block in blocks(ROOT / "README.md")} >= {"python", "shell"}


PAGE = """
```python
one = 1
```

```bash
lrtasks list \\
  tasks
```

Words.

- in a list:
  ~~~sh
  git clone x
  lrtasks list
  ~~~

````text
```python
not code
```
````

```console
$ lrtasks list
tasks
```

```pycon
>>> one
1
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    return path


def test_blocks_are_found(page: Path) -> None:
    assert [(block.kind, block.line) for block in blocks(page)] == [
        ("python", 3),
        ("shell", 7),
        ("shell", 15),
        ("prompt", 26),
        ("session", 31),
    ]


def test_shell_lines_are_run_but_those_that_install_or_fetch(page: Path) -> None:
    scripts = [script(block) for block in blocks(page) if block.kind in ("shell", "prompt")]
    assert scripts == ["lrtasks list    tasks", "lrtasks list", "lrtasks list"]


@pytest.mark.parametrize("line", ["lrtasks list nothing", "lrtasks list nothing | cat"])
def test_a_command_that_fails_is_noticed(page: Path, tmp_path: Path, line: str) -> None:
    with pytest.raises(AssertionError, match=r"page\.md:7(.|\n)*unknown kind"):
        run_shell(Block("shell", f"{line}\nlrtasks list\n", 7), page, tmp_path)


def test_an_output_that_differs_is_noticed(page: Path) -> None:
    with pytest.raises(AssertionError, match="Expected"):
        run_session(Block("session", ">>> one + 1\n1\n", 7), page, {"one": 1})


def test_a_session_runs_in_verbose_tests(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["pytest", "-v"])
    run_session(Block("session", ">>> one + 1\n2\n", 7), page, {"one": 1})


def test_a_page_followed_apart_that_fails_is_noticed(page: Path, reader: Path) -> None:
    page.write_text("```python\nassert False, 'not so'\nimport jax\n```\n")
    with pytest.raises(AssertionError, match="not so"):
        read(page, reader)
