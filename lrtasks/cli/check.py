"""``lrtasks check``: whether a task or a model keeps its contract."""

from __future__ import annotations

from typing import Annotated

import typer

from lrtasks.cli.options import AsJson, complete_names, option_names, parse_settings, print_json


def check(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(help="A task or a model, of this package or of another.", autocompletion=complete_names)
    ],
    preset: Annotated[str, typer.Option(help="Preset that gives its parameters, such as small or paper.")] = "small",
    settings: Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE: a parameter of it.")] = None,
    as_json: AsJson = False,
) -> int:
    """Check that a task or a model keeps its contract; print each problem on a line. Parameters are options.

    Exit code 1 if there is any problem. Example: lrtasks check mylayer.py:MyLayer
    """
    from lrtasks.check.registered import check_registered

    given = parse_settings(context.args, settings or [], options=option_names(context))
    found = check_registered(name, preset=preset, settings=given)
    problems = found["problems"]
    if as_json:
        print_json(found)
        return 1 if problems else 0
    for reason, cases in found["refused"].items():
        print(f"not checked {'; '.join(cases)}: {reason}")
    print(f"{found['kind']} {name}: {len(problems) or 'no'} problem{'s' * (len(problems) != 1)} found")
    for problem in problems:
        print(f"- {problem}")
    return 1 if problems else 0
