"""TextTables in every form: no cell is lost, and no text ends its cell."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from made_records import made, tabled
from report_pages import parse

from lrtasks import models
from lrtasks.errors import UsageError, printable
from lrtasks.results.formats import TextTable, render
from lrtasks.results.style import TITLES

NASTY = r"""a|b <script>alert("&amp;")</script> 50% $x_1^2$ #{}~\end ±1 – 2"""
TABLE = TextTable(["task", "model", NASTY], [["one", "0.5", ""], ["two", NASTY, "3"]])
NOTES = [f"first {NASTY}", "second"]


def test_text_is_aligned() -> None:
    header, one, two, *notes = render("text", [TABLE], NOTES).splitlines()
    assert header.index("model") == one.index("0.5") == two.index("a|b") == 6
    assert header.index("a|b") == two.index("3", len(NASTY) + 6)
    assert notes == NOTES
    assert render("text", [TABLE, TABLE]).split("\n\n") == [render("text", [TABLE])] * 2


def test_text_is_folded_at_the_width() -> None:
    names = [f"model-{number}" for number in range(6)]
    header = ["task", *(text for name in names for text in (name, "paper"))]
    line = ["shift", *(str(number) for number in range(12))]
    table = TextTable(header, [line], frozenset(range(2, 13, 2)))
    assert render("text", [table], width=len(render("text", [table]).splitlines()[0])) == render("text", [table])
    parts = render("text", [table], width=40).split("\n\n")
    found = [[words.split() for words in part.splitlines()] for part in parts]
    assert all(len(words) <= 40 for part in parts for words in part.splitlines())
    assert [part[0][0] for part in found] == ["task"] * 3
    assert [part[0][1::2] for part in found] == [names[:2], names[2:4], names[4:]]
    assert [word for part in found for word in part[1][1:]] == line[1:]
    narrow = render("text", [table], width=1).split("\n\n")  # no column is left out, however narrow
    assert [part.splitlines()[0].split() for part in narrow] == [["task", name, "paper"] for name in names]


def test_a_table_can_be_transposed() -> None:
    table = TextTable(["task", "dlr", "paper"], [["shift", "1", "2"], ["sort", "3", "4"]], frozenset([2]))
    assert render("text", [table.transposed()]).split() == ["task", "shift", "sort", "dlr", "1", "3", "paper", "2", "4"]


def test_markdown_has_as_many_cells_in_each_row() -> None:
    table, notes = render("markdown", [TABLE], NOTES).split("\n\n")
    lines = table.splitlines()
    assert len(lines) == 4
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {4}
    assert [line[:8] for line in notes.splitlines()] == ["- first ", "- second"]
    assert render("markdown", [TABLE], ["only"]).endswith("\n\nonly")
    assert not re.search(r"<|>|(?<!\\)[\[\]`*]", f"{table}{notes}")


def test_html_holds_names_as_they_are() -> None:
    elements = parse(render("html", [TABLE], NOTES) + "</html>").all()  # which HTML lets a page leave out
    cells = [element.text() for element in elements if element.tag in ("td", "th", "p")]
    assert cells == [*TABLE.header, *(cell for line in TABLE.lines for cell in line), *NOTES]
    assert {element.tag for element in elements} == {
        *("html", "meta", "title", "style", "div", "table", "tr", "th", "td", "p")
    }


def test_latex_is_escaped() -> None:
    text = render("latex", [TABLE], NOTES)
    (table,) = re.findall(r"\\begin{tabular}{[lr@{}]+}\n(.*?)\\end{tabular}", text, flags=re.DOTALL)
    assert re.findall(r"\\(toprule|midrule|bottomrule)", table) == ["toprule", "midrule", "bottomrule"]
    rows = [line for line in table.splitlines() if line.endswith(r" \\")]
    cells = [re.split(r"(?<!\\)&", row.removesuffix(r"\\")) for row in rows]
    across = r"\multicolumn{2}{c}{"
    assert {len(row) + sum(cell.strip().startswith(across) for cell in row) for row in cells} == {5}
    for cell in (cell.strip() for row in cells for cell in row):
        inner = cell.removeprefix(across).removesuffix("}") if cell.startswith(across) else cell
        bare = re.sub(r"\\[&%$#_{}]|\\text\w+{}|\$\\pm\$", "", inner)
        assert not re.search(r"[%$#_{}~^\\<>|±–]", bare)


@pytest.mark.e2e
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no LaTeX here")
def test_latex_compiles(tmp_path: Path) -> None:
    body = render("latex", [TABLE, TABLE.transposed()], NOTES)
    page = f"\\documentclass{{article}}\\usepackage{{booktabs}}\\begin{{document}}\n{body}\n\\end{{document}}\n"
    (tmp_path / "page.tex").write_text(page)
    ended = subprocess.run(["pdflatex", "-halt-on-error", "page.tex"], cwd=tmp_path, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stdout.decode(errors="replace")[-1000:]


def test_csv_and_json_hold_the_same() -> None:
    records = [made(), made(seed=1, score=0.7), made(task="mips"), made(model="a|b,c", score=None, status="failed")]
    rows = json.loads(render("json", content=tabled(records).rows()))
    found = list(csv.DictReader(io.StringIO(render("csv", content=rows))))
    assert len(found) == len(rows) == 3
    for line, row in zip(found, rows, strict=True):
        for name, value in row.items():
            text = json.dumps(value) if isinstance(value, (dict, list)) else "" if value is None else str(value)
            assert line[name] == text


@pytest.mark.parametrize("form", ["text", "markdown", "latex", "html", "csv", "json"])
def test_control_characters_reach_no_output(form: str) -> None:
    evil = "dlr\x1b]0;owned\x07\x9b2J\r\n\u202eevil"
    record = made(model=evil, environment={"lrtasks": evil})
    table = tabled([record, made(model=evil, seed=1)])
    shown = render(form, table.tables(), [*table.notes(), evil], table.rows())
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", shown)
    assert "evil" in shown
    message = str(UsageError(f"unknown model {evil}"))
    assert message == printable(message) and "\n" not in message


def test_latex_aligns_numbers_at_their_points() -> None:
    lines = [["shift", "r2", "0.998 ±0.002"], ["mips", "accuracy", "-12.5"], ["sort", "r2", "failed"], ["", "", ""]]
    text = render("latex", [TextTable(["task", "metric", "mamba2 (lr=0.01)"], lines, best=frozenset({(0, 2)}))])
    form, *_ = re.findall(r"\\begin{tabular}{(.*)}", text)
    rows = [line.removesuffix(r" \\").split(" & ") for line in text.splitlines() if line.endswith(r" \\")]
    assert form == "llr@{}l"
    assert rows == [
        ["task", "metric", r"\multicolumn{2}{c}{Mamba-2 (lr=0.01)}"],
        ["shift", "$R^2$", r"\textbf{0}", r"\textbf{.998} $\pm$0.002"],
        ["mips", "accuracy", "$-$12", ".5"],
        ["sort", "$R^2$", r"\multicolumn{2}{c}{failed}"],
        ["", "", "", ""],
    ]


def test_latex_sets_the_best_of_a_row_in_bold_and_those_within_its_interval() -> None:
    """A mean of 0.85 ± 0.64 has 0.3 within it, a median between 0.8 and 0.9 has not; a single 0.9 has no interval."""
    near = [made(seed=seed, score=score) for seed, score in ((0, 0.9), (1, 0.8))]
    runs = [*near, made(model="dss", score=0.3), made(model="s4d", score=0.1)]
    runs += [made(task="mips", score=0.9), made(task="mips", model="dss", score=0.899)]
    runs += [made(task="sort", score=0.1, floor=0.2), made(task="sort", model="dss", score=0.05, floor=0.2)]
    medians, table = tabled(runs).scores(), replace(tabled(runs), mean=True).scores()
    columns = {name: place for place, name in enumerate(table.header)}
    rows = {line[0]: place for place, line in enumerate(table.lines)}
    assert table.best == {
        (rows["shift"], columns["dlr"]),
        (rows["shift"], columns["dss"]),
        (rows["mips"], columns["dlr"]),
    }
    assert table.best - medians.best == {(rows["shift"], columns["dss"])}
    turned = table.transposed()
    bold = {turned.lines[line][0] + " " + turned.header[column] for line, column in turned.best}
    assert bold == {"dlr shift", "dss shift", "dlr mips"}
    assert all("bold: the best score on a task" in render("latex", [found]) for found in (table, turned))


def test_no_score_at_or_below_the_floor_is_bold() -> None:
    runs = [made(seed=seed, score=score, floor=0.3) for seed, score in enumerate((0.4, -0.2, 0.5))]
    runs += [made(model=model, score=score, floor=0.3) for model, score in (("dss", 0.2), ("gru", 0.3), ("s4d", 0.35))]
    table = tabled(runs).scores()
    assert {table.header[column] for _, column in table.best} == {"dlr", "s4d"}
    assert not tabled(runs[:3]).scores().best, "a single model is not the best of several"


def test_scores_that_look_equal_are_bold_together() -> None:
    scores = {"dlr": 0.9004, "dss": 0.8996, "s4d": 0.8994}
    table = tabled([made(model=model, score=score) for model, score in scores.items()]).scores()
    assert {table.header[column] for _, column in table.best} == {"dlr", "dss"}


def test_the_sign_of_a_bold_number_is_bold() -> None:
    table = TextTable(["task", "dlr", "dss"], [["shift", "-0.1", "-0.2"]], best=frozenset({(0, 1)}))
    assert r"shift & \textbf{\boldmath$-$0} & \textbf{.1} & $-$0 & .2 \\" in render("latex", [table])


def test_latex_spells_the_models_of_every_table() -> None:
    record = made(model="mamba2", scores={"test": {"r2": 0.9}, "2x": {"r2": 0.5}}, scaled={"2x": 0.4})
    scores, costs, by_length = (render("latex", [table]) for table in tabled([record]).tables(by_length=True))
    for text in (scores, costs, by_length):
        assert "Mamba-2" in text and "mamba2" not in text


def test_every_model_has_its_published_spelling() -> None:
    assert set(TITLES) == set(models.registry.built_in())
