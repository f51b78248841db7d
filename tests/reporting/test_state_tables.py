"""The numbers behind the state's figures: a row a layer or share, a column a position, a dash where nothing is."""

import dataclasses
import math

from lengthen.reporting.numbers import NONE
from lengthen.reporting.state_tables import drift_table, patching_table, remembrance_table
from tests.reporting.example_results import HEADS, LAYERS, diagnosis


def test_what_was_found_about_the_state():
    remembered = remembrance_table(diagnosis("a", 0))
    assert remembered.columns == ["last tokens kept", "of 1,024", "of 4,096"]
    assert [row[0] for row in remembered.rows] == ["1", "4", "16", "64", "256", "1,024"]
    assert remembered.rows[-1][1:] == [NONE, "0.075 ± 0.010"]
    outside = drift_table(diagnosis())
    assert outside.columns[:2] == ["layer", "at 64"] and [row[0] for row in outside.rows] == ["layer 0", "layer 1"]
    assert outside.rows[0][1] == "0 of 4" and outside.rows[0][-1] == "4 of 4"
    patched = patching_table(diagnosis())
    assert patched.rows[0] == ["layer 0", "+90.0 ± 3.0 %"] and patched.rows[2][0] == "layer 0, head 3"
    bare = dataclasses.replace(diagnosis(), remembrance=None, drift=None, patching=None)
    assert [f(bare) for f in (remembrance_table, drift_table, patching_table)] == [None, None, None]


def test_every_head_is_counted_once_at_every_position():
    heads, shown = diagnosis().drift.heads, drift_table(diagnosis())
    counts = [[tuple(map(int, cell.split(" of "))) for cell in row[1:]] for row in shown.rows]
    assert sum(outside for row in counts for outside, _ in row) == sum(h.outside for h in heads) > 0
    assert {of for row in counts for _, of in row} == {HEADS} and len(counts) == LAYERS
    assert "512 training windows" in shown.note and "1 % of the time" in shown.note


def test_a_share_that_is_not_finite_is_a_dash_and_the_excess_stands_in_the_note():
    patching = diagnosis().patching
    lost = dataclasses.replace(patching, patches=[dataclasses.replace(patching.patches[0], share=math.nan)])
    shown = patching_table(dataclasses.replace(diagnosis(), patching=lost))
    assert shown.rows[0][1] == NONE and "excess loss 1.600 ± 0.010 over 16 sequences" in shown.note
