"""The page in a real browser: what is drawn, and what mouse, wheel and keys do. No tab complains or loads anything."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import page_samples
import pytest

from benchmarks.headless_browser import Browser, Page
from perfdoctor.reporters.html import html

pytestmark = pytest.mark.process

Show = Callable[..., Page]
CTRL, SHIFT = 2, 8
# By canvas how many colours it has: one, where nothing was drawn.
COLOURS = """(selector => [...document.querySelectorAll(selector)].map(canvas => {
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  return new Set(new Uint32Array(data.buffer)).size;
}))"""
TIP = "document.getElementById('tip').hidden ? '' : document.getElementById('tip').innerText"
TIMELINE = ".chart-timeline canvas"
CHARTS = ("timeline", "memory", "flames", "treemap", "roofline", "steps")


def column(page: Page, number: int, table: str = "table-kernels") -> list[str]:
    """A column of a table, as shown; the first is number 1."""
    selector = f"#{table} tbody td:nth-child({number})"
    cells: list[str] = page.evaluate(f"[...document.querySelectorAll('{selector}')].map(c => c.textContent)")
    return cells


def pixels(page: Page, selector: str = TIMELINE) -> str:
    """What a canvas shows."""
    page.frames()
    shown: str = page.evaluate(f"document.querySelector('{selector}').toDataURL()")
    return shown


def choose(page: Page, selector: str) -> tuple[float, float]:
    """Scroll to an element, give it the focus, and return its middle."""
    page.show(selector)
    page.evaluate(f"document.querySelector('{selector}').focus({{preventScroll: true}})")
    return page.centre(selector)


def focused(page: Page) -> str:
    """The text or label of what has the focus."""
    name: str = page.evaluate(
        "(e => e.getAttribute('aria-label') || e.textContent.trim().slice(0, 60))(document.activeElement)"
    )
    return name


# --- what is drawn ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_chart_is_drawn_when_it_comes_into_sight(show: Show, *, dark: bool) -> None:
    page = show(page_samples.everything(), dark=dark)
    assert page.evaluate("[...document.querySelectorAll('[data-chart]')].map(e => e.dataset.chart)") == list(CHARTS)
    assert page.evaluate("document.querySelector('[data-chart=steps]').dataset.started") is None
    for name in CHARTS:
        page.show(f"[data-chart={name}]")
        assert max(page.evaluate(f"{COLOURS}('[data-chart={name}] canvas')")) > 5, name


def test_ranks_have_a_heat_map_that_keys_walk_through(show: Show) -> None:
    page = show(page_samples.four_ranks())
    choose(page, ".chart-ranks canvas")
    assert page.evaluate(f"{COLOURS}('.chart-ranks canvas')")[0] > 2
    page.press("ArrowDown")
    assert page.evaluate(TIP).startswith("rank 0, step 1\n41.0 ms")
    for key in ("ArrowDown", "ArrowRight"):
        page.press(key)
    assert page.evaluate(TIP).startswith("rank 1, step 2\n")
    page.press("Escape")
    assert page.evaluate(TIP) == ""


@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_wider_than_the_window(show: Show, width: int) -> None:
    page = show(page_samples.everything(), width=width)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    for name in CHARTS:
        page.show(f"[data-chart={name}]")
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_hostile_names_stay_text_in_the_browser(show: Show) -> None:
    page = show(page_samples.hostile(), width=400)
    for name in CHARTS:
        page.show(f"[data-chart={name}]")
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    page.frames(6)
    x, y = choose(page, ".chart-flames canvas")
    page.mouse("mouseMoved", x - 100, y)
    assert page.evaluate("document.title").startswith("perfdoctor: ")
    assert page.evaluate("document.images.length + document.querySelectorAll('[onerror],[onload]').length") == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    assert page_samples.HOSTILE[1] in page.evaluate("document.body.textContent")
    assert "\u202e" not in page.evaluate("document.documentElement.outerHTML")


def test_the_policy_stops_what_would_load_or_run(browser: Browser, tmp_path: Path) -> None:
    """Were a name ever markup, it could still do nothing: here it is put in as markup, by force."""
    attack = "<img src='https://example.org/a.png'><script>document.title='owned'</script><p style='color:red' id='p'>"
    text = html.Html().render(page_samples.everything()).replace("<main>", f"<main>{attack}", 1)
    path = tmp_path / "attacked.html"
    path.write_text(text, encoding="utf-8")
    page = browser.open(path)
    page.evaluate("fetch('https://example.org/b').catch(() => 0)")
    assert page.evaluate("document.title").startswith("perfdoctor")
    assert page.evaluate("getComputedStyle(document.getElementById('p')).color") != "rgb(255, 0, 0)"
    assert page.complaints(), "the browser says what the policy forbade"
    loaded = {each["requestId"] for each in page.events("Network.responseReceived")}
    sent = [each for each in page.events("Network.requestWillBeSent") if each["requestId"] in loaded]
    assert [each["request"]["url"] for each in sent] == [path.as_uri()]
    page.close()


def test_the_page_is_read_without_its_script(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(html.Html().render(page_samples.everything()), encoding="utf-8")
    page = browser.open(path, script=False)
    page.screenshot(tmp_path / "plain.png")
    text = page.evaluate("document.body.innerText")
    assert "The GPU waits for the DataLoader" in text
    assert "Copy" not in text
    assert "vectorized_add 1" in text
    page.close()


# --- the theme --------------------------------------------------------------------------------------------------------


def test_the_theme_is_the_systems_until_one_is_chosen(show: Show) -> None:
    page = show(page_samples.everything())
    background = "getComputedStyle(document.body).backgroundColor"
    page.show(TIMELINE)
    light, drawn = page.evaluate(background), pixels(page)
    page.evaluate("scrollTo(0, 0)")
    assert page.evaluate("document.getElementById('theme').textContent") == "Dark"
    page.click("#theme")
    assert page.evaluate(background) != light
    assert pixels(page) != drawn
    assert page.evaluate("document.getElementById('theme').textContent") == "Light"
    page.click("#theme")
    assert page.evaluate(background) == light
    assert pixels(page) == drawn
    page.evaluate("localStorage.clear()")


# --- tables -----------------------------------------------------------------------------------------------------------


def test_a_table_is_filtered_sorted_and_copied(show: Show) -> None:
    page = show(page_samples.everything())
    page.show("#table-kernels table")
    assert column(page, 1)[:2] == ["ampere_sgemm_128x64 0", "vectorized_add 1"]
    assert len(column(page, 1)) == 25
    page.click("#table-kernels .more-rows")
    assert len(column(page, 1)) == 60

    choose(page, "#table-kernels input")
    page.type("vectorized 4")
    assert {name.split()[0] for name in column(page, 1)} == {"vectorized_add"}
    assert "of 60 rows" in page.evaluate("document.querySelector('#table-kernels [role=status]').textContent")
    page.evaluate(
        "(i => { i.value = ''; i.dispatchEvent(new Event('input')); })(document.querySelector('#table-kernels input'))"
    )

    page.click("#table-kernels thead th:nth-child(2) button")
    assert column(page, 1)[0] == "layer_norm 59"
    assert page.evaluate("document.querySelector('#table-kernels thead th:nth-child(2)').ariaSort") == "ascending"
    assert focused(page).startswith("time a step"), "sorting by key again needs no search for the heading"
    page.press("Enter")
    assert column(page, 1)[0] == "ampere_sgemm_128x64 0"
    page.click("#table-kernels thead th:nth-child(4) button")
    rates = column(page, 4)
    assert (rates[0], rates[-1]) == ("57.0", "n/a")


def test_all_columns_come_on_demand(show: Show) -> None:
    page = show(page_samples.everything())
    headings = "[...document.querySelectorAll('#table-kernels thead th')].length"
    page.show("#table-kernels table")
    assert page.evaluate(headings) == 4
    page.evaluate(
        "[...document.querySelectorAll('#table-kernels button')].find(b => b.textContent === 'All columns').click()"
    )
    assert page.evaluate(headings) == 5


@pytest.mark.parametrize(
    ("button", "first_line", "row"),
    [
        ("Copy as TSV", "kernel\ttime a step\tshare\trate TFLOP/s", r"ampere_sgemm_128x64 0\t6\.00 ms\t14%\t"),
        (
            "Copy as Markdown",
            "| kernel | time a step | share | rate TFLOP/s |",
            r"\| ampere\\_sgemm\\_128x64 0 \| 6\.00 ms \|",
        ),
    ],
)
def test_what_is_copied_is_what_one_sees(show: Show, button: str, first_line: str, row: str) -> None:
    page = show(page_samples.everything())
    page.show("#table-kernels table")
    page.evaluate("navigator.clipboard.writeText = async text => { window.copied = text; }")
    page.evaluate(
        f"[...document.querySelectorAll('#table-kernels button')].find(b => b.textContent === '{button}').click()"
    )
    lines = page.evaluate("window.copied").split("\n")
    assert lines[0] == first_line
    assert re.search(row, "\n".join(lines))
    assert len(lines) - lines[0].startswith("|") == 61


def test_a_fix_is_copied_without_its_marks(show: Show) -> None:
    page = show(page_samples.everything())
    page.evaluate("navigator.clipboard.writeText = async text => { window.copied = text; }")
    page.click("#finding-1 .copy")
    assert page.evaluate("window.copied").startswith("loader = DataLoader(\n    dataset")
    assert page.evaluate("document.querySelector('#finding-1 .copy').textContent") == "Copied"


def test_the_outcomes_are_filtered(show: Show) -> None:
    page = show(page_samples.everything())
    page.click("#outcomes summary")
    page.frames()
    choose(page, "#outcomes input")
    page.type("skipped")
    assert column(page, 1, "outcomes") == ["PD401"]


# --- the timeline -----------------------------------------------------------------------------------------------------


def test_the_wheel_zooms_a_timeline_that_was_chosen_and_scrolls_the_page_before(show: Show) -> None:
    page = show(page_samples.everything())
    page.show(TIMELINE)
    x, y = page.centre(TIMELINE)
    before, top = pixels(page), page.evaluate("scrollY")
    page.wheel(x, y, 100)
    page.wait_for(f"scrollY > {top}")
    assert pixels(page) == before
    x, y = choose(page, TIMELINE)
    top = page.evaluate("scrollY")
    page.wheel(x, y, -400)
    page.wait_for(f"document.querySelector('{TIMELINE}').toDataURL() !== {before!r}")
    assert page.evaluate("scrollY") == top
    page.press("Home")
    assert pixels(page) == before


def test_ctrl_and_the_wheel_which_is_a_pinch_zooms_at_once(show: Show) -> None:
    page = show(page_samples.everything())
    page.show(TIMELINE)
    before = pixels(page)
    page.wheel(*page.centre(TIMELINE), -100, CTRL)
    page.wait_for(f"document.querySelector('{TIMELINE}').toDataURL() !== {before!r}")


def test_two_fingers_zoom_and_one_pans(show: Show) -> None:
    page = show(page_samples.everything())
    page.show(TIMELINE)
    x, y = page.centre(TIMELINE)
    views = [pixels(page)]
    touch(page, [[(x - 40, y), (x + 40, y)], [(x - 200, y), (x + 200, y)]])
    views.append(pixels(page))
    touch(page, [[(x, y)], [(x - 60, y)], [(x - 150, y)]])
    views.append(pixels(page))
    assert len(set(views)) == 3


def touch(page: Page, moves: list[list[tuple[float, float]]]) -> None:
    """Put fingers down at the first points, move them over the others, and lift them."""
    for kind, points in zip(["touchStart"] + ["touchMove"] * (len(moves) - 1), moves, strict=True):
        fingers = [{"x": x, "y": y, "id": i} for i, (x, y) in enumerate(points)]
        page.send("Input.dispatchTouchEvent", type=kind, touchPoints=fingers)
    page.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])


def test_dragging_pans_what_is_zoomed(show: Show) -> None:
    page = show(page_samples.everything())
    x, y = choose(page, TIMELINE)
    for _ in range(3):
        page.press("+")
    zoomed = pixels(page)
    page.drag((x, y), (x - 200, y))
    panned = pixels(page)
    assert panned != zoomed
    page.drag((x - 200, y), (x, y))
    assert pixels(page) == zoomed
    page.press("ArrowRight")
    assert pixels(page) != zoomed
    page.press("ArrowLeft")
    assert pixels(page) == zoomed


def test_hovering_says_what_an_item_is(show: Show) -> None:
    page = show(page_samples.everything())
    page.show(TIMELINE)
    box = page.evaluate(
        f"(b => [b.left, b.top, b.width])(document.querySelector('{TIMELINE}').getBoundingClientRect())"
    )
    tips = {}
    for y in range(0, 260, 4):
        page.mouse("mouseMoved", box[0] + box[2] * 20.4 / 43, box[1] + y)
        tip = page.evaluate(TIP)
        tips.setdefault(tip.split("\n")[-1].split(", ")[-1] if tip else "", tip)
    assert any("0.80" in tip or "800 us" in tip for tip in tips.values())
    assert any("launched by" in tip for tip in tips.values())
    assert any("thread 4711" in tip for tip in tips.values())
    page.mouse("mouseMoved", 5, 5)
    assert page.evaluate(TIP) == ""


def test_keys_walk_from_item_to_item_and_escape_lets_go(show: Show) -> None:
    page = show(page_samples.everything())
    choose(page, TIMELINE)
    before = pixels(page)
    page.press("ArrowDown", modifiers=SHIFT)
    first = page.evaluate(TIP)
    page.press("ArrowDown", modifiers=SHIFT)
    second = page.evaluate(TIP)
    page.press("ArrowRight", modifiers=SHIFT)
    assert len({first, second, page.evaluate(TIP), ""}) == 4
    page.press("Enter")
    assert pixels(page) != before
    page.press("Home")
    page.press("Escape")
    assert page.evaluate(TIP) == ""
    assert pixels(page) == before


def test_search_counts_dims_and_leads_to_what_it_finds(show: Show) -> None:
    page = show(page_samples.everything())
    page.show(TIMELINE)
    before = pixels(page)
    choose(page, ".chart-timeline input")
    page.type("LAYER")
    assert "21 items" in page.evaluate("document.querySelector('.chart-timeline [role=status]').textContent")
    assert pixels(page) != before
    page.press("Enter")
    assert page.evaluate(TIP).startswith("layer_norm\n")
    page.press("Escape")
    assert page.evaluate("document.querySelector('.chart-timeline input').value") == ""


def test_a_finding_leads_to_its_time(show: Show) -> None:
    page = show(page_samples.everything())
    assert page.evaluate("document.querySelector('#finding-1 .show-in-timeline').hidden") is False
    page.show(TIMELINE)
    before = pixels(page)
    page.click("#finding-1 .show-in-timeline")
    assert pixels(page) != before
    assert focused(page).startswith("Timeline of ")


# --- the other charts -------------------------------------------------------------------------------------------------


def test_the_flame_graph_zooms_by_click_and_by_keys(show: Show) -> None:
    page = show(page_samples.everything())
    selector = ".chart-flames canvas"
    page.show(selector)
    box = page.evaluate(
        f"(b => [b.left, b.top, b.width])(document.querySelector('{selector}').getBoundingClientRect())"
    )
    whole = pixels(page, selector)
    page.click_at(box[0] + box[2] / 3, box[1] + 47)
    assert "9.00 ms a step (45%), 9.00 ms in itself\nPyTorch op, loading data" in page.evaluate(TIP)
    assert pixels(page, selector) != whole
    page.press("Escape")
    assert pixels(page, selector) == whole
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.press(key)
    assert "5.00 ms a step (25%)" in page.evaluate(TIP)
    page.press("Enter")
    assert pixels(page, selector) != whole
    assert page.evaluate("location.hash") == "", "a place that has no paragraph"


def test_the_treemap_zooms_by_click_and_by_keys(show: Show) -> None:
    page = show(page_samples.everything())
    selector = ".chart-treemap canvas"
    x, y = choose(page, selector)
    whole = pixels(page, selector)
    page.mouse("mouseMoved", x - 200, y)
    assert page.evaluate(TIP).startswith("vectorized_add\n9.00 ms a step (45%)")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.press(key)
    assert page.evaluate(TIP).startswith("ampere_sgemm_128x64\n5.00 ms a step")
    page.press("Escape")
    assert pixels(page, selector) == whole
    page.click_at(x - 200, y)
    assert pixels(page, selector) != whole


@pytest.mark.parametrize("by_key", [True, False])
@pytest.mark.parametrize(("chart", "row"), [("flames", 28), ("treemap", 27)])
def test_a_place_leads_to_its_paragraph(show: Show, chart: str, row: int, *, by_key: bool) -> None:
    page = show(page_samples.everything())
    selector = f".chart-{chart} canvas"
    choose(page, selector)
    if by_key:
        for key in ("ArrowDown", "ArrowDown", "Enter"):
            page.press(key)
    else:
        box = f"(b => [b.left + 60, b.top + {row}])(document.querySelector('{selector}').getBoundingClientRect())"
        page.click_at(*page.evaluate(box))
    assert page.evaluate("[location.hash, document.activeElement.id]") == ["#place-1", "place-1"]
    assert page.evaluate(TIP) == ""


@pytest.mark.parametrize(
    ("chart", "words"),
    [
        ("roofline", "150 TFLOP/s at 300 FLOP per byte"),
        ("steps", "without the profiler"),
        ("memory", "2.00 GB allocated at 0 ms"),
    ],
)
def test_keys_walk_through_points(show: Show, chart: str, words: str) -> None:
    page = show(page_samples.everything())
    page.show(f".chart-{chart}")
    choose(page, f".chart-{chart} .u-over")
    page.press("ArrowRight")
    assert words in page.evaluate(TIP)
    page.press("Escape")
    assert page.evaluate(TIP) == ""


@pytest.mark.parametrize("chart", ["roofline", "steps", "memory"])
def test_dragging_zooms_a_plot_and_escape_shows_all(show: Show, chart: str) -> None:
    page = show(page_samples.everything())
    canvas = f".chart-{chart} .u-wrap canvas"
    x, y = choose(page, f".chart-{chart} .u-over")
    whole = pixels(page, canvas)
    page.drag((x - 150, y), (x + 150, y + 1))
    assert pixels(page, canvas) != whole
    page.press("Escape")
    assert pixels(page, canvas) == whole


def test_clicking_a_finding_in_the_timeline_shows_its_time(show: Show) -> None:
    page = show(page_samples.everything())
    page.show(TIMELINE)
    box = page.evaluate(
        f"(b => [b.left, b.top, b.width])(document.querySelector('{TIMELINE}').getBoundingClientRect())"
    )
    before = pixels(page)
    page.mouse("mouseMoved", box[0] + box[2] * 0.75, box[1] + 32)
    assert page.evaluate(TIP).startswith("1. The GPU waits for the DataLoader\n")
    page.click_at(box[0] + box[2] * 0.75, box[1] + 32)
    assert pixels(page) != before
    page.press("Escape")
    page.mouse("mouseMoved", 5, 5)
    assert pixels(page) == before


def test_the_peak_of_memory_leads_to_its_finding(show: Show) -> None:
    page = show(page_samples.everything())
    choose(page, ".chart-memory .u-over")
    box = "(b => [b.left, b.top, b.width, b.height])(document.querySelector('{}').getBoundingClientRect())"
    left, top, width, height = page.evaluate(box.format(".chart-memory .u-over"))
    x, y = left + width / 2, top + height * (1 - 7 / (9 * 1.12))  # 20 of 40 ms, 7 GB below 9 GB that are reserved
    page.mouse("mouseMoved", x, y)
    shown = page.evaluate(TIP)
    assert shown.startswith("7.00 GB allocated at 20.0 ms, the peak\n5.00 GB activations\n2.00 GB parameters\n")
    assert "9.00 GB reserved" in shown
    page.mouse("mouseMoved", left + width * 0.9, y)
    assert page.evaluate(TIP).startswith("3.00 GB allocated at 40.0 ms\n")
    assert page.evaluate("location.hash") == ""
    page.click_at(x, y)
    assert page.evaluate("location.hash") == "#finding-1"
    links = "[...document.querySelectorAll('.chart-memory p a')].map(a => a.hash)"
    assert page.evaluate(links) == ["#finding-1"], "no finding is about the second"
    assert page.evaluate("document.querySelector('#finding-1') !== null")


def test_keys_reach_the_peak_of_memory_and_its_finding(show: Show) -> None:
    page = show(page_samples.everything())
    choose(page, ".chart-memory .u-over")
    for _ in range(2):
        page.press("ArrowRight")
    page.press("Enter")
    assert page.evaluate("location.hash") == ""
    page.press("ArrowRight")
    assert ", the peak" in page.evaluate(TIP)
    page.press("Enter")
    assert page.evaluate("location.hash") == "#finding-1"


def test_memory_without_times_counts_events(show: Show) -> None:
    page = show(page_samples.everything())
    page.show(".chart-memory")
    page.evaluate("document.querySelectorAll('.chart-memory .u-over')[1].focus({preventScroll: true})")
    page.press("ArrowRight")
    page.press("ArrowRight")
    assert page.evaluate(TIP).startswith("5.00 GB allocated at event 4\n")


def test_every_chart_has_a_table_for_those_who_do_not_see_it(show: Show) -> None:
    page = show(page_samples.everything())
    for name in CHARTS[1:]:
        page.show(f".chart-{name}")
        page.click(f".chart-{name} .alternative summary")
        page.frames()
        assert page.evaluate(f"document.querySelectorAll('.chart-{name} .alternative tbody tr').length") >= 2


# --- the keyboard and paper -------------------------------------------------------------------------------------------


def test_tab_reaches_everything_and_shows_where_one_is(show: Show) -> None:
    page = show(page_samples.everything())
    for name in CHARTS:
        page.show(f"[data-chart={name}]")
    page.evaluate("scrollTo(0, 0); document.body.tabIndex = -1; document.body.focus()")
    names = []
    for _ in range(90):
        page.press("Tab")
        if page.evaluate("document.activeElement === document.body"):
            break  # behind the last one
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", focused(page)
        names.append(focused(page))
    for wanted in (
        *("Skip to the findings", "Dark colours", "How measured", "Copy", "Evidence", "Timeline of", "Flame graph"),
        *("Places", "Treemap of", "Roofline of", "Lengths of", "Copy as TSV"),
    ):
        assert any(name.startswith(wanted) for name in names), wanted


def test_what_one_hears_has_names(show: Show) -> None:
    page = show(page_samples.everything())
    for name in CHARTS:
        page.show(f"[data-chart={name}]")
    nodes = page.send("Accessibility.getFullAXTree")["nodes"]
    roles = {"button", "link", "searchbox", "application", "table", "image", "region"}
    nameless = [
        node["role"]["value"]
        for node in nodes
        if not node["ignored"] and node["role"]["value"] in roles - {"table"} and not node.get("name", {}).get("value")
    ]
    assert nameless == []


def test_the_page_prints(show: Show) -> None:
    page = show(page_samples.everything(), dark=True)
    pdf = page.print_pdf()
    assert pdf.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 14
    assert page.evaluate("document.querySelectorAll('[data-chart][data-started]').length") == len(CHARTS), (
        "paper cannot scroll"
    )
    assert page.evaluate("document.querySelectorAll('details[data-opened]').length") == 0
