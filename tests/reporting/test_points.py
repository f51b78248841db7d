"""What the figures draw: every result is there once, and nothing that is not finite."""

import dataclasses
import json
import math

import pytest
from example_results import EDGES, HEADS, LAYERS, POSITIONS, SEVERITY, check, demonstration, diagnosis, training

from lengthen.reporting.figures import figures
from lengthen.reporting.points import LOSS_POINTS, loss_points, perplexity_points, short_names, spread_points
from lengthen.reporting.run_folder import Findings

ARMS, BUCKETS, CUTS = len(SEVERITY), len(EDGES) - 1, 7


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
    assert list(made) == ["perplexity", "state-spread", "state-spread-layers", "training-loss"]
    assert made["perplexity"].points == ARMS * BUCKETS
    assert drawn(made["perplexity"].spec) == (ARMS + 2) * BUCKETS, "six arms and two reset baselines"
    assert made["state-spread"].points == drawn(made["state-spread"].spec) == ARMS * CUTS
    assert made["state-spread-layers"].points == ARMS * CUTS * LAYERS
    assert made["training-loss"].points == ARMS * LOSS_POINTS
    assert [e.label for e in made["perplexity"].entries if e.dashed] == ["before, reset", "control, reset"]


def test_each_kind_alone_gives_its_figures():
    assert [f.name for f in figures(findings(training()))] == ["training-loss"]
    assert figures(findings(check())) == []
    assert [f.name for f in figures(findings(diagnosis(layers=1)))] == ["perplexity", "state-spread"]


def test_points_are_the_results():
    rows = perplexity_points(findings(diagnosis()))
    last = diagnosis().buckets[-1]
    carried = next(r for r in rows if r["positions"] == "3,072 to 4,096" and r["kind"] == "state carried")
    assert carried["perplexity"] == pytest.approx(math.exp(last.loss))
    band = [math.exp(last.loss + sign * 2 * last.stderr) for sign in (-1, 1)]
    assert [carried["low"], carried["high"]] == pytest.approx(band) and carried["position"] == 3584
    spread = spread_points(findings(diagnosis()))
    at_start = [s.std for s in diagnosis().states if s.position == POSITIONS[0]]
    assert spread[0]["std"] == pytest.approx(sum(at_start) / (LAYERS * HEADS))


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
    assert made["perplexity"].points == BUCKETS - 4 and "4 points are not finite" in made["perplexity"].caption
    assert made["state-spread"].points == CUTS - 1 and made["training-loss"].points == 40
    for figure in made.values():
        json.dumps(figure.spec, allow_nan=False)


def test_a_loss_beyond_what_exp_can_hold_does_not_crash():
    huge = [dataclasses.replace(b, loss=900.0) for b in diagnosis().buckets]
    assert perplexity_points(findings(dataclasses.replace(diagnosis(), buckets=huge)))[0]["perplexity"] is None


def test_a_logarithmic_axis_is_used_only_where_every_value_is_positive():
    states = [dataclasses.replace(s, std=0.0) if s.position == 64 else s for s in diagnosis().states]
    made = {f.name: f for f in figures(findings(dataclasses.replace(diagnosis(), states=states)))}
    assert made["perplexity"].logarithmic and not made["state-spread"].logarithmic


def test_layers_are_named_by_what_tells_them_apart():
    mixers = [f"backbone.layers.{i}.mixer" for i in (0, 1, 10)]
    assert list(short_names(mixers).values()) == ["layer 0", "layer 1", "layer 10"]
    assert list(short_names(["a.0.mamba", "a.1.rglru"]).values()) == ["0.mamba", "1.rglru"]
    assert short_names(["only.one"]) == {"only.one": "only.one"}
    assert list(short_names(["a", "a.b"]).values()) == ["a", "b"]


def test_results_of_one_name_keep_apart():
    found = findings(diagnosis("same"), diagnosis("same", 0))
    assert list(found.diagnoses) == ["same", "same (file-1)"]
