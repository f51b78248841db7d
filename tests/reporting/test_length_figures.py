"""How far models generalise, as drawn: every loss, remembrance and difference at its place, on the scale it names."""

import dataclasses
import math
from itertools import pairwise

import numpy as np
import pytest

from lengthen.reporting.length_figures import certificate_figure, loss_by_position_figure, remembrance_figure
from lengthen.reporting.palette import LIGHT
from tests.reporting.drawing import drawn, places, scale, words
from tests.reporting.example_results import EDGES, certificate, check, comparison, demonstration, diagnosis, findings

MIDDLES = [(start + end) / 2 for start, end in pairwise(EDGES)]


def test_losses_are_drawn_as_perplexity_by_position_both_logarithmic():
    figure = loss_by_position_figure(findings(diagnosis("m")))
    found = drawn(figure)
    points = found["symbol", "mark"]
    assert len(points) == figure.points == len(MIDDLES)
    across = scale(np.log2(MIDDLES), places(points, "x"))
    up = scale([b.loss for b in diagnosis().buckets], places(points, "y"))
    assert across.c[0] > 0 > up.c[0], "to the right, and upwards"
    band = found["area", "mark"]
    assert places(band, "y") == pytest.approx(up([b.low for b in diagnosis().buckets]))
    assert places(band, "y2") == pytest.approx(up([b.high for b in diagnosis().buckets]))
    assert figure.title == "Perplexity by position" and words(found, "axis-title") == ["position", "perplexity"]
    assert figure.logarithmic and "over 16 sequences" in figure.caption


def test_reset_baselines_are_dashed_curves_without_points():
    found = drawn(loss_by_position_figure(findings(diagnosis("m"))))
    dashed = [item for item in found["line", "mark"] if item["strokeDash"] != [1, 0]]
    assert len(dashed) == len(MIDDLES) and len(found["line", "mark"]) == 2 * len(MIDDLES)
    up = scale([b.loss for b in diagnosis().buckets], places(found["symbol", "mark"], "y"))
    assert places(dashed, "y") == pytest.approx(up([b.own_reset_loss for b in diagnosis().buckets]), abs=0.5)
    assert {item["stroke"] for item in found["line", "mark"]} == {LIGHT.colour(0)}, "one model's, in one colour"


def test_arms_share_their_text_and_have_two_baselines():
    figure = loss_by_position_figure(findings(demonstration()))
    assert [e.label for e in figure.entries if e.dashed] == ["before, reset", "control, reset"]
    assert "All arms read the same sequences" in figure.caption
    few = loss_by_position_figure(findings(diagnosis("a", n=16), diagnosis("b", n=32)))
    assert "over at least 16 sequences" in few.caption and "same sequences" not in few.caption


def test_remembrance_is_drawn_from_none_by_tokens_kept_a_panel_an_end():
    points = [dataclasses.replace(p, mean=0.5 + p.mean / 2) for p in diagnosis().remembrance.points]
    lasting = dataclasses.replace(diagnosis(), remembrance=dataclasses.replace(diagnosis().remembrance, points=points))
    figure = remembrance_figure(findings(lasting))
    found = drawn(figure)
    assert words(found, "title-text") == ["1,024 tokens", "4,096 tokens"]
    assert figure.title == "What still counts of the past" and figure.points == len(points)
    marks = iter(found["symbol", "mark"])
    for end in (1024, 4096):
        of_end = [p for p in points if p.end == end]
        at = [next(marks) for _ in of_end]
        scale([math.log2(p.end - p.start) for p in of_end], places(at, "x"))
        up = scale([p.mean for p in of_end], places(at, "y"))
        assert up(0) == pytest.approx(200), "the panel's lower edge"


def test_one_end_has_the_whole_figure():
    kept = [p for p in diagnosis().remembrance.points if p.end == 4096]
    one = dataclasses.replace(diagnosis(), remembrance=dataclasses.replace(diagnosis().remembrance, points=kept))
    figure = remembrance_figure(findings(one))
    assert figure.title == "What still counts after 4,096 tokens" and words(drawn(figure), "title-text") == []


def test_certified_runs_are_drawn_as_ratios_with_a_line_at_no_difference():
    found = findings(comparison())
    figure = certificate_figure(found)
    shown = drawn(figure)
    before = [d for d in certificate(control=None).curves if d.of == "before"]
    points = [p for p in shown["symbol", "mark"] if p["fill"] == LIGHT.colour(0)]
    assert figure.points == len(shown["symbol", "mark"]) == 2 * len(points) == 2 * len(MIDDLES)
    up = scale([math.log(1 + d.change) for d in before], places(points, "y"))
    scale(np.log2(MIDDLES), places(points, "x"))
    level, upright = shown["rule", "mark"]
    assert level["y"] == pytest.approx(up(0), abs=0.5) and upright.get("y", 0) != level["y"]
    assert words(shown, "axis-title") == ["position", "perplexity / reset baseline's"]
    assert [e.label for e in figure.entries] == ["before", "state_passing"]


def test_what_was_not_judged_has_no_figure():
    nothing = findings(check())
    bare = findings(dataclasses.replace(diagnosis(), remembrance=None))
    assert [make(nothing) for make in (loss_by_position_figure, remembrance_figure, certificate_figure)] == [None] * 3
    assert [make(bare) for make in (remembrance_figure, certificate_figure)] == [None] * 2
