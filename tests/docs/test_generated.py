"""The generated parts of the documentation are as they would be made now, and every task and model has its page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from snippets import ROOT

sys.path.insert(0, str(ROOT / "docs" / "scripts"))

from generate import pages
from parameter_tables import allowed, parameter_table, settings
from regions import filled, link, regions, table

from lrtasks import generators, models
from lrtasks.papers import NUMBER, named_in, papers
from lrtasks.registry import Registry
from lrtasks.results import frame

DOCS = ROOT / "docs"
MODEL_PAGES = sorted((DOCS / "models").glob("*.md"))


@pytest.mark.e2e
def test_regions_floors_pictures_and_heat_map_are_fresh() -> None:
    command = [sys.executable, str(DOCS / "scripts" / "generate.py"), "--check"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("name", generators.registry.built_in())
def test_every_task_has_its_page(name: str) -> None:
    page = DOCS / "tasks" / f"{name}.md"
    assert [name] in [words[1:] for words in regions(page) if words[0] == "task"]
    text = page.read_text()
    assert text.startswith(f"# {name}\n")
    assert f"<!-- generated: tests {name} -->" in text
    for part in ("**Formula.**", "**Worked example", "**What it tests.**", "**How hard.**", "```pycon"):
        assert part in text


@pytest.mark.parametrize("name", models.registry.built_in())
def test_every_model_has_one_page(name: str) -> None:
    pages = [page for page in MODEL_PAGES for words in regions(page) if words[0] == "model" and name in words]
    assert len(pages) == 1
    assert [name] == [word for words in regions(pages[0]) if words[0] == "solved" for word in words if word == name]


def test_tables_by_solved_seeds_agree_with_the_records() -> None:
    runs: dict[tuple[str, str], list[tuple[bool, float]]] = {}
    for path in (ROOT / "results" / "fair" / "copying").glob("*/record.json"):
        record = json.loads(path.read_text())
        if record["selection"]["chosen"]:
            run = record["scaled"]["test"] >= 0.95, record["scores"]["test"]["accuracy"]
            runs.setdefault((record["task"]["parameters"]["mode"], record["model"]["name"]), []).append(run)
    modes = {"`small`": "copy", "`lookup`": "suffix-lookup", "`reverse`": "reverse"}
    found, mode = {}, ""
    for preset, seeds, named in lines(DOCS / "tasks" / "copying.md", "solvers copying"):
        mode = modes.get(preset, mode)
        if seeds != "floor":
            for word in named.split(", "):
                model, score = word.split(" ")
                found[mode, model] = int(seeds[0]), score
    assert found == {
        cell: (sum(solved for solved, _ in own), f"{sorted(score for _, score in own)[1]:.3f}")
        for cell, own in runs.items()
    }
    of_model = lines(DOCS / "models" / "focus.md", "solved focus focus-h")
    shown = {name: seeds for _, seeds, named in of_model for name in re.findall(r"\[(copying\S*?)\]", named)}
    assert shown["copying@reverse"] == f"{found['reverse', 'focus'][0]} of 3 seeds"


def test_the_page_of_a_task_has_the_score_of_a_short_memory_for_each_preset() -> None:
    scores: dict[str, list[float]] = {}
    for path in (ROOT / "results" / "window" / "variable-tracking").glob("*/record.json"):
        record = json.loads(path.read_text())
        if record["selection"]["chosen"]:
            scores.setdefault(record["task"]["parameters"]["order"], []).append(record["scores"]["test"]["accuracy"])
    shown, preset = {}, ""
    for first, seeds, named in lines(DOCS / "tasks" / "variable-tracking.md", "solvers variable-tracking"):
        preset = first.strip("`") or preset
        if "short memory" in seeds:
            shown[preset] = named.rpartition(" ")[2]
    assert shown == {order: f"{sorted(own)[1]:.3f}" for order, own in scores.items()}


def test_the_means_of_the_seeds_agree_with_the_published_frame() -> None:
    runs = frame(ROOT / "results" / "published.parquet")
    fair = runs[runs["folder"].str.startswith("fair/") & runs["candidates"].notna()]
    region = (ROOT / "results" / "fair" / "README.md").read_text().partition("<!-- generated: seeds -->")[2]
    found = re.findall(r"([\d.]+) for\s+seed\s+(\d)", region.partition("<!-- end")[0])
    means = fair["scaled_score"].clip(0, 1).groupby(fair["seed"]).mean()
    assert {int(seed): float(mean) for mean, seed in found} == means.round(3).to_dict()


def lines(page: Path, words: str) -> list[list[str]]:
    """Return the cells of the table in the generated region called ``words``, without the header."""
    text = page.read_text().partition(f"<!-- generated: {words} -->")[2].partition("<!-- end")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if "|" in line][2:]


@pytest.mark.parametrize(
    ("page", "name"),
    [(page, words[1]) for page in MODEL_PAGES for words in regions(page) if words[0] == "model"],
    ids=lambda value: value if isinstance(value, str) else value.stem,
)
def test_a_reader_finds_every_hyper_parameter_as_it_is(page: Path, name: str) -> None:
    """The table of a model counts first, then the table that its page's models share, then that of all models."""
    own, shared = ([words for words in regions(page) if words[:2] == start] for start in (["model", name], ["shared"]))
    tables = [(page, own[0]), *((page, words) for words in shared), (DOCS / "models" / "index.md", ["common"])]
    texts = [where.read_text().partition(f"generated: {' '.join(words)} -->")[2] for where, words in tables]
    lines = [text.partition("<!-- end")[0].partition("### ")[2].partition("### ")[0] for text in texts[:1]]
    lines += [text.partition("<!-- end")[0] for text in texts[1:]]
    for entry in models.registry.get(name).describe_parameters():
        rows = [line for text in lines for line in text.splitlines() if line.startswith(f"| `{entry['name']}` |")]
        assert rows[0] == parameter_table([entry]).splitlines()[-1]


@pytest.mark.parametrize("registry", [generators.registry, models.registry], ids=["tasks", "models"])
def test_every_task_and_model_names_its_paper(registry: Registry[Any]) -> None:
    sources = {name: registry.get(name).__doc__ or "" for name in registry.built_in()}
    assert [name for name, doc in sources.items() if not named_in(doc) and "https://doi.org/" not in doc] == []
    named = {number for doc in sources.values() for number in NUMBER.findall(doc)}
    assert named <= set(papers())


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_papers_are_linked_and_known(page: Path) -> None:
    text = page.read_text()
    linked = re.findall(r"https://arxiv\.org/abs/([\d.]+\d)", text)
    assert set(linked) <= set(papers())
    assert [number for number in re.findall(r"(?<!\[)arXiv[: ]+(\d{4}\.\d+)", text) if number not in linked] == []


PAGE = "before\n\n<!-- generated: list a b -->\nold\n<!-- end of generated part -->\n\nafter\n"


def test_a_region_is_made_anew_and_the_rest_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    made = filled(page, {"list": lambda where, words: f"{where.name}: {', '.join(words)}"})
    assert made == PAGE.replace("old\n", "\npage.md: a, b\n\n")
    page.write_text(made)
    assert filled(page, {"list": lambda where, words: f"{where.name}: {', '.join(words)}"}) == made
    assert regions(page) == [["list", "a", "b"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PAGE.replace("list", "lst"), "nothing generates 'lst'"),
        (PAGE.replace("<!-- end of generated part -->", ""), "does not end"),
        (PAGE + PAGE.replace("<!-- end of generated part -->", ""), "does not end"),
    ],
)
def test_a_region_that_cannot_be_made_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(ValueError, match=message):
        filled(page, {"list": lambda *_: ""})


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"type": "int", "at_least": 2, "at_most": 2**24}, "a whole number, 2 to 16,777,216"),
        ({"type": "int | None", "at_least": 1}, "a whole number, at least 1, or none"),
        ({"type": "float", "above": 0, "at_most": 0.5}, "a number, above 0 and at most 0.5"),
        ({"type": "Literal['a', 'b c']"}, "`a`, `b c`"),
        ({"type": "bool"}, "`true`, `false`"),
        ({"type": "int | tuple[int, int]", "at_least": 1}, "a whole number, at least 1, or two: a whole number each"),
        ({"type": "tuple[int, int, int]"}, "three: a whole number each"),
        ({"type": "tuple[int, int, int, int] | None"}, "four: a whole number each or none"),
        ({"type": "tuple[int, ...] | None", "at_least": 1}, "whole numbers, at least 1, or none"),
        ({"type": "str", "choices": ["x", 8]}, "`x`, `8`"),
    ],
)
def test_what_a_parameter_may_be(entry: dict[str, object], words: str) -> None:
    assert allowed(entry) == words


def test_settings_are_written_as_the_command_line_takes_them() -> None:
    values = {"lr": 1e-5, "glu": True, "pairs": [4, 8], "setting": "small", "kernel_length": None}
    assert settings(values) == "`lr=1e-05` `glu=true` `pairs=[4, 8]` `setting=small` `kernel_length=null`"


def test_a_table_keeps_its_columns() -> None:
    assert table(["a", "b"], [["x|y", "z"]]) == "| a | b |\n| --- | --- |\n| x\\|y | z |"


def test_links_are_relative_to_their_page() -> None:
    assert link(ROOT / "README.md", DOCS / "tasks" / "shift.md") == "docs/tasks/shift.md"
    assert link(DOCS / "models" / "index.md", DOCS / "tasks" / "shift.md") == "../tasks/shift.md"
