"""The report's HTML: what it says, what it links, and that it loads nothing and sends nothing."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import random
import sys
from collections import Counter
from pathlib import Path

import pytest
from made_records import made
from PIL import Image
from report_pages import HOSTILE, Element, opened, parse, renamed, report_of, trained, write_runs

from lrtasks.errors import UsageError
from lrtasks.record import NOT_CAUSAL
from lrtasks.results import RunRecord
from lrtasks.results.frame import read_runs
from lrtasks.results.report import Report, make_report, render_page
from lrtasks.results.report.charts import vega

pytestmark = pytest.mark.usefixtures("samples_drawn_once")
MAX_BYTES = 10_000_000


def page_of(*records: RunRecord) -> Element:
    return parse(render_page(report_of(*records)))


def heat_map(page: Element) -> dict[tuple[str, str], Element]:
    """The cells of the heat map by task and model."""
    table = page.one("table", id="heat-map")
    models = [th.text() for th in table.one("thead").all("th")][2:]
    rows = table.one("tbody").all("tr")
    return {
        (row.all("th")[0].text(), model): cell
        for row in rows
        for model, cell in zip(models, row.all("td", class_="cell"), strict=True)
    }


def test_a_cell_shows_score_above_floor_and_leads_to_the_details() -> None:
    page = page_of(trained(score=0.6, floor=0.2), made(model="dss", score=0.2, floor=0.2))
    cell = heat_map(page)["shift", "dlr"]
    link = cell.one("a")
    assert (link.one(class_="scaled").text(), link.one(class_="raw").text()) == ("0.50", "0.60")
    assert link.attributes["class"] == "h10"
    assert link.attributes["aria-label"] == "dlr on shift: scaled 0.50, score 0.600"
    details = opened(page)[link.attributes["href"].removeprefix("#")]
    assert "dlr on shift" in details.one("h2").text()
    assert heat_map(page)["shift", "dss"].one("a").attributes["class"] == "h0"


def test_cells_without_a_score_are_told_apart() -> None:
    def cell(task: str, **changes: object) -> RunRecord:
        return renamed(made(score=None, **changes), task=task)  # type: ignore[arg-type]

    page = page_of(
        cell("a", status="diverged"),
        cell("b", status="failed"),
        cell("c", status="running"),
        dataclasses.replace(cell("d"), scores={"test": {"r2": None}}),
        cell("e"),
        made(task="a", model="dss"),
    )
    cells = heat_map(page)
    words = {task: cells[task, "dlr"].one("a").one(class_="scaled").text() for task in "abcde"}
    assert words == {"a": "div.", "b": "failed", "c": "running", "d": "NaN", "e": "none"}
    classes = {cells[task, "dlr"].one("a").attributes["class"] for task in "abcde"}
    assert len(classes) == 5
    assert cells["b", "dss"].text() == "" and not cells["b", "dss"].all("a")
    assert cells["a", "dlr"].attributes["data-value"] == ""
    legend = page.one(id="after-heat").text()
    assert "loss, weights or predictions were not finite" in legend and "the score is not a number" in legend


def test_cells_say_how_many_seeds_solved_the_task() -> None:
    link = heat_map(page_of(made(seed=0, score=0.8), made(seed=1, score=0.98)))["shift", "dlr"].one("a")
    assert link.one(class_="raw").text() == "0.89 1/2"
    assert link.one(class_="scaled").text() == "0.86 1/2"
    assert link.attributes["aria-label"] == "dlr on shift: scaled 0.86, score 0.890 (1/2)"
    assert "1/1" not in heat_map(page_of(made()))["shift", "dlr"].text()


def test_other_seeds_that_diverged_are_marked() -> None:
    page = page_of(made(seed=0), made(seed=1, score=None, status="diverged"))
    link = heat_map(page)["shift", "dlr"].one("a")
    assert link.one("sup").text() == "!"
    assert link.attributes["aria-label"].endswith("1 of 2 runs diverged")
    assert "! some runs of the cell do not count in its score" in page.one(id="after-heat").text()
    assert "!" not in page_of(made()).one(id="after-heat").text()


def test_every_link_leads_somewhere_within_the_page() -> None:
    page = page_of(trained(), *(made(task=task, model=model) for task in ("mips", "sort") for model in ("a", "b")))
    targets = {element.attributes["id"] for element in page.all() if "id" in element.attributes}
    targets |= set(opened(page))
    links = [link.attributes["href"] for link in page.all("a")]
    assert len(links) > 20
    assert {link for link in links if not (link.startswith("#") and link[1:] in targets)} == set()


def test_names_within_the_page_are_given_once() -> None:
    page = page_of(trained(), trained(model="dss"), made(task="sort"))
    outside = [element.attributes["id"] for element in page.all() if "id" in element.attributes]
    repeated = {name for name, count in Counter(outside).items() if count > 1}
    assert not repeated


def hostile() -> RunRecord:
    record = trained(
        command=HOSTILE,
        notes=[HOSTILE],
        environment={HOSTILE: HOSTILE},
        diagnostics={HOSTILE: {HOSTILE: HOSTILE}},
        slices={HOSTILE: [{"label": HOSTILE, HOSTILE: 0.5}]},
        hyper={HOSTILE: HOSTILE},
        preset=HOSTILE,
        cost={"seconds_per_step": 0.1, "device": HOSTILE},
        baselines={HOSTILE: {"r2": 0.5, HOSTILE: 0.1}},
        scores={"test": {"r2": 0.75, HOSTILE: 0.5}, HOSTILE: {"r2": 0.5}},
    )
    record.task["parameters"][HOSTILE] = HOSTILE
    return renamed(record, task=HOSTILE, model=HOSTILE)


def test_names_are_text_wherever_they_are_written() -> None:
    report = make_report([(Path("run"), hostile()), (Path("other"), trained())], [HOSTILE])
    page = parse(render_page(report))
    page.children += opened(page).values()
    assert not [image for image in page.all("img") if not image.attributes["src"].startswith("data:")]
    assert not [element for element in page.all("b") if not element.attributes["class"].startswith("h")]
    assert not [element for element in page.all() if any(name.startswith("on") for name in element.attributes)]
    name = " ".join(HOSTILE.split())
    assert page.one("section", id="left-out").one("li").text() == name
    texts = {element.text() for element in page.all()}
    for tag in ("h2", "h3", "code", "dt", "dd", "option"):
        assert any(name in element.text() for element in page.all(tag)), tag
    assert f"{name} on {name}" in texts
    assert "49" not in page.one("select", id="row").text()


def test_data_for_scripts_cannot_leave_its_element() -> None:
    html = render_page(report_of(hostile()))
    block = parse(html).one("script", type="application/json")
    assert "<" not in block.text()
    assert json.loads(str(block.children[0]))["rows"][0]["label"] == HOSTILE


def test_the_policy_lets_in_nothing_but_what_is_there() -> None:
    html = render_page(report_of(trained()))
    page = parse(html)
    policy = page.one("meta", http_equiv="Content-Security-Policy").attributes["content"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'" and rules["img-src"] == "data:"

    def hashes(tag: str) -> set[str]:
        parts = [str(part.children[0]) for part in page.all(tag) if "type" not in part.attributes]
        return {f"'sha256-{base64.b64encode(hashlib.sha256(p.encode()).digest()).decode()}'" for p in parts}

    assert set(rules["script-src"].split()) == hashes("script")
    assert set(rules["style-src"].split()) == hashes("style")
    assert not [element for element in page.all() if "style" in element.attributes]
    assert not page.all("link") and "@import" not in html


def test_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    records = [trained(), trained(model="dss"), made(task="mips"), made(seed=1, status="failed", score=None)]
    first = render_page(make_report(*read_runs([write_runs(tmp_path / "first", *records)])))
    random.Random(0).shuffle(records)
    assert render_page(make_report(*read_runs([write_runs(tmp_path / "second", *records)]))) == first


def test_details_repeat_command_settings_and_notes() -> None:
    page = page_of(trained(command="lrtasks eval --model dlr --task shift --seed 0"))
    (details,) = opened(page).values()
    assert details.one(class_="repeat").one("code").text() == "lrtasks eval --model dlr --task shift --seed 0"
    assert details.one(class_="run-note").text() == "a slow path was taken"
    settings = {
        dl.one("dt").text(): dl.one("dd").text() for dl in details.all("div") if dl.all("dt") and len(dl.children) == 2
    }
    assert settings["steps"] == "2000" and settings["kernel"] == "real"
    assert settings["commit"] == "0123abc" and settings["time per step"] == "10 ms"
    assert "activation rate" in details.text() and "0.25" in details.text()


def test_long_settings_may_break_after_each_sign() -> None:
    page = page_of(made(hyper={"kernel": "real"}), made(hyper={"kernel": HOSTILE}))
    settings = [head.one(class_="settings") for head in page.one(id="heat-map").all("th", class_="model")]
    assert sorted(found.text() for found in settings) == sorted([f"kernel={' '.join(HOSTILE.split())}", "kernel=real"])
    assert all(len(found.all("wbr")) == found.text().count("=") for found in settings)
    assert not [found for found in settings if found.all("img") or found.all("b")]


def test_the_best_result_of_a_task_may_be_in_any_of_its_rows() -> None:
    """Two good models put length 256 first, but the best score is at length 512."""
    page = page_of(made(score=0.8), made(model="dss", score=0.7), made(length=512, model="s4d", score=0.9, floor=0.1))
    (card,) = page.all("details", class_="task-card")
    assert "best: s4d with 0.90, floor 0.10" in card.all("summary")[0].text()
    (unscored,) = page_of(made(score=None), made(length=512, score=None)).all("details", class_="task-card")
    assert "best" not in unscored.all("summary")[0].text()


def test_the_best_result_of_a_task_is_of_a_causal_model() -> None:
    unfair = made(score=1.0, notes=[f"{NOT_CAUSAL}: outputs change"])
    (card,) = page_of(unfair, made(model="dss", score=0.9)).all("details", class_="task-card")
    assert "best: dss with 0.90" in card.all("summary")[0].text()


def test_the_sample_of_a_task_is_not_that_of_another_task_with_its_name() -> None:
    own = made(length=64)
    (card,) = page_of(dataclasses.replace(own, task=own.task | {"source": "0123abc"})).all(
        "details", class_="task-card"
    )
    assert "No sample of this task" in card.text() and not card.all("figure", class_="sample")


def test_rows_of_tables_have_as_many_cells_as_their_heads() -> None:
    page = page_of(
        trained(), trained(model="dss", slices={}), made(task="sort"), made(model="x", score=None, status="failed")
    )
    tables = page.all("table") + [table for behind in opened(page).values() for table in behind.all("table")]
    assert len(tables) > 10
    for table in tables:
        head = table.one("thead").all("tr")[-1]
        widths = {len(row.all("th") + row.all("td")) for row in (head, *table.one("tbody").all("tr"))}
        assert len(widths) == 1, table.one("thead").text()


def test_predictions_of_a_run_are_in_its_details(tmp_path: Path) -> None:
    write_runs(tmp_path, made(task="pathlike"))
    (folder,) = (path.parent for path in tmp_path.rglob("record.json"))
    Image.new("RGB", (30, 10), "red").save(folder / "predictions.png")
    image = opened(parse(render_page(make_report(*read_runs([tmp_path])))))["pathlike--dlr"].one("img")
    assert image.attributes["src"].startswith("data:image/png;base64,") and image.attributes["alt"]


def test_the_table_of_runs_shows_the_steps_that_were_trained() -> None:
    curve = [{"step": step, "loss": 1.0, "r2": 1.0} for step in (250, 500)]
    (run,) = page_of(made(curve=curve, budget={"steps": 1500})).one("section", id="runs").one("tbody").all("tr")
    (steps,) = [cell for cell in run.all("td") if cell.text() == "500 of 1,500"]
    assert steps.attributes["data-value"] == "500"
    (run,) = page_of(made(curve=curve, budget={"steps": 500})).one("section", id="runs").one("tbody").all("tr")
    assert "500" in [cell.text() for cell in run.all("td")]


def test_papers_figures_stand_beside_ours() -> None:
    as_in_the_paper = {"length": 4096, "hyper": {"d_model": 128}, "budget": {"steps": 43_200}}
    page = page_of(made(**as_in_the_paper, score=0.99))
    (cell,) = page.one(class_="ranking").all("td", class_="paper")
    assert cell.text() == "1.00"
    assert "DLR paper, Table 1, length 4096, d_model 128" in opened(page)["shift--dlr"].text()


def fifty() -> Report:
    curve = [{"step": step, "loss": 1 / step, "r2": step / 2000} for step in range(100, 2001, 100)]
    tasks = ("shift", "sort", "select-fixed", "mips", "context-shift")  # drawing a task's sample takes most of the time
    models = ("transformer", "dlr", "dss", "s4d", "sgconv", "mega", "seqboat", "longvq", "lstm", "mamba2")
    return report_of(*(trained(task=task, model=model, curve=curve) for task in tasks for model in models))


def test_fifty_runs_are_far_below_the_limit() -> None:
    report = fifty()
    assert len(report.results) == 50
    assert 100_000 < len(render_page(report).encode()) < MAX_BYTES


def test_without_the_charting_packages_the_page_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    vega.cache_clear()
    with pytest.raises(UsageError, match=r"needs the package altair: pip install 'lrtasks\[report\]'"):
        render_page(report_of(made()))


def test_control_characters_do_not_reach_the_page() -> None:
    evil = "a\x1b[31m\u202eb"
    html = render_page(
        report_of(renamed(trained(notes=[evil], command=evil, diagnostics={evil: {evil: [evil]}}), model=evil))
    )
    page = parse(html)
    for part in (html.partition('<script type="application/json"')[0], *(d.text() for d in opened(page).values())):
        assert "\x1b" not in part and "\u202e" not in part
