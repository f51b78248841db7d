"""Studies as drawn: every setting once, its mean on a line from the least to the greatest over seeds."""

import math

import pytest

from lengthen.reporting.figures import figures
from lengthen.reporting.palette import LIGHT
from lengthen.reporting.study_figures import LEVEL, study_figure_names, study_figures
from tests.reporting.drawing import drawn, places, scale, words
from tests.reporting.example_results import findings, study

SETTINGS = [("1e-3", "control"), ("1e-3", "state passing"), ("1e-2", "control"), ("1e-2", "state passing")]


def test_the_figures_have_a_point_a_setting_and_say_what_is_left_out():
    in_context, far = figures(findings(study()))
    assert [in_context.name, far.name] == ["rates-in-context", "rates-far"]
    assert (in_context.points, far.points) == (3, 2) and "not finite: 1." in far.caption
    assert far.logarithmic and not in_context.logarithmic
    values = far.spec["data"]["values"]
    assert [(v["across"], v["series"]) for v in values] == [tuple(r.setting) for r in study().rows]
    assert values[0]["low"] < values[0]["value"] < values[0]["high"]
    assert [e.label for e in far.entries] == ["control", "state passing"]


def test_each_study_of_a_folder_has_the_first_colours_for_its_own_series():
    other = study("steps", tuple(("1", label, 54.0) for label in ("100 steps", "500 steps")))
    found = {f.name: (f.series, [(e.label, e.index) for e in f.entries]) for f in figures(findings(study(), other))}
    assert found["rates-far"] == (2, [("control", 0), ("state passing", 1)])
    assert found["steps-far"] == (2, [("100 steps", 0), ("500 steps", 1)])


def test_every_setting_is_drawn_at_its_mean_with_its_range_over_seeds():
    settings = [(rate, arm, far) for far, (rate, arm) in zip((54.0, 6.0, 540.0, 5.4), SETTINGS, strict=True)]
    _, far = study_figures(findings(study(settings=settings)))
    shown = drawn(far)
    points, rules = shown["symbol", "mark"], shown["rule", "mark"]
    assert [p["fill"] for p in points] == [LIGHT.colour(0), LIGHT.colour(1)] * 2
    up = scale([math.log(far / 5.4) for _, _, far in settings], places(points, "y"))
    assert up.c[0] < 0, "upwards"
    for end, factor in (("y", 0.9), ("y2", 1.2)):
        assert places(rules, end) == pytest.approx([up(math.log(factor * f / 5.4)) for *_, f in settings], abs=0.5)
    assert places(points, "x") == sorted({*places(points, "x")}) == places(rules, "x"), (
        "side by side, in the study's order"
    )
    assert words(shown, "axis-label")[:2] == ["1e-3", "1e-2"] and words(shown, "axis-title")[0] == "rate"
    assert far.title == "rates: far, over the control arm's reset baseline"


@pytest.mark.parametrize("length", [LEVEL // 2, LEVEL // 2 + 1])
def test_labels_that_do_not_fit_beside_each_other_are_turned(length):
    settings = [(letter * length, "control", 54.0) for letter in "ab"]
    shown = drawn(study_figures(findings(study(settings=settings)))[0])
    turned = {item.get("angle", 0) for item in shown["text", "axis-label"] if item["text"][0] in "ab"}
    assert turned == ({0} if 2 * length <= LEVEL else {330})


def test_figures_go_by_the_names_that_the_page_looks_for():
    one, other = study("one"), study("other")
    made = study_figures(findings(one, other))
    assert [f.name for f in made] == [*study_figure_names(one), *study_figure_names(other)]
