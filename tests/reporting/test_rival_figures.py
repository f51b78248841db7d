"""Quality against data as drawn: far losses over the yardstick, by the tokens read for them, none of them lost."""

import dataclasses
import math

import pytest

from lengthen.reporting.palette import LIGHT
from lengthen.reporting.rival_figures import rival_points, rivals_figure
from tests.reporting.drawing import drawn, places, scale, words
from tests.reporting.example_results import diagnosis, findings, rival_study, rivals


def test_a_rival_of_one_run_is_its_ratio_with_its_interval():
    rows = rival_points(findings(rivals("stock")))
    assert [r["name"] for r in rows] == ["untouched", "soft reset", "state passing + hard reset, chosen"]
    assert {r["panel"] for r in rows} == {"stock"} and [r["tokens"] for r in rows] == [0, 4096, 1 << 20]
    assert [rows[0][k] for k in ("value", "low", "high")] == pytest.approx([4.0, 3.95, 4.05])
    assert rows[0]["told"] == "+300.0 %" and rows[0]["band"] == "+295.0 % to +305.0 %"


def test_over_seeds_a_rival_is_the_geometric_mean_with_the_least_and_the_greatest():
    rows = [r for r in rival_points(findings(rival_study())) if r["name"] == "untouched"]
    assert [r["panel"] for r in rows] == ["slow", "mild"]
    assert [rows[0][k] for k in ("value", "low", "high")] == pytest.approx([8.0, 4.0, 16.0])
    assert rows[0]["band"] == "4.000 to 16.0 over seeds" and rows[1]["value"] == pytest.approx(2.0)


def test_a_rival_without_a_ratio_is_left_out_and_counted():
    one, *others = rivals().rivals
    endless = dataclasses.replace(one, over_reset=dataclasses.replace(one.over_reset, change=math.inf, change_low=None))
    none = dataclasses.replace(one, over_reset=dataclasses.replace(one.over_reset, change=-1.0, change_low=None))
    bare = dataclasses.replace(one, over_reset=None)
    for lost in (endless, none, bare):
        figure = rivals_figure(findings(dataclasses.replace(rivals(), rivals=[lost, *others])))
        assert figure.points == 2 == len(drawn(figure)["symbol", "mark"])
        assert "not finite: 1." in figure.caption


def test_rivals_are_drawn_by_tokens_from_none_on_and_by_logarithm_of_the_ratio():
    figure = rivals_figure(findings(rivals("stock")))
    shown = drawn(figure)
    points, rules = shown["symbol", "mark"], shown["rule", "mark"]
    assert len(points) == figure.points == 3 and figure.logarithmic
    up = scale([math.log(v) for v in (4.0, 2.0, 1.0)], places(points, "y"))
    assert up.c[0] < 0
    assert places(rules, "y") == pytest.approx([up(math.log(v - 0.05)) for v in (4.0, 2.0, 1.0)], abs=0.5)
    assert places(rules, "y2") == pytest.approx([up(math.log(v + 0.05)) for v in (4.0, 2.0, 1.0)], abs=0.5)
    assert points[0].get("x", 0) == 0 and places(points, "x") == sorted(places(points, "x"))
    assert words(shown, "axis-label")[:2] == ["0", "1,000"] and words(shown, "axis-label")[4] == "1,000,000"
    assert [p["fill"] for p in points] == [LIGHT.colour(i) for i in (0, 0, 1)], "a colour a model"
    assert [e.label for e in figure.entries] == ["as given", "state passing"]


def test_every_table_and_base_has_a_panel():
    figure = rivals_figure(findings(rivals("stock"), rival_study()))
    assert words(drawn(figure), "title-text") == ["stock", "slow", "mild"] and figure.points == 9
    assert rivals_figure(findings(diagnosis())) is None
