"""The page's legend: a checkbox a curve, in the curve's colour, dash and mark."""

from lengthen.reporting.charts import Entry, Figure
from lengthen.reporting.legend import legend, swatch
from lengthen.reporting.palette import DASH, shape
from tests.reporting.example_results import HOSTILE
from tests.reporting.outline import Outline

ENTRIES = [Entry("before", 0, False), Entry(HOSTILE, 8, False), Entry("before, reset", 0, True)]


def of(entries):
    return Figure("name", "Loss", "caption", {}, 9, entries, 0)


def test_every_curve_has_a_checked_box_named_after_it():
    outline = Outline(legend(of(ENTRIES)))
    assert outline.values("value", "input") == outline.texts["span"] == [e.label for e in ENTRIES]
    assert outline.values("type") == ["checkbox"] * 3 and len(outline.values("checked")) == 3
    assert outline.values("class", "svg") == ["swatch s0", "swatch s8", "swatch s0"]
    assert outline.texts["legend"] == ["Curves shown in: Loss"]


def test_one_curve_alone_is_not_switched():
    assert legend(of(ENTRIES[:1])) == legend(of([])) == ""


def test_a_solid_curve_has_its_points_mark_and_a_baseline_its_dash():
    solid, dashed = (Outline(swatch(Entry("a", 8, is_reset))) for is_reset in (False, True))
    assert solid.values("d")[1:] == [shape(8)] and solid.values("stroke-dasharray") == []
    assert len(dashed.values("d")) == 1 and dashed.values("stroke-dasharray") == [" ".join(map(str, DASH))]
