"""What the state's figures draw: heads as they were measured, parts by their mean, largest or farthest head."""

import dataclasses
import math

import pytest

from lengthen.reporting.figures import figures
from lengthen.reporting.state_points import (
    ALL,
    BEYOND,
    SHARES,
    band,
    columns,
    drift_points,
    forgetting_points,
    heads_of,
    parts_of,
    patching_points,
    statistics_points,
)
from lengthen.results import HeadState
from tests.reporting.example_results import HEADS, LAYERS, POSITIONS, diagnosis, findings


def test_statistics_of_heads_are_the_results_and_those_of_several_their_mean_or_largest():
    rows = statistics_points(findings(diagnosis()))

    def value(statistic, layer, head, position=POSITIONS[0]):
        keys = ("statistic", "layer", "head", "position")
        (row,) = (r for r in rows if tuple(r[k] for k in keys) == (statistic, layer, head, position))
        return row["value"]

    states = [s for s in diagnosis().states if s.position == POSITIONS[0]]
    assert value("norm", "layer 1", "2") == states[HEADS + 2].norm
    assert value("std", "layer 0", ALL) == pytest.approx(sum(s.std for s in states[:HEADS]) / HEADS)
    assert value("std", ALL, ALL) == pytest.approx(sum(s.std for s in states) / len(states))
    assert value("largest", ALL, ALL) == max(s.largest for s in states)


def test_several_tensors_of_a_layer_are_parts_and_panels_of_their_own():
    more = [HeadState(s.position, s.layer, "other", s.head, 0, 1, 1, 1) for s in diagnosis().states]
    found = findings(dataclasses.replace(diagnosis(), states=diagnosis().states + more))
    rows = statistics_points(found)
    assert {r["layer"] for r in rows} == {ALL, *(f"layer {i}: {t}" for i in (0, 1) for t in ("ssm", "other"))}
    assert {r["value"] for r in rows if r["layer"] == ALL and r["panel"] == "other"} == {1}


def test_a_layers_cell_is_its_farthest_head():
    rows = drift_points(findings(diagnosis()))
    of_layer = [r for r in rows if (r["layer"], r["row"]) == (ALL, "layer 0")]
    assert [r["position"] for r in of_layer] == [64 << k for k in range(7)]
    assert {r["head"] for r in of_layer[1:]} == {str(HEADS - 1)}
    assert of_layer[0]["band"] == "within" and of_layer[-1]["band"] == BEYOND
    own = {r["row"]: r["band"] for r in rows if (r["layer"], r["position"]) == ("layer 0", 4096)}
    assert list(own) == [f"head {i}" for i in range(HEADS)] and own["head 3"] == of_layer[-1]["band"]
    assert [band(times) for times in (1, 1.01, 256, 257, math.inf)] == [
        "within",
        "up to 4 ×",
        "up to 256 ×",
        BEYOND,
        BEYOND,
    ]


def test_heads_that_never_forget_are_counted_and_not_drawn():
    assert len(forgetting_points(findings(diagnosis()))) == LAYERS * (HEADS - 1)
    made = {f.name: f for f in figures(findings(diagnosis()))}
    assert f" {LAYERS} heads do not decay" in made["forgetting"].caption


def test_patches_are_ranked_layers_then_heads():
    rows = patching_points(findings(diagnosis()))
    assert [r["row"] for r in rows] == ["layer 0", "layer 1", *(f"layer 0, head {i}" for i in (3, 2, 1, 0))]
    assert rows[0]["value"] == 0.9 and (rows[0]["low"], rows[0]["high"]) == pytest.approx((0.84, 0.96))
    shareless = [dataclasses.replace(p, share=math.nan) for p in diagnosis().patching.patches]
    patching = dataclasses.replace(diagnosis().patching, patches=shareless)
    assert patching_points(findings(dataclasses.replace(diagnosis(), patching=patching))) == []


def test_columns_hold_the_rows():
    rows = [{"name": f"run {i % 3}", "value": i / 7, "none": None} for i in range(20)]
    found = columns(rows)
    assert found["fields"]["name"] == {"values": ["run 0", "run 1", "run 2"], "at": [i % 3 for i in range(20)]}
    assert found["fields"]["value"] == [float(f"{i / 7:.5g}") for i in range(20)] and found["count"] == 20


def test_parts_of_models_beside_each_other_are_named_together():
    """So that a choice of one name is one layer in every model that has it."""
    more = diagnosis("deeper", layers=3)
    found = findings(more, diagnosis("one"))
    assert list(parts_of(found).values()) == ["layer 0", "layer 1", "layer 2"] and heads_of(found) == HEADS
    bare = findings(dataclasses.replace(more, states=[]))
    assert list(parts_of(bare).values()) == ["layer 0", "layer 1", "layer 2"], "those whose drift alone was measured"
    assert parts_of(findings()) == {} and heads_of(findings()) == 0


def test_of_many_layers_and_heads_the_first_are_drawn():
    rows = patching_points(findings(diagnosis(layers=2 * SHARES)))
    assert [r["row"] for r in rows[:SHARES]] == [f"layer {i}" for i in range(SHARES)]
    assert [r["row"] for r in rows[SHARES:]] == [f"layer 0, head {i}" for i in (3, 2, 1, 0)]
