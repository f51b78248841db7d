"""What figures share: axes that suit their values, the training context marked, a legend in the colours' order."""

import dataclasses
import math

import altair as alt
import pytest

from lengthen.reporting.charts import WIDTH, Entry, entries_of, facet, figure, left_out, position, suits_logarithm
from lengthen.reporting.figures import figures
from lengthen.reporting.length_figures import loss_by_position_figure
from tests.reporting.drawing import drawn, places, scale, words
from tests.reporting.example_results import diagnosis, findings


def test_a_logarithmic_axis_is_used_only_where_every_value_is_positive():
    states = [dataclasses.replace(s, std=0.0) if s.position == 64 else s for s in diagnosis().states]
    made = {f.name: f for f in figures(findings(dataclasses.replace(diagnosis(), states=states)))}
    assert made["loss-by-position"].logarithmic and not made["state-statistics"].logarithmic


def of(chart):
    return figure("name", "title", "caption", chart, ["a"], entries=[], points=0)


@pytest.mark.parametrize(
    ("least", "most", "ticks"),
    [(0.5, 200, ["3", "6", "12", "24", "48", "96", "192"]), (24, 400, ["24", "48", "96", "192", "384"])],
    ids=["halves of positions are left out", "from the least to the most"],
)
def test_positions_are_marked_at_powers_of_two_times_the_training_context(least, most, ticks):
    rows = [{"position": p, "train_context": 48} for p in (least, 50, most)]
    chart = alt.Chart(alt.Data(values=rows)).mark_point().encode(x=position(rows, most)).properties(width=WIDTH)
    found = drawn(of(chart))
    assert words(found, "axis-label") == ticks
    place = scale([math.log2(r["position"]) for r in rows], places(found["symbol", "mark"], "x"))
    assert place(math.log2(least)) == pytest.approx(0, abs=0.5) and place(math.log2(most)) == pytest.approx(WIDTH)


@pytest.mark.parametrize(
    ("values", "suits"),
    [([1, 3], True), ([1, 2.9], False), ([0, 10], False), ([-1, 10], False), ([1, None, 10], True), ([], False)],
)
def test_a_logarithm_is_for_positive_values_that_are_spread(values, suits):
    assert suits_logarithm([{"v": v} for v in values], "v") == suits


def test_every_training_context_is_marked_once_and_named_together():
    one = diagnosis("one")
    for contexts, named in (((64,), "training context"), ((64, 128), "training contexts")):
        found = findings(*(dataclasses.replace(one, model=f"{t}", train_context=t) for t in contexts))
        marks = drawn(loss_by_position_figure(found))
        middles = [(b.start + b.end) / 2 for b in one.buckets]
        place = scale([math.log2(p) for p in middles], places(marks["symbol", "mark"], "x")[: len(middles)])
        assert places(marks["rule", "mark"], "x") == pytest.approx([place(math.log2(t)) for t in contexts], abs=0.5)
        assert {item["text"] for item in marks["text", "mark"]} == {named}


def test_a_legends_entries_are_the_series_drawn_in_the_order_of_their_colours():
    rows = [{"series": name} for name in ("c", "a", "c")]
    assert entries_of(rows, ["a", "b", "c"]) == [Entry("a", 0, False), Entry("c", 2, False)]


def test_panels_stand_in_the_order_given_and_one_panel_takes_the_whole_width():
    rows = [{"panel": panel, "at": i} for i, panel in enumerate(("late", "early", "late"))]
    chart = alt.Chart().mark_point().encode(x=alt.X("at:Q"))
    several = drawn(of(facet(chart, rows, ["late", "early"], wide=False)))
    assert words(several, "title-text") == ["late", "early"] and len(several["symbol", "mark"]) == 3
    one = drawn(of(facet(chart, rows, ["late"], wide=True)))
    assert words(one, "title-text") == [] and one["group", "frame"][0]["width"] == WIDTH


def test_what_is_left_out_is_counted():
    rows = [{"v": 1.0}, {"v": None}, {"v": None}]
    assert left_out(rows, "v").endswith("not finite: 2.") and left_out(rows[:1], "v") == ""
