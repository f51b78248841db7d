"""The page in a real browser: no complaint, every chart with all its points at two widths, and switches that work."""

import dataclasses
import json
import os

import pytest

from lengthen.reporting import write_report
from lengthen.reporting.figures import figures
from lengthen.reporting.run_folder import read_run
from tests.reporting.chromium import Browser, chromium
from tests.reporting.example_results import HEADS, HOSTILE, demonstration, diagnosis, evaluation

# Where a browser has been asked for (as .ci/run does), its absence is a failure.
pytestmark = pytest.mark.skipif(
    chromium() is None and not os.environ.get("REQUIRE_CHROMIUM"),
    reason="no Chromium found: the page was not opened in a browser",
)

# Vega draws each point, and each cell, as a path of a mark; a point of the loss curves is drawn unseen, to be hovered.
MARKS = "document.querySelectorAll('#figure-{} .mark-{}.role-mark path').length"
SHOWN = "document.querySelectorAll('.chart svg').length"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    demonstration().save(folder / "results" / "demonstration.json")
    diagnosis(HOSTILE).save(folder / "results" / "a.json")
    write_report(folder)
    return folder


@pytest.fixture(scope="module")
def browser():
    assert chromium() is not None, "REQUIRE_CHROMIUM is set, but there is no Chromium"
    with Browser(chromium()) as opened:
        yield opened


def drawn(browser, run):
    """Figure -> how many marks are drawn, and how many should be."""
    made = figures(read_run(run))
    return {f.name: (browser.evaluate(MARKS.format(f.name, f.mark)), f.points) for f in made}


def select(browser, figure, choice, value):
    """Chooses as a reader would."""
    browser.evaluate(
        f"(() => {{ const s = document.querySelector('#figure-{figure} select[data-choice={choice}]');"
        f" s.value = {json.dumps(value)}; s.dispatchEvent(new Event('change')); }})()"
    )


def labels(browser, figure):
    """What stands at a figure's vertical axis."""
    return browser.evaluate(
        f"[...document.querySelectorAll('#figure-{figure} .role-axis-label')].at(-1)"
        ".querySelectorAll('text').values().map(t => t.textContent).toArray()"
    )


@pytest.mark.parametrize("width", [1280, 400])
def test_heat_maps_of_tasks_tell_their_cells(browser, tmp_path, width):
    """All cells drawn with their percents readable in them, in both themes; a value told on hover; the table reached."""
    evaluation().save(tmp_path / "results" / "evaluation.json")
    write_report(tmp_path)
    for dark in (False, True):
        browser.open(tmp_path / "report.html", width, dark=dark)
        assert drawn(browser, tmp_path) == {"tasks": (12, 12), "task-depths": (18, 18)}
        percents = "[...document.querySelectorAll('#figure-tasks .role-mark.mark-text text')].map(t => t.textContent)"
        assert sorted(browser.evaluate(percents)) == sorted(["95", "82", "4", *["50"] * 3, "100", "86", "4", "90"])
        assert browser.evaluate("document.documentElement.scrollWidth") == width
        legend = "document.querySelector('#figure-tasks .role-legend').getBoundingClientRect().right"
        frame = "document.querySelector('#figure-tasks .chart').getBoundingClientRect().right"
        assert browser.evaluate(f"{legend} <= {frame}")
        narrow = (
            "[...document.querySelectorAll('#figure-{} .role-mark.mark-text text')].every(t => t.getBoundingClientRect().width"
            " < document.querySelector('#figure-{} .mark-rect path').getBoundingClientRect().width)"
        )
        assert all(browser.evaluate(narrow.format(name, name)) for name in ("tasks", "task-depths"))
    place = browser.evaluate(
        "(() => { const p = document.querySelector('#figure-task-depths .mark-rect.role-mark path');"
        " p.scrollIntoView({block: 'center'}); const b = p.getBoundingClientRect();"
        " return {x: b.x + 3, y: b.y + b.height / 2}; })()"
    )
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", **place)
    browser.wait("document.querySelector('#vg-tooltip-element.visible') !== null")
    told = browser.evaluate("document.querySelector('#vg-tooltip-element').textContent")
    assert "100 %" in told and "90 to 100 %" in told and "50" in told and "passkey" in told
    reached = (
        "document.querySelector('#tasks .scroll').tabIndex === 0 && document.querySelectorAll('#tasks tbody tr').length"
    )
    assert browser.evaluate(reached) == 3 + 1 + 3 + 1 + 1 + 1
    assert browser.complaints == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_every_chart_is_drawn_with_all_its_points(browser, run, tmp_path, width, dark):
    browser.open(run / "report.html", width, dark=dark)
    found = drawn(browser, run)
    assert len(found) == 8 and all(marks == points > 0 for marks, points in found.values()), found
    assert browser.evaluate(SHOWN) == len(found)
    assert browser.evaluate("document.documentElement.scrollWidth") == width, "nothing sticks out of the page"
    inside = "[...document.querySelectorAll('.chart')].every(c => c.querySelector('svg').clientWidth <= c.clientWidth)"
    assert browser.evaluate(inside)
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 23, 28)" if dark else "rgb(255, 255, 255)")
    assert browser.evaluate("document.querySelector('.chart').dataset.drawn") == ("dark" if dark else "light")
    browser.screenshot(tmp_path / "page.png")
    picture = (tmp_path / "page.png").read_bytes()
    assert int.from_bytes(picture[16:20], "big") == width and len(picture) > 200_000
    assert browser.complaints == []
    assert all(address.startswith(("file:", "about:", "data:")) for address in browser.requests)


def test_a_curve_switched_off_goes_from_every_chart_and_comes_back(browser, run):
    browser.open(run / "report.html", 1280)
    made = figures(read_run(run))
    box = "document.querySelector('#figure-loss-by-position input[value=\"control\"]')"
    for hidden in (True, False):
        browser.evaluate(f"{box}.click()")
        for figure in made:
            # Five of the six arms and the further diagnosis stay; control's own share of the points goes.
            share = sum(r.get("entry") == "control" for r in rows_of(figure)) if hidden else 0
            browser.wait(f"{MARKS.format(figure.name, figure.mark)} === {figure.points - share}")
        off = "[...document.querySelectorAll('input[value=\"control\"]')].every(b => b.checked === {})"
        assert browser.evaluate(off.format("false" if hidden else "true"))
    assert browser.complaints == []


def rows_of(figure):
    """What a figure draws, wherever in its definition that stands; the dashed baselines have no marks."""
    holders = [figure.spec, *figure.spec.get("layer", [])]
    return next(h["data"]["values"] for h in holders if len(h.get("data", {}).get("values", [])) > 1)


def test_layers_and_heads_are_chosen_on_the_heat_map(browser, run):
    browser.open(run / "report.html", 1280)
    assert labels(browser, "state-drift") == ["layer 0", "layer 1"]
    before = curve(browser)
    click(browser, "#figure-state-drift .mark-rect.role-mark path", -1)  # layer 1 at the last position
    browser.wait(f"{MARKS.format('state-drift', 'rect')} === {7 * HEADS}")
    assert labels(browser, "state-drift") == [f"head {i}" for i in range(HEADS)]
    assert chosen(browser, "layer") == ["layer 1", "layer 1"], "one choice, shown by both figures"
    of_layer = curve(browser)
    click(browser, "#figure-state-drift .mark-rect.role-mark path", -1)
    browser.wait(f"document.querySelector('select[data-choice=head]').value === '{HEADS - 1}'")
    browser.wait(f"{CURVE} !== {json.dumps(of_layer)}")
    assert len({before, of_layer, curve(browser)}) == 3, "the statistic is the head's"
    select(browser, "state-drift", "layer", "all")
    browser.wait(f"{CURVE} === {json.dumps(before)}")
    assert chosen(browser, "head") == ["all"] and browser.complaints == []


def test_a_run_and_a_statistic_are_chosen(browser, run):
    browser.open(run / "report.html", 400)
    bands = "[...document.querySelectorAll('#figure-state-drift .mark-rect.role-mark path')].map(p => p.getAttribute('fill')).join()"
    before = browser.evaluate(bands)
    select(browser, "state-drift", "run", "state passing")
    browser.wait(f"{bands} !== {json.dumps(before)}")
    assert len(set(browser.evaluate(bands).split(","))) == 1, "all within"
    select(browser, "state-statistics", "statistic", "norm")
    title = "[...document.querySelectorAll('#figure-state-statistics .role-axis-title text')].at(-1).textContent"
    browser.wait(f"{title} === 'norm'")
    assert browser.complaints == []


def test_a_choice_without_measurements_says_so(browser, tmp_path):
    other = diagnosis("other", 0)
    other = dataclasses.replace(
        other, drift=dataclasses.replace(other.drift, heads=[h for h in other.drift.heads if ".0." in h.layer])
    )
    for name, found in (("a", diagnosis("one")), ("b", other)):
        found.save(tmp_path / "results" / f"{name}.json")
    browser.open(write_report(tmp_path), 1280)
    select(browser, "state-drift", "layer", "layer 1")
    select(browser, "state-drift", "run", "other")
    browser.wait("document.querySelector('#figure-state-drift .chart').textContent.startsWith('Nothing was measured')")
    select(browser, "state-drift", "layer", "layer 0")
    browser.wait(f"{MARKS.format('state-drift', 'rect')} === {7 * HEADS}")
    assert browser.complaints == []


CURVE = "document.querySelector('#figure-state-statistics .mark-line path').getAttribute('d')"


def curve(browser):
    return browser.evaluate(CURVE)


def chosen(browser, name):
    return browser.evaluate(f"[...document.querySelectorAll('select[data-choice={name}]')].map(s => s.value)")


def click(browser, marks, index):
    place = browser.evaluate(
        f"(() => {{ const p = [...document.querySelectorAll('{marks}')].at({index}); p.scrollIntoView({{block: 'center'}});"
        " const b = p.getBoundingClientRect(); return {x: b.x + b.width / 2, y: b.y + b.height / 2}; })()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        browser.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)


def test_the_scale_is_switched_by_keyboard(browser, run):
    browser.open(run / "report.html", 1280)
    labels = "[...document.querySelectorAll('#figure-loss-by-position .role-axis-label text')].map(t => t.textContent).join()"
    before = browser.evaluate(labels)
    browser.evaluate("document.querySelector('#figure-loss-by-position .scale').focus()")
    for kind in ("keyDown", "keyUp"):
        browser.send(
            "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r"
        )
    browser.wait("document.querySelector('#figure-loss-by-position .scale').getAttribute('aria-pressed') === 'true'")
    browser.wait(f"{labels} !== {before!r}")
    assert browser.complaints == []


def test_a_layer_is_chosen_by_keyboard(browser, run):
    browser.open(run / "report.html", 1280)
    browser.evaluate("document.querySelector('#figure-state-drift select[data-choice=layer]').focus()")
    for kind in ("rawKeyDown", "keyUp"):
        browser.send("Input.dispatchKeyEvent", type=kind, key="ArrowDown", code="ArrowDown", windowsVirtualKeyCode=40)
    browser.wait(f"{MARKS.format('state-drift', 'rect')} === {7 * HEADS}")
    assert chosen(browser, "layer") == ["layer 0", "layer 0"] and browser.complaints == []


def test_a_value_is_told_on_hover_and_names_stay_text(browser, run):
    browser.open(run / "report.html", 1280)
    place = browser.evaluate(
        "(() => { const all = [...document.querySelectorAll('#figure-loss-by-position .mark-symbol.role-mark path')];"
        " const p = all.at(-1); p.scrollIntoView({block: 'center'}); const b = p.getBoundingClientRect();"
        " return {x: b.x + b.width / 2, y: b.y + b.height / 2}; })()"
    )
    browser.send("Input.dispatchMouseEvent", type="mouseMoved", **place)
    browser.wait("document.querySelector('#vg-tooltip-element.visible') !== null")
    told = browser.evaluate("document.querySelector('#vg-tooltip-element').textContent")
    assert HOSTILE in told and "3,072 to 4,096" in told and "109 ± 38" in told
    assert browser.complaints == []


def test_charts_follow_the_width(browser, run):
    browser.open(run / "report.html", 1280)
    wide = "document.querySelector('#figure-{} .chart svg').clientWidth"
    before = browser.evaluate(wide.format("loss-by-position"))
    browser.resize(400)
    browser.wait(f"{wide.format('loss-by-position')} < 400 && {wide.format('state-drift')} < 400")
    assert before > 900 and browser.complaints == []
