"""The report in a browser: what its scripts do, how it fits, and whether everybody can use it.

Needs Chromium on the search path, and the packages ``playwright`` and ``axe-playwright-python``.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from made_records import made
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright
from report_pages import HOSTILE, renamed, trained, write_runs

from lrtasks.results import RunRecord
from lrtasks.results.frame import read_runs
from lrtasks.results.report import make_report, render_page

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("browser")]
expect.set_options(timeout=20_000)  # while other tests keep both cores busy, 5 seconds were once too few

TASKS = {"shift": 0.9, "cumsum": 0.7, "cummax": 0.5, "recall": 0.3}
MODELS = {"dlr": 0.05, "attention": 0.0, "a-model-with-a-long-name": -0.05}
WIDTHS = (360, 400, 768, 1400)


def records() -> Iterator[RunRecord]:
    for task, score in TASKS.items():
        for number, (model, more) in enumerate(MODELS.items()):
            cost = {"seconds_per_step": 0.01 * (number + 1), "peak_memory_bytes": 2**20, "device": "cpu"}
            command = f"lrtasks eval --model {model} --task {task}"
            curve = [{"step": step, "loss": 1 / step, "r2": (score + 4 * more) * step / 80} for step in (20, 80)]
            changes = {"cost": cost, "command": command, "curve": curve, "length": 64}
            yield trained(task=task, model=model, score=score + more, **changes)
    yield trained(task="shift", model="dlr", length=256, score=0.7, floor=0.6)
    further = {
        "scores": {"test": {"r2": 0.3}, "2x": {"r2": 0.3}, "4x": {}},
        "further_baselines": {"2x": {"copy": {"r2": 0.1}}, "4x": {"copy": {"r2": 0.1}}},
    }
    solved = [{"step": 20, "loss": 0.1, "r2": 1.0}]
    yield trained(task="recall", model="attention", seed=1, length=64, curve=solved, **further)
    for number, status in enumerate(("diverged", "failed", "running")):
        yield made(task=list(TASKS)[number], model="broken", length=64, score=None, status=status)
    yield renamed(trained(notes=[HOSTILE], command=HOSTILE), task=HOSTILE, model=HOSTILE)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of made-up runs."""
    folder = write_runs(tmp_path_factory.mktemp("runs"), *records())
    path = folder / "report.html"
    path.write_text(render_page(make_report(*read_runs([folder]))))
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Headless Chromium of the system."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found, "these tests need Chromium (apt-get install chromium)"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, file: Path) -> Iterator[Page]:
    """The page, opened; if it loads or reports anything, the test fails."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme="light", offline=True)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: complaints.append(request.url) if request.url.startswith("http") else None)
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    page.goto(file.as_uri())
    yield page
    context.close()
    assert complaints == []


def written(folder: Path, *runs: RunRecord) -> str:
    """Write the page of these runs; return its address."""
    (folder / "report.html").write_text(render_page(make_report(*read_runs([write_runs(folder / "runs", *runs)]))))
    return (folder / "report.html").as_uri()


def column(page: Page, table: str, number: int) -> list[str]:
    """The texts of one column of a table, as they are seen."""
    cells = page.locator(f"{table} tbody tr:visible > :nth-child({number + 1})")
    return [" ".join(text.split()) for text in cells.all_inner_texts()]


def cell(page: Page, task: str, model: str) -> Locator:
    """The link in a cell of the heat map."""
    return page.get_by_role("link", name=re.compile(rf"^{model} on {re.escape(task)}[ :(]"))


def test_nothing_is_wider_than_the_page(page: Page) -> None:
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_timeout(100)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        for name in page.locator("tbody th .name:text-is('attention')").all():
            assert name.evaluate("name => name.offsetHeight") < 30
    page.set_viewport_size({"width": 360, "height": 800})
    page.locator("summary", has_text="Models").click()
    menu = page.get_by_role("group", name="Models", exact=True).bounding_box()
    assert menu is not None and menu["x"] >= 0 and menu["x"] + menu["width"] <= 360
    page.locator("summary", has_text="Models").click()
    cell(page, "cumsum", "dlr").click()
    dialog = page.get_by_role("dialog")
    assert dialog.evaluate("element => element.scrollWidth <= element.clientWidth")


def test_the_heat_map_scrolls_under_its_row_heads(page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 800})
    scroller = page.get_by_role("region", name="Scores by task and model")
    head = page.locator("#heat-map tbody th").first
    before = head.bounding_box()
    scroller.evaluate("element => element.scrollTo(1000, 0)")
    assert scroller.evaluate("element => element.scrollLeft") > 50
    after = head.bounding_box()
    assert before is not None and after is not None and abs(after["x"] - before["x"]) <= 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("opened", [False, True])
def test_everybody_can_use_it(page: Page, scheme: str, opened: bool) -> None:
    page.emulate_media(color_scheme=scheme)
    page.locator(".task-card > summary").first.click()
    page.locator(".task-card details.values summary").first.click()
    if opened:
        cell(page, "cumsum", "dlr").click()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_a_table_is_sorted_by_keyboard(page: Page) -> None:
    page.locator("#heat-map").get_by_role("button", name="Task").focus()
    page.keyboard.press("Enter")
    names = column(page, "#heat-map", 0)
    assert names[1:] == ["cummax", "cumsum", "recall", "shift length=64", "shift length=256"]
    head = page.locator("#heat-map th[aria-sort=ascending]")
    expect(head).to_have_text("Task")
    page.keyboard.press("Space")
    assert column(page, "#heat-map", 0) == names[::-1]
    expect(page.locator("#heat-map th[aria-sort=descending]")).to_have_text("Task")


def test_scores_are_sorted_as_numbers_and_missing_ones_stay_last(page: Page) -> None:
    button = page.locator("#heat-map").get_by_role("button", name="dlr")
    number = button.evaluate("button => button.closest('th').cellIndex")
    button.click()
    falling = column(page, "#heat-map", number)
    assert falling == ["0.94", "0.69", "0.44", "0.25", "0.19", ""]
    button.click()
    rising = column(page, "#heat-map", number)
    assert rising[:-1] == falling[:-1][::-1] and rising[-1] == falling[-1]


def test_a_column_is_sorted_by_the_numbers_that_it_shows(page: Page) -> None:
    cell(page, "cumsum", "dlr").evaluate("link => link.closest('td').dataset.score = '1.5'")
    button = page.locator("#heat-map").get_by_role("button", name="dlr")
    button.click()
    table = page.locator("#heat-map tbody")
    expect(table.get_by_role("row").first).to_contain_text("shift")
    page.get_by_text("score", exact=True).and_(page.locator(".choice span")).click()
    expect(table.get_by_role("row").first).to_contain_text("cumsum")
    button.click()
    expect(table.get_by_role("row").nth(-2)).to_contain_text("cumsum")


def test_a_cell_opens_the_details_by_keyboard_and_gives_the_focus_back(page: Page) -> None:
    link = cell(page, "cumsum", "dlr")
    link.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="dlr on cumsum")
    expect(dialog).to_be_visible()
    expect(dialog.get_by_role("heading", name="dlr on cumsum")).to_be_focused()
    expect(dialog.get_by_text("lrtasks eval --model dlr --task cumsum")).to_be_visible()
    expect(dialog.get_by_text("activation rate")).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(link).to_be_focused()
    assert "#" not in page.url
    page.keyboard.press("Enter")
    expect(dialog).to_be_visible()
    dialog.get_by_role("button", name="Close").click()
    expect(dialog).to_be_hidden()


def test_details_have_an_address_and_the_way_back_closes_them(page: Page) -> None:
    cell(page, "cummax", "attention").click()
    address = page.url
    assert address.endswith("#cummax--attention")
    page.go_back()
    expect(page.get_by_role("dialog")).to_be_hidden()
    page.goto("about:blank")
    page.goto(address)
    expect(page.get_by_role("dialog", name="attention on cummax")).to_be_visible()


def test_the_command_is_copied(page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    cell(page, "cumsum", "dlr").click()
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    expect(page.get_by_role("dialog").get_by_role("status")).to_have_text("copied")
    assert page.evaluate("navigator.clipboard.readText()") == "lrtasks eval --model dlr --task cumsum"


def test_arrow_keys_walk_over_the_cells(page: Page) -> None:
    first = cell(page, "shift", "dlr").first
    first.focus()
    page.keyboard.press("ArrowDown")
    second = page.evaluate("document.activeElement.getAttribute('href')")
    page.keyboard.press("ArrowRight")
    third = page.evaluate("document.activeElement.getAttribute('href')")
    assert second.endswith("--dlr") and third.startswith(second.removesuffix("dlr")) and second != third
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowUp")
    expect(first).to_be_focused()


def test_the_theme_follows_the_system_until_it_is_chosen(page: Page) -> None:
    def background() -> str:
        found: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return found

    light = background()
    page.emulate_media(color_scheme="dark")
    dark = background()
    assert light != dark
    page.get_by_role("button", name="Light theme").click()
    assert background() == light
    page.reload()
    assert background() == light
    page.get_by_role("button", name="Dark theme").click()
    assert background() == dark


def test_cells_show_scores_on_demand(page: Page) -> None:
    link = cell(page, "cumsum", "dlr")
    expect(link).to_have_text("0.69", use_inner_text=True)
    page.get_by_text("score", exact=True).and_(page.locator(".choice span")).click()
    expect(link).to_have_text("0.75", use_inner_text=True)


def test_filters_by_task_model_and_words(page: Page) -> None:
    rows, heads = page.locator("#heat-map tbody tr:visible"), page.locator("#heat-map th.model:visible")
    every = rows.count(), heads.count()
    page.get_by_label("Search").fill("cumsum DLR")
    assert (rows.count(), heads.count()) == (1, 1)
    assert page.locator(".task-card:visible").count() == 1
    assert page.locator("#runs tbody tr:visible").count() == 1
    expect(page.get_by_role("status")).to_have_text("1 of 17 results shown")
    page.get_by_role("button", name="Clear").click()
    expect(rows).to_have_count(every[0])
    expect(heads).to_have_count(every[1])
    page.locator("summary", has_text="Models").click()
    page.get_by_role("checkbox", name="attention").uncheck()
    assert heads.count() == every[1] - 1
    expect(page.locator("[data-count=column]")).to_have_text("4/5")
    page.keyboard.press("Escape")
    expect(page.get_by_role("checkbox", name="attention")).to_be_hidden()


def test_means_and_costs_are_those_of_the_tasks_shown(page: Page) -> None:
    """Means are set beside each other only where all models were run on the same tasks."""
    number = page.get_by_role("button", name="dlr").evaluate("button => button.closest('th').dataset.column")
    means = page.locator(f"[data-mean='{number}']")
    times = page.locator(f"#efficiency tr[data-column='{number}'] [data-cost=seconds_per_step]")
    expect(means.first).to_have_text(
        "0.56"
    )  # of 0.94, 0.69, 0.44, 0.19: the other tasks are this or another model's alone
    expect(page.locator("#mean-of")).to_have_text("of 4 tasks")
    page.get_by_label("Search").fill("dlr shift")
    for place in (0, 1):
        expect(means.nth(place)).to_have_text("0.59")  # of 0.9375 at length 64 and 0.25 at length 256
    expect(page.locator(f"[data-solved='{number}']")).to_have_text("0 of 2")  # scaled: 0.9375 and 0.25
    expect(times).to_have_text("10 ms")
    page.get_by_role("button", name="Clear").click()
    expect(means.first).to_have_text("0.56")


def card_of(page: Page, task: str) -> Locator:
    """The card of a task, opened, with its chart drawn."""
    card = page.locator(".task-card").filter(has=page.locator(f"h3:text-is('{task}')"))
    card.locator("> summary").click()
    expect(card.locator("[data-chart=curve] svg").first).to_be_visible()
    return card


def test_charts_are_drawn_when_they_are_seen_and_have_legends_and_values(page: Page) -> None:
    assert page.locator(".task-card svg").count() == 0
    chart = card_of(page, "cumsum").locator("[data-chart=curve]")
    for model in MODELS:
        expect(chart.locator("svg .role-legend-label", has_text=model).first).to_be_attached()
    lines = chart.locator("svg .mark-line path")
    assert lines.count() == 3
    chart.locator("svg .role-legend-label text", has_text="attention").first.click()
    page.wait_for_timeout(300)
    faint = [float(line.get_attribute("opacity") or 1) for line in chart.locator("svg .mark-line path").all()]
    assert sorted(faint) == [0.06, 0.06, 1]
    chart.get_by_text("Values").click()
    table = chart.get_by_role("table")
    expect(table.get_by_role("row")).to_have_count(4)
    expect(table).to_contain_text("0.175")  # of dlr at step 20: (0.7 + 4 * 0.05) * 20 / 80, limited in the chart alone


def test_a_mean_does_not_fall_where_a_solved_seed_has_stopped(page: Page) -> None:
    chart = card_of(page, "recall").locator("[data-chart=curve]")
    chart.get_by_text("Values").click()
    row = chart.get_by_role("table").get_by_role("row", name="attention")
    expect(row.get_by_role("cell").first).to_have_text("0.5375")  # of 0.3 * 20 / 80 and 1
    expect(row.get_by_role("cell").last).to_have_text("0.65")  # of 0.3 and 1


@pytest.mark.parametrize(("task", "kind"), [("shift", "length"), ("recall", "further")])
def test_a_chart_over_length_has_the_floor_of_each_length(page: Page, task: str, kind: str) -> None:
    chart = card_of(page, task).locator(f"[data-chart={kind}]")
    floor = chart.locator("svg .mark-line path[stroke=gray]")
    points = re.findall(r"([\d.]+),([\d.]+)", floor.get_attribute("d") or "")
    (x, y), (next_x, next_y) = [tuple(map(float, point)) for point in points]
    assert x < next_x
    # y points down: the floor rises from 0.2 to 0.6 over the training length, and falls to 0.1 over the test length
    assert y > next_y + 20 if kind == "length" else y < next_y - 20
    expect(chart.locator("svg text", has_text="floor: copy")).to_have_count(1)


def test_the_best_model_of_a_task_is_not_named_if_the_filter_hides_it(page: Page) -> None:
    summary = page.locator(".task-card > summary", has_text="cumsum")
    expect(summary).to_have_text(re.compile("best: dlr"), use_inner_text=True)
    page.get_by_label("Search").fill("cumsum attention")
    expect(summary).not_to_have_text(re.compile("best:"), use_inner_text=True)


def test_a_sorted_table_keeps_its_order_if_the_filter_changes_its_numbers(browser: Browser, tmp_path: Path) -> None:
    scores = {"dlr": (0.9, 0.3), "dss": (0.5, 0.6)}
    runs = [
        made(task=task, model=model, score=score[place])
        for place, task in enumerate(("shift", "sort"))
        for model, score in scores.items()
    ]
    with browser.new_page() as page:
        page.goto(written(tmp_path, *runs))
        page.locator("#efficiency").get_by_role("button", name="Mean").click()
        assert column(page, "#efficiency", 0) == ["dlr", "dss"]
        page.get_by_label("Search").fill("sort")
        assert column(page, "#efficiency", 0) == ["dss", "dlr"]


def test_floors_and_scaled_scores_are_sorted_as_numbers(browser: Browser, tmp_path: Path) -> None:
    found = {"shift": (-9.0, -0.3), "sort": (0.1, 0.2), "cumsum": (0.9, -0.05)}
    records = [made(task=task, score=y, baselines={"mean": {"r2": floor}}) for task, (y, floor) in found.items()]
    with browser.new_page() as page:
        page.goto(written(tmp_path, *records))
        page.locator("#heat-map").get_by_role("button", name="Floor").click()
        assert column(page, "#heat-map", 1) == ["0.20 mean", "-0.05 mean", "-0.30 mean"]
        page.locator("#runs").get_by_role("button", name="Scaled").click()
        assert column(page, "#runs", 5) == ["0.90", "-0.12", "< -1"]


def test_no_line_over_length_joins_models_with_different_settings(browser: Browser, tmp_path: Path) -> None:
    other = [made(length=length, model="dlr", hyper={"d_state": length}) for length in (64, 128)]
    with browser.new_page() as page:
        page.goto(written(tmp_path, *other, *(made(length=length, model="dss") for length in (64, 128))))
        page.locator(".task-card > summary").click()
        lines = page.locator("[data-chart=length] svg .mark-line path")
        expect(lines).to_have_count(4)  # two single points, the line of dss, and the floor


def test_a_chart_follows_the_filter(page: Page) -> None:
    card = card_of(page, "cumsum")
    page.get_by_label("Search").fill("cumsum dlr")
    expect(card.locator("svg .mark-line path")).to_have_count(1)


def test_a_point_of_a_chart_says_what_it_is_and_leads_to_its_run(page: Page) -> None:
    card = card_of(page, "cumsum")
    page.get_by_label("Search").fill("cumsum attention")
    expect(card.locator("svg .mark-line path")).to_have_count(1)
    point = card.locator("svg .mark-symbol.role-mark path").last
    point.hover()
    expect(page.locator(".tip")).to_contain_text("attention")
    expect(page.locator(".tip")).to_contain_text("step")
    point.click()
    expect(page.get_by_role("dialog", name="attention on cumsum")).to_be_visible()
    expect(page.get_by_role("dialog").locator("[data-chart=loss] svg")).to_be_visible()


@pytest.mark.parametrize(("form", "start"), [("SVG", b"<svg"), ("PNG", b"\x89PNG")])
def test_a_chart_can_be_saved(page: Page, form: str, start: bytes) -> None:
    chart = card_of(page, "cumsum").locator("[data-chart=curve]")
    with page.expect_download() as waiting:
        chart.get_by_role("button", name=f"Save {form}").click()
    assert Path(waiting.value.path()).read_bytes().startswith(start)


def test_efficiency_by_cost_and_task(page: Page) -> None:
    chart = page.locator("[data-chart=efficiency]")
    chart.scroll_into_view_if_needed()
    points = chart.locator("svg .mark-symbol.role-mark path")
    expect(points).to_have_count(3)
    expect(page.locator("#without")).to_contain_text("broken")
    page.get_by_role("combobox", name="Task").select_option("cumsum")
    expect(points).to_have_count(3)
    expect(page.locator("#without")).to_contain_text("broken")
    page.get_by_role("combobox", name="Cost").select_option("streaming state")
    expect(chart).to_contain_text("streaming state (bytes)")
    assert "peak" not in page.get_by_role("combobox", name="Cost").inner_text()  # of the interpreter, on a processor
    points.first.click()
    expect(page.get_by_role("dialog")).to_contain_text("on cumsum")


def test_the_time_axis_counts_milliseconds_and_has_one_title(page: Page) -> None:
    chart = page.locator("[data-chart=efficiency]")
    chart.scroll_into_view_if_needed()
    axis = chart.locator("svg .role-axis", has=page.locator(".role-axis-title", has_text="time per step"))
    expect(axis.locator(".role-axis-title")).to_have_text("time per step (ms)")
    ticks = [text for text in axis.locator(".role-axis-label text").all_text_contents() if text]
    # the times are 10, 20 and 30 ms
    assert ticks and all(8 < float(text) < 40 for text in ticks)


def test_a_table_that_is_cut_says_so(page: Page) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    expect(page.get_by_role("region", name="Scores by task and model")).to_have_class("scroll cut")
    page.set_viewport_size({"width": 1400, "height": 800})
    expect(page.get_by_role("region", name="Scores by task and model")).to_have_class("scroll")


def test_on_paper_no_table_is_cut(browser: Browser, tmp_path: Path) -> None:
    page = browser.new_page(viewport={"width": 400, "height": 800})
    page.goto(written(tmp_path, *(made(seed=seed, length=64) for seed in range(40))))
    page.emulate_media(media="print")
    for name in ("Scores by task and model", "All runs"):
        table = page.get_by_role("region", name=name)
        assert table.evaluate("box => getComputedStyle(box).overflow") == "visible"
        assert table.evaluate("box => box.scrollHeight <= box.clientHeight + 1")
    expect(page.locator(".choice")).to_be_hidden()
    expect(page.locator("#efficiency .controls")).to_be_hidden()
    page.close()


def test_a_link_to_a_task_opens_its_card(page: Page) -> None:
    page.locator("#heat-map tbody th a", has_text="cumsum").click()
    expect(page.locator("#task-cumsum, [id=task--cumsum]").first).to_be_in_viewport()


def test_nothing_moves_where_less_motion_is_wanted(page: Page) -> None:
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"


def test_the_first_tab_stop_skips_to_the_content(page: Page) -> None:
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
