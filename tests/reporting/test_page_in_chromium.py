"""The page in a real browser: no complaint, every chart with all its points at two widths, and switches that work."""

import pytest
from chromium import Browser, chromium
from example_results import HOSTILE, demonstration, diagnosis

from lengthen.reporting import write_report
from lengthen.reporting.figures import figures
from lengthen.reporting.run_folder import read_run

pytestmark = pytest.mark.skipif(chromium() is None, reason="no Chromium found: the page was not opened in a browser")

# Vega draws each point as a path of a symbol mark; a point of the loss curves is drawn unseen, to be hovered.
POINTS = "document.querySelectorAll('#figure-{} .mark-symbol.role-mark path').length"
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
    with Browser(chromium()) as opened:
        yield opened


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_every_chart_is_drawn_with_all_its_points(browser, run, width, dark):
    browser.open(run / "report.html", width, dark=dark)
    expected = {figure.name: figure.points for figure in figures(read_run(run))}
    assert {name: browser.evaluate(POINTS.format(name)) for name in expected} == expected
    assert browser.evaluate(SHOWN) == len(expected)
    assert browser.evaluate("document.documentElement.scrollWidth") == width, "nothing sticks out of the page"
    inside = "[...document.querySelectorAll('.chart')].every(c => c.querySelector('svg').clientWidth <= c.clientWidth)"
    assert browser.evaluate(inside)
    ground = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 23, 28)" if dark else "rgb(255, 255, 255)")
    assert browser.evaluate("document.querySelector('.chart').dataset.drawn") == ("dark" if dark else "light")
    assert browser.complaints == []
    assert all(address.startswith(("file:", "about:", "data:")) for address in browser.requests)


def test_a_curve_switched_off_goes_from_every_chart_and_comes_back(browser, run):
    browser.open(run / "report.html", 1280)
    expected = {figure.name: figure.points for figure in figures(read_run(run))}
    box = "document.querySelector('#figure-perplexity input[value=\"control\"]')"
    for hidden in (True, False):
        browser.evaluate(f"{box}.click()")
        for name, points in expected.items():
            # Five of the six arms and the further diagnosis stay; control's own share of the points goes.
            share = sum(r["entry"] == "control" for r in rows(run, name)) if hidden else 0
            browser.wait(f"{POINTS.format(name)} === {points - share}")
        off = "[...document.querySelectorAll('input[value=\"control\"]')].every(b => b.checked === {})"
        assert browser.evaluate(off.format("false" if hidden else "true"))
    assert browser.complaints == []


def rows(run, name):
    figure = next(f for f in figures(read_run(run)) if f.name == name)
    return figure.spec["data"]["values"]


def test_the_scale_is_switched_by_keyboard(browser, run):
    browser.open(run / "report.html", 1280)
    labels = "[...document.querySelectorAll('#figure-perplexity .role-axis-label text')].map(t => t.textContent).join()"
    before = browser.evaluate(labels)
    browser.evaluate("document.querySelector('#figure-perplexity .scale').focus()")
    for kind in ("keyDown", "keyUp"):
        browser.send(
            "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, text="\r"
        )
    browser.wait("document.querySelector('#figure-perplexity .scale').getAttribute('aria-pressed') === 'true'")
    browser.wait(f"{labels} !== {before!r}")
    assert browser.complaints == []


def test_a_value_is_told_on_hover_and_names_stay_text(browser, run):
    browser.open(run / "report.html", 1280)
    place = browser.evaluate(
        "(() => { const all = [...document.querySelectorAll('#figure-perplexity .mark-symbol.role-mark path')];"
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
    before = browser.evaluate(wide.format("perplexity"))
    browser.resize(400)
    browser.wait(f"{wide.format('perplexity')} < 400 && {wide.format('state-spread-layers')} < 400")
    assert before > 900 and browser.complaints == []
