"""What the figures draw: every result is there once, and nothing that is not finite."""

import dataclasses
import json
import math

import pytest

from lengthen.reporting.figures import figures
from lengthen.reporting.points import (
    LOSS_POINTS,
    certificate_points,
    loss_points,
    position_points,
    remembrance_points,
    short_names,
)
from lengthen.reporting.run_folder import Findings
from lengthen.reporting.state_points import (
    ALL,
    BEYOND,
    band,
    columns,
    drift_points,
    forgetting_points,
    patching_points,
    statistics_points,
)
from lengthen.results import HeadState
from tests.reporting.example_results import (
    EDGES,
    HEADS,
    LAYERS,
    POSITIONS,
    SEVERITY,
    certificate,
    check,
    comparison,
    demonstration,
    diagnosis,
    training,
)

ARMS, BUCKETS, CUTS, FAILING = len(SEVERITY), len(EDGES) - 1, 7, 3


def findings(*results):
    found = Findings()
    for i, result in enumerate(results):
        found.add(result, f"file-{i}")
    return found


def drawn(spec):
    """How many rows a figure's data has."""
    return len(spec["data"]["values"])


def test_every_figure_of_a_demonstration_has_its_points():
    made = {figure.name: figure for figure in figures(findings(demonstration()))}
    assert made["certificate"].points == ARMS * BUCKETS, "four arms after, before and control"
    assert made["loss-by-position"].points == ARMS * BUCKETS
    assert drawn(made["loss-by-position"].spec) == (ARMS + 2) * BUCKETS, "six arms and two reset baselines"
    assert made["remembrance"].points == drawn(made["remembrance"].spec) == ARMS * (6 + 7)
    assert made["state-drift"].points == CUTS * LAYERS and drawn(made["state-drift"].spec) == ARMS * CUTS * LAYERS
    assert len(made["state-drift"].rows) == ARMS * CUTS * LAYERS * (1 + HEADS)
    assert made["state-statistics"].points == drawn(made["state-statistics"].spec) == ARMS * CUTS
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


def test_points_are_the_results():
    rows = position_points(findings(diagnosis()))
    last = diagnosis().buckets[-1]
    carried = next(r for r in rows if r["positions"] == "3,072 to 4,096" and r["kind"] == "state carried")
    assert carried["value"] == pytest.approx(math.exp(last.loss)) and carried["position"] == 3584
    assert [carried["low"], carried["high"]] == pytest.approx([math.exp(last.low), math.exp(last.high)])
    shown = remembrance_points(findings(diagnosis()))
    assert [r["value"] for r in shown] == [p.mean for p in diagnosis().remembrance.points]


def test_losses_that_are_not_cross_entropy_are_told_as_they_are():
    found = findings(dataclasses.replace(diagnosis(), loss="mean squared error"))
    assert position_points(found)[0]["value"] == diagnosis().buckets[0].loss
    assert figures(found)[0].title == "Mean squared error by position"
    mixed = findings(dataclasses.replace(diagnosis("a"), loss="mean squared error"), diagnosis("b"))
    assert position_points(mixed)[-1]["value"] == diagnosis().buckets[-1].own_reset_loss


def test_certificates_are_drawn_against_their_yardstick():
    rows = certificate_points(findings(demonstration()))
    assert {(r["series"], r["against"]) for r in rows} == {
        ("before", "before reset"),
        *((arm, "control reset") for arm in ("control", "random noise", "fitted noise", "state passing", "TBPTT")),
    }
    curves = certificate("random_noise").curves
    last = next(d for d in curves if (d.of, d.against, d.end) == ("after", "control reset", 4096))
    row = next(r for r in rows if (r["series"], r["positions"]) == ("random noise", "3,072 to 4,096"))
    assert [row["value"], row["low"], row["high"]] == [1 + last.change, 1 + last.change_low, 1 + last.change_high]
    alone = certificate_points(findings(comparison()))
    assert {(r["series"], r["against"]) for r in alone} == {
        ("before", "before reset"),
        ("state_passing", "before reset"),
    }


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


def test_loss_points_are_means_over_blocks_that_cover_every_step():
    record = dataclasses.replace(training(steps=103), losses=[float(i) for i in range(103)])
    rows = loss_points(findings(record))
    assert [r["steps"] for r in (rows[0], rows[-1])] == ["1 to 3", "103 to 103"]
    assert [rows[0]["loss"], rows[0]["step"], rows[-1]["loss"], rows[-1]["step"]] == [1.0, 2.0, 102.0, 103.0]


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


def test_a_loss_beyond_what_exp_can_hold_does_not_crash():
    huge = [dataclasses.replace(b, loss=900.0) for b in diagnosis().buckets]
    assert position_points(findings(dataclasses.replace(diagnosis(), buckets=huge)))[0]["value"] is None


def test_a_logarithmic_axis_is_used_only_where_every_value_is_positive():
    states = [dataclasses.replace(s, std=0.0) if s.position == 64 else s for s in diagnosis().states]
    made = {f.name: f for f in figures(findings(dataclasses.replace(diagnosis(), states=states)))}
    assert made["loss-by-position"].logarithmic and not made["state-statistics"].logarithmic


def test_layers_are_named_by_what_tells_them_apart():
    mixers = [f"backbone.layers.{i}.mixer" for i in (0, 1, 10)]
    assert list(short_names(mixers).values()) == ["layer 0", "layer 1", "layer 10"]
    assert list(short_names(["a.0.mamba", "a.1.rglru"]).values()) == ["0.mamba", "1.rglru"]
    assert short_names(["only.one"]) == {"only.one": "only.one"}
    assert list(short_names(["a", "a.b"]).values()) == ["a", "b"]


def test_results_of_one_name_keep_apart():
    found = findings(diagnosis("same"), diagnosis("same", 0))
    assert list(found.diagnoses) == ["same", "same (file-1)"]
