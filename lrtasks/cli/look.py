"""``lrtasks list``, ``describe``, ``preview`` and ``check``: show tasks and models, and check them."""

from __future__ import annotations

import functools
import inspect
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option

from lrtasks.cli import options
from lrtasks.config import Config
from lrtasks.errors import UsageError, in_one_line, unknown
from lrtasks.registry import load_object, split_preset

if TYPE_CHECKING:
    from lrtasks.registry import Registry


def list_names(
    kind: Annotated[str | None, Argument(help="tasks or models; both if left out.")] = None,
    group: Annotated[str | None, Option(help="Only the tasks of this capability group, such as state.")] = None,
    as_json: options.AsJson = False,
) -> None:
    """List tasks by capability group, and models, with one sentence about each.

    Unusable tasks and models of other packages are reported on standard error. Example: lrtasks list --group state
    """
    from lrtasks import generators, models
    from lrtasks.generators.base import GROUPS

    registries: dict[str, Registry[Any]] = {"tasks": generators.registry, "models": models.registry}
    if kind is not None and kind not in registries:
        raise unknown("kind", kind, registries)
    if kind == "models" and group is not None:
        raise UsageError("--group chooses among tasks; models have no groups")
    chosen = ["tasks"] if group is not None else [kind] if kind else list(registries)
    usable = {}
    for title in chosen:
        problems = registries[title].problems()
        usable[title] = [name for name in registries[title].names() if name not in problems]
        for problem in problems.values():
            sys.stderr.write(f"lrtasks: {problem}\n")
    if group is not None:
        usable["tasks"] = generators.names(group)
    groups = {name: generators.registry.get(name).group for name in usable.get("tasks", ())}
    if as_json:
        options.print_json(usable)
        return
    limit = options.terminal_width()
    for title, names in usable.items():
        width = max(map(len, names), default=0) + 2
        for heading in (*GROUPS, title):
            found = [name for name in names if groups.get(name, title) == heading]
            if found:
                print(heading if heading == title else f"{title}: {heading}")
            for name in found:
                line = f"  {name.ljust(width)}{registries[title].summary(name)}"
                print(line if limit is None or len(line) <= limit else f"{line[: limit - 1]}…")


def describe(
    name: Annotated[
        str,
        Argument(
            help="A task, TASK@PRESET, a model, FILE.py:NAME, or budget (the parameters of training).",
            autocompletion=options.complete_names,
        ),
    ],
    as_json: options.AsJson = False,
) -> None:
    """Describe a task, a model or the training budget: a summary, papers, parameters and presets.

    TASK@PRESET shows the preset's values in place of the defaults. Example: lrtasks describe word-problem@a5
    """
    from lrtasks import generators, models
    from lrtasks.budget import DEFAULTS, Budget

    task_name, preset = split_preset(name)
    if name == Budget.name:
        described = {**_describe("options", name, Budget), "presets": DEFAULTS}
    elif generators.registry.owns(task_name):
        task = generators.registry.get(task_name)
        described = {**_describe("task", name, task), "version": task.version}
        if preset:
            values = generators.make(task_name, preset=preset).parameters()
            described["parameters"] = [{**entry, "default": values[entry["name"]]} for entry in described["parameters"]]
            described["presets"] = {preset: task.presets[preset]}
    elif ":" in name or name in models.names():
        from lrtasks.models.factory import describe_parameters, model_factory, model_presets

        if ":" in name:
            model_factory(name)  # raises if the object has none of the forms of a model
        described = _describe("model", name, model_presets(name) or load_object(name, "model"))
        described["parameters"] = describe_parameters(name) or []
        with redirect_stdout(sys.stderr):
            described["small"] = _size_at_small(name)
    else:
        known = [*generators.names(), *models.names(), Budget.name]
        raise unknown("task or model", name, known, f"{Budget.name}, FILE.py:NAME, or a name that lrtasks list prints")
    if as_json:
        options.print_json(described)
    else:
        _print_description(described)


def preview(
    context: Context,
    task: options.TaskName,
    out: Annotated[
        Path | None, Option("--out", "-o", help="Figure to write, .png, .svg or .pdf (default: TASK.png).")
    ] = None,
    samples: Annotated[int, Option(help="Number of samples to draw.")] = 2,
    seed: Annotated[int, Option(help="Seed of the samples.")] = 0,
    preset: Annotated[str, Option(help="Preset of the parameters, such as small or paper.")] = "small",
    settings: options.TaskSettings = None,
    as_json: options.AsJson = False,
) -> None:
    """Draw inputs and targets of a task. Task parameters are options.

    TASK@PRESET takes the parameters of a preset. Example: lrtasks preview shift --length 64
    """
    from lrtasks import generators
    from lrtasks.generators.preview import preview as drawn
    from lrtasks.results import style

    name, task_preset = split_preset(task)
    given = options.task_parameters(context, name, settings)
    # a task of another package may have no such preset; then its defaults are used
    known = "small" in generators.registry.get(name).presets or preset != "small"
    if task_preset and preset != "small":
        raise UsageError(f"a preset is given twice: {task_preset} and {preset}")
    made = generators.make(name, preset=task_preset or (preset if known else None), **given)
    path = out or Path(f"{made.name}.png")
    with redirect_stdout(sys.stderr):  # output of the task's code must not mix with the result
        style.save(drawn(made, samples=samples, seed=seed), path)
        text = made.text(made.batch(range(samples), seed), 0)
    if as_json:
        options.print_json({"task": made.identity(), "picture": str(path), "text": text})
        return
    if text:
        print(text)
    print(f"wrote {path}")


def check(
    context: Context,
    name: Annotated[
        str,
        Argument(
            help="A task, TASK@PRESET, or a model, of this package or of another.",
            autocompletion=options.complete_names,
        ),
    ],
    preset: Annotated[str, Option(help="Preset of the parameters, such as small or paper.")] = "small",
    settings: Annotated[list[str] | None, Option("--set", help="NAME=VALUE: a parameter of the task or model.")] = None,
    as_json: options.AsJson = False,
) -> int:
    """Check that a task or a model keeps its contract; print one problem per line. Parameters are options.

    The exit code is 1 if there is any problem. Example: lrtasks check mylayer.py:MyLayer
    """
    from lrtasks.check import check_registered, listed

    with redirect_stdout(sys.stderr):  # output of the checked code must not mix with the result
        found = check_registered(name, preset=preset, settings=options.given_settings(context, settings))
    problems = found["problems"]
    if as_json:
        options.print_json(found)
    else:
        for reason, cases in found["refused"].items():
            print(f"not checked ({listed(cases)}): {reason}")
        print(f"{found['kind']} {name}: {len(problems) or 'no'} problem{'s' * (len(problems) != 1)} found")
        for problem in problems:
            print(f"- {problem}")
    return 1 if problems else 0


def _describe(kind: str, name: str, cls: Any) -> dict[str, Any]:
    from lrtasks.papers import named_in

    is_config = isinstance(cls, type) and issubclass(cls, Config)
    doc = (cls.func if isinstance(cls, functools.partial) else cls).__doc__
    return {
        "kind": kind,
        "name": name,
        "summary": inspect.cleandoc(doc or ""),
        "parameters": cls.describe_parameters() if is_config else [],
        "presets": cls.presets if is_config else {},
        "papers": [{**asdict(paper), "url": paper.url} for paper in named_in(doc)],
    }


def _size_at_small(name: str) -> dict[str, Any]:
    """Return parameter count and streaming state of a model at preset ``small`` on shift, or why it cannot be built."""
    from lrtasks.generators.tasks.shift import Shift
    from lrtasks.models.base import parameter_count, state_bytes
    from lrtasks.run_config import build_model

    task = Shift.make(**Shift.preset_values("small")[0])
    try:
        built = build_model(name, task, preset="small")
        state = state_bytes(built)
    except Exception as error:  # a model of another package may accept tokens only
        return {"task": task.identity(), "problem": in_one_line(error)}
    return {"task": task.identity(), "parameters": parameter_count(built), "state_bytes": state}


def _print_description(described: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    papers = "\n".join(f'{paper["authors"]}, "{paper["title"]}", {paper["url"]}' for paper in described["papers"])
    heading = f"{described['kind']} {described['name']}"
    print("\n\n".join(filter(None, [heading, described["summary"], papers])), end="\n\n")
    grid = Table("parameter", "type", "default", "meaning", title=None, box=None, pad_edge=False)
    for entry in described["parameters"]:
        limits = [f"{key.replace('_', ' ')} {entry[key]}" for key in ("at_least", "above", "at_most") if key in entry]
        meaning = entry["doc"] + (f" ({', '.join(limits)})" if limits else "")
        grid.add_row(entry["name"], entry["type"], str(entry["default"]), meaning)
    Console().print(grid, markup=False)
    for preset, content in described["presets"].items():
        print(f"\npreset {preset}: {content}")
    if described["kind"] == "task" and "small" in described["presets"] and not split_preset(described["name"])[1]:
        print(
            "\nlrtasks.make and lrtasks generate take the defaults; eval, suite, sweep, preview and check take preset"
            " small, which trains in minutes on two CPU cores"
        )
    small = described.get("small", {})
    if "problem" in small:
        print(f"\nat preset small on shift it cannot be built: {small['problem']}")
    elif small:
        state = small["state_bytes"]
        streams = "no streaming form" if state is None else f"{state:,} bytes of streaming state"
        print(f"\nat preset small on shift: {small['parameters']:,} parameters, {streams}")
