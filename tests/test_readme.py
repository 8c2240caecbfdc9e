"""What the README shows is run."""

from __future__ import annotations

from pathlib import Path

import pytest
from snippets import blocks, commands, run_python, run_shell

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.parametrize(("line", "code"), blocks(README, "python"))
def test_python(line: int, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_python(code, README, line)


@pytest.mark.parametrize(("line", "code"), blocks(README, "shell"))
def test_shell(line: int, code: str, tmp_path: Path) -> None:
    assert line
    run_shell(code, tmp_path)


@pytest.mark.e2e
@pytest.mark.parametrize(("line", "code"), blocks(README, "shell", slow=True))
def test_slow_shell(line: int, code: str, tmp_path: Path) -> None:
    assert line
    run_shell(code, tmp_path)


def test_the_readme_shows_something() -> None:
    assert blocks(README, "python")
    assert any(commands(code) for _, code in blocks(README, "shell"))


PAGE = """
```python
one = 1
```

<!-- slow -->

```bash
$ lrtasks list \\
  tasks
```

<!-- slow -->
Words, so that the mark is none.

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
"""


def test_blocks_are_found(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    assert blocks(path, "python") == [(3, "one = 1\n")]
    assert blocks(path, "shell", slow=True) == [(9, "$ lrtasks list \\\n  tasks\n")]
    assert blocks(path, "shell") == [(18, "git clone x\nlrtasks list\n")]


def test_commands_are_found() -> None:
    code = "pip install . && lrtasks list\n$ lrtasks list \\\n tasks\n# lrtasks no\nlrtasks list && lrtasks table\n"
    assert commands(code) == ["lrtasks list   tasks", "lrtasks list && lrtasks table"]


def test_a_command_that_fails_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="unknown kind"):
        run_shell("lrtasks list nothing", tmp_path)


def test_a_python_block_that_fails_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run_python("one = 1\none / 0\n", tmp_path / "page.md", 7)
    assert (str(caught.traceback[-1].path), caught.traceback[-1].lineno + 1) == (str(tmp_path / "page.md"), 8)
