"""The figures of a run: one definition each, which holds every point and names no colour, for both themes."""

import dataclasses
import json
import math
import re

import pytest

from lengthen.reporting.figures import figures
from lengthen.reporting.palette import DARK, LIGHT, shape
from lengthen.reporting.points import LOSS_POINTS
from tests.reporting.drawing import drawn
from tests.reporting.example_results import (
    EDGES,
    HEADS,
    LAYERS,
    SEVERITY,
    check,
    comparison,
    demonstration,
    diagnosis,
    evaluation,
    findings,
    rivals,
    study,
    training,
)

ARMS, BUCKETS, CUTS, FAILING = len(SEVERITY), len(EDGES) - 1, 7, 3


def held(spec):
    """How many rows a figure's data has."""
    return len(spec["data"]["values"])


def test_every_figure_of_a_demonstration_has_its_points():
    made = {figure.name: figure for figure in figures(findings(demonstration()))}
    assert made["certificate"].points == ARMS * BUCKETS, "four arms after, before and control"
    assert made["loss-by-position"].points == ARMS * BUCKETS
    assert held(made["loss-by-position"].spec) == (ARMS + 2) * BUCKETS, "six arms and two reset baselines"
    assert made["remembrance"].points == held(made["remembrance"].spec) == ARMS * (6 + 7)
    assert made["state-drift"].points == CUTS * LAYERS and held(made["state-drift"].spec) == ARMS * CUTS * LAYERS
    assert len(made["state-drift"].rows) == ARMS * CUTS * LAYERS * (1 + HEADS)
    assert made["state-statistics"].points == held(made["state-statistics"].spec) == ARMS * CUTS
    assert len(made["state-statistics"].rows) == ARMS * CUTS * 3 * (1 + LAYERS + LAYERS * HEADS)
    assert made["forgetting"].points == ARMS * LAYERS * (HEADS - 1)
    assert made["patching"].points == LAYERS + HEADS and len(made["patching"].rows) == FAILING * (LAYERS + HEADS)
    assert made["training-loss"].points == ARMS * LOSS_POINTS
    assert [e.label for e in made["loss-by-position"].entries if e.dashed] == ["before, reset", "control, reset"]


def test_each_kind_alone_gives_its_figures():
    assert [f.name for f in figures(findings(training()))] == ["training-loss"]
    assert figures(findings(check())) == []
    bare = dataclasses.replace(diagnosis(), remembrance=None, drift=None, patching=None)
    assert [f.name for f in figures(findings(bare))] == ["loss-by-position", "state-statistics"]


def test_what_is_not_finite_is_left_out_and_said():
    buckets = [
        dataclasses.replace(b, loss=math.nan, stderr=math.nan, excess=math.nan) if b.start >= 1024 else b
        for b in diagnosis().buckets
    ]
    states = [dataclasses.replace(s, std=math.nan) if s.position == 4096 else s for s in diagnosis().states]
    broken = dataclasses.replace(diagnosis(), buckets=buckets, states=states, far=math.nan)
    lost = dataclasses.replace(training(), losses=[1.0] * 400 + [math.nan] * 100)
    made = {figure.name: figure for figure in figures(findings(broken, lost))}
    assert made["loss-by-position"].points == BUCKETS - 4 and "not finite: 4." in made["loss-by-position"].caption
    assert made["state-statistics"].points == CUTS - 1 and made["training-loss"].points == 40
    for figure in made.values():
        json.dumps(figure.spec, allow_nan=False)


@pytest.fixture(scope="module")
def every_figure():
    return figures(findings(comparison(), training(), evaluation(), rivals(), study()))


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda t: t.name)
def test_every_point_is_drawn_in_its_series_colour_and_shape(every_figure, theme):
    """A figure that lets its reader choose draws the first of each choice on the page."""
    assert len(every_figure) == 13
    for figure in every_figure:
        first = {choice.name: choice.options[0][0] for choice in figure.choices}
        rows = [r for r in figure.rows if all(r[name] == value for name, value in first.items())]
        chosen = dataclasses.replace(figure, spec=figure.spec | {"data": {"values": rows}}) if first else figure
        marks = drawn(chosen, theme)[figure.mark, "mark"]
        assert len(marks) == figure.points > 0, figure.name
        if figure.mark == "rect":
            assert {mark["fill"] for mark in marks if "fill" in mark} <= set(theme.ramp), figure.name
            continue
        looks = {(mark["fill"], mark["shape"]) for mark in marks}
        if figure.name == "training-loss":  # its points are there to be hovered, unseen
            looks = {(fill, shape(theme.colours.index(fill))) for fill, _ in looks}
        assert looks <= {(theme.colour(i), shape(i)) for i in range(figure.series)}, figure.name
        if figure.entries:
            assert looks == {(theme.colour(e.index), shape(e.index)) for e in figure.entries if not e.dashed}


def test_no_definition_names_a_colour(every_figure):
    for figure in every_figure:
        assert not re.search(r"#[0-9a-fA-F]{6}\b", json.dumps(figure.spec)), figure.name
        assert "config" not in figure.spec, "the look comes with the theme"


def test_figures_have_names_of_their_own(every_figure):
    assert len({f.name for f in every_figure}) == len({f.title for f in every_figure}) == len(every_figure)
