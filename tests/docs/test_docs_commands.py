"""Commands that pages name in passing, in running text or as the source of a table, exist and take these options."""

from __future__ import annotations

import re
import runpy
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from snippets import ROOT

from lrtasks import generators, models
from lrtasks.budget import Budget
from lrtasks.cli import make_app

PAGES = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS: Any = typer.main.get_command(make_app())
OWNERS = {
    "budget": set(Budget.parameter_names()),
    "task": {name for task in generators.names() for name in generators.registry.get(task).parameter_names()},
    "model": {name for model in models.names() for name in models.registry.get(model).parameter_names()},
}
NAMES = {"--task": generators.names, "--tasks": generators.names, "--model": models.names, "--models": models.names}
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)", re.DOTALL)


def commands(text: str, start: str | tuple[str, ...]) -> Iterator[str]:
    """What stands in code letters, or on a line of its own in a block, and begins with ``start``."""
    prose = re.sub(r"^(`{3,}|~{3,}).*?^\1", "", text, flags=re.DOTALL | re.MULTILINE)
    found = [" ".join(span.split()) for span in _SPAN.findall(prose)]
    found += [line.strip().removeprefix("$ ") for line in text.replace("\\\n", " ").splitlines()]
    return (command for command in found if command.removeprefix("OMP_NUM_THREADS=1 ").startswith(start))


def problems(command: str) -> Iterator[str]:
    """What is wrong with a command of lrtasks; placeholders in capitals or with dots of omission stand for anything."""
    words = shlex.split(re.split(r" [|>&] ?| && ", command)[0], comments=True)[1:]
    known = COMMANDS
    while words and hasattr(known, "commands"):
        name = words.pop(0)
        if name not in known.commands:
            yield f"no command {name}"
            return
        known = known.commands[name]
    declared = {option for parameter in known.params for option in parameter.opts}
    if known.context_settings.get("ignore_unknown_options"):
        declared |= {f"--{name.replace('_', '-')}" for names in OWNERS.values() for name in names}
    for number, word in enumerate(words):
        option, _, value = word.partition("=")
        if option.startswith("-") and option != "--help" and option not in declared:
            yield f"no option {option}"
        if option in NAMES:
            given = value or (words[number + 1] if number + 1 < len(words) else "")
            yield from (f"no {option} {name}" for name in given.split(",") if not _is_name(name, NAMES[option]()))


def _is_name(text: str, names: list[str]) -> bool:
    return (
        text.partition("@")[0] in names
        or text in ("all", "fingerprint")
        or ":" in text
        or text.isupper()
        or "…" in text
        or "own" in text
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_of_lrtasks(page: Path) -> None:
    text = page.read_text()
    found = {command: list(problems(command)) for command in commands(text, "lrtasks ")}
    assert {command: wrong for command, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_scripts(page: Path) -> None:
    for command in commands(page.read_text(), ("python benchmarks/", "python docs/", "python examples/")):
        _, script, *words = shlex.split(command.removeprefix("OMP_NUM_THREADS=1 ").split(" | ")[0])
        source = (ROOT / script).read_text()
        assert [word for word in words if word.startswith("--") and f'"{word}"' not in source] == [], command


def test_every_benchmark_is_listed() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text()
    listed = [command.split()[1] for command in commands(text, "python benchmarks/")]
    assert sorted(listed) == sorted(f"benchmarks/{path.name}" for path in (ROOT / "benchmarks").glob("*.py"))


SCRIPTS = [*sorted((ROOT / "benchmarks").glob("*.py")), ROOT / "docs" / "scripts" / "pathfinder_pictures.py"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_every_script_finds_what_it_imports(script: Path) -> None:
    runpy.run_path(str(script), run_name="imported")


@pytest.mark.parametrize(
    "words", [("recurrent_ops.py", "--ops", "gla,nope"), ("token_floors.py", "nope"), ("kernels.py", "--forms", "nope")]
)
def test_benchmarks_refuse_unknown_names(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", list(words))
    monkeypatch.setattr("os.execve", lambda *_: pytest.fail("accepted"))
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / "benchmarks" / words[0]), run_name="__main__")
    assert end.value.code == 2 and "'nope'; allowed: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("lrtasks eval --model dlr --task shift --shifts 4 --d-state 8", []),
        ("lrtasks eval --model MODEL --task shift && lrtasks nothing", []),
        ("lrtasks evaluate --model dlr", ["no command evaluate"]),
        ("lrtasks data verfy x", ["no command verfy"]),
        ("lrtasks table --formt csv", ["no option --formt"]),
        ("lrtasks eval --model dlr --task shft --d-stat=8", ["no --task shft", "no option --d-stat"]),
        ("lrtasks sweep --models dlr,dls --task=shift", ["no --models dls"]),
    ],
)
def test_what_is_wrong_is_found(command: str, wrong: list[str]) -> None:
    assert list(problems(command)) == wrong


def test_commands_are_found() -> None:
    text = "`lrtasks\nlist`\n\n    $ lrtasks table\n\n```bash\nlrtasks \\\n  describe shift\n```\n`lrtasks.make`\n"
    assert [" ".join(command.split()) for command in commands(text, "lrtasks ")] == [
        "lrtasks list",
        "lrtasks table",
        "lrtasks describe shift",
    ]
