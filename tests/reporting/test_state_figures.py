"""The recurrent state as drawn: drift in steps of the limit, statistics and memory by logarithm, shares with errors."""

import dataclasses
import math

import numpy as np
import pytest

from lengthen.reporting.palette import LIGHT
from lengthen.reporting.state_figures import (
    CROWD,
    drift_figure,
    forgetting_figure,
    patching_figure,
    statistics_figure,
)
from lengthen.reporting.state_points import BANDS, BEYOND, drift_points
from tests.reporting.drawing import drawn, places, scale, words
from tests.reporting.example_results import HEADS, LAYERS, T, diagnosis, findings

CUTS = [T << k for k in range(7)]


def test_drift_is_a_cell_a_layer_and_position_in_the_colour_of_its_step():
    found = findings(diagnosis("bad"), diagnosis("good", 0))
    figure = drift_figure(found)
    shown = drawn(figure)
    cells, rows = shown["rect", "mark"], [r for r in drift_points(found) if r["layer"] == "all"]
    assert len(cells) == len(rows) == 2 * LAYERS * len(CUTS) and figure.points == LAYERS * len(CUTS)
    bands = [*(name for _, name in BANDS), BEYOND]
    assert words(shown, "legend-label") == bands and words(shown, "title-text") == ["bad", "good"]
    told = {(r["run"], r["row"], r["position"]): LIGHT.ramp[bands.index(r["band"])] for r in rows}
    across = {at: i for i, at in enumerate(sorted(set(places(cells, "x"))))}
    down = {at: i for i, at in enumerate(sorted(set(places(cells, "y"))))}
    for run, of_run in (("bad", cells[: len(cells) // 2]), ("good", cells[len(cells) // 2 :])):
        for cell in of_run:
            key = run, f"layer {down[cell.get('y', 0)]}", CUTS[across[cell.get("x", 0)]]
            assert cell["fill"] == told.pop(key), key
    assert told == {} and len({cell["fill"] for cell in cells}) > 3
    assert "exceed by chance 1 % of the time" in figure.caption


def test_a_reader_chooses_a_run_then_a_layer_and_of_the_statistics_a_head():
    found = findings(diagnosis("bad"), diagnosis("good", 0))
    choices = {c.name: [value for value, _ in c.options] for c in drift_figure(found).choices}
    assert choices == {"run": ["bad", "good"], "layer": ["all", "layer 0", "layer 1"]}
    choices = {c.name: [value for value, _ in c.options] for c in statistics_figure(found).choices}
    assert choices["statistic"] == ["std", "norm", "largest"] and choices["layer"] == ["all", "layer 0", "layer 1"]
    assert choices["head"] == ["all", *map(str, range(HEADS))]
    for figure in (drift_figure(found), statistics_figure(found)):
        for choice in figure.choices:
            assert {value for value, _ in choice.options} >= {row[choice.name] for row in figure.rows}


def test_a_statistic_is_the_mean_over_heads_by_position_both_logarithmic():
    figure = statistics_figure(findings(diagnosis("m")))
    shown = drawn(figure)
    points = shown["symbol", "mark"]
    assert len(points) == figure.points == len(CUTS)
    means = [np.mean([s.std for s in diagnosis().states if s.position == cut]) for cut in CUTS]
    scale(np.log2(CUTS), places(points, "x"))
    assert scale(np.log(means), places(points, "y")).c[0] < 0
    assert words(shown, "axis-title") == ["position", "standard deviation"]


def test_a_zero_that_may_be_chosen_keeps_the_axis_linear():
    """The page draws every choice on one kind of axis."""
    states = [dataclasses.replace(s, norm=0.0) if s.position == T else s for s in diagnosis().states]
    figure = statistics_figure(findings(dataclasses.replace(diagnosis(), states=states)))
    means = [np.mean([s.std for s in diagnosis().states if s.position == cut]) for cut in CUTS]
    assert not figure.logarithmic and scale(means, places(drawn(figure)["symbol", "mark"], "y")).c[0] < 0


def test_memory_is_drawn_against_the_training_context():
    figure = forgetting_figure(findings(diagnosis("m")))
    shown, heads = drawn(figure), [f for f in diagnosis().drift.forgetting if f.tokens is not None]
    points = shown["symbol", "mark"]
    assert len(points) == figure.points == len(heads) == LAYERS * (HEADS - 1)
    across = scale([math.log(f.tokens) for f in heads], places(points, "x"))
    (rule,) = shown["rule", "mark"]
    assert rule["x"] == pytest.approx(across(math.log(T)), abs=0.5)
    assert words(shown, "axis-label")[-LAYERS:] == ["layer 0", "layer 1"]
    upper, lower = (points[0]["y"], points[-1]["y"])
    assert upper < lower and {p["size"] for p in points} == {120}


def test_a_crowd_of_heads_is_drawn_small():
    layers = CROWD // (HEADS - 1) + 1
    figure = forgetting_figure(findings(diagnosis("m", layers=layers)))
    assert {p["size"] for p in drawn(figure)["symbol", "mark"]} == {24} and figure.points > CROWD


def test_shares_are_drawn_in_the_order_of_the_patches_with_two_standard_errors():
    figure = patching_figure(findings(diagnosis("bad"), diagnosis("good", 0)))
    shown, patches = drawn(figure), diagnosis().patching.patches
    points, rules = shown["symbol", "mark"], shown["rule", "mark"]
    assert len(points) == len(rules) == figure.points == len(patches) == LAYERS + HEADS
    across = scale([p.share for p in patches], places(points, "x"))
    assert places(points, "y") == sorted(places(points, "y")), "from the top"
    assert places(rules, "x") == pytest.approx([across(p.share - 2 * p.stderr) for p in patches], abs=0.5)
    assert places(rules, "x2") == pytest.approx([across(p.share + 2 * p.stderr) for p in patches], abs=0.5)
    assert words(shown, "title-text") == ["bad"], "a run that does not fail has no patching"
    assert words(shown, "axis-label")[-LAYERS - HEADS :][:2] == ["layer 0", "layer 1"]
    assert "at position 1,024;" in figure.caption


def test_what_was_not_measured_has_no_figure():
    bare = findings(dataclasses.replace(diagnosis(), states=[], drift=None, patching=None))
    makers = (drift_figure, statistics_figure, forgetting_figure, patching_figure)
    assert [make(bare) for make in makers] == [None] * 4
