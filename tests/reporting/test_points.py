"""What the figures draw: every result is there once, and nothing that is not finite."""

import dataclasses
import math

import pytest

from lengthen.reporting.figures import figures
from lengthen.reporting.points import certificate_points, loss_points, position_points, remembrance_points, short_names
from tests.reporting.example_results import certificate, comparison, demonstration, diagnosis, findings, training


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


def test_loss_points_are_means_over_blocks_that_cover_every_step():
    record = dataclasses.replace(training(steps=103), losses=[float(i) for i in range(103)])
    rows = loss_points(findings(record))
    assert [r["steps"] for r in (rows[0], rows[-1])] == ["1 to 3", "103 to 103"]
    assert [rows[0]["loss"], rows[0]["step"], rows[-1]["loss"], rows[-1]["step"]] == [1.0, 2.0, 102.0, 103.0]


def test_a_loss_beyond_what_exp_can_hold_does_not_crash():
    huge = [dataclasses.replace(b, loss=900.0) for b in diagnosis().buckets]
    assert position_points(findings(dataclasses.replace(diagnosis(), buckets=huge)))[0]["value"] is None


def test_layers_are_named_by_what_tells_them_apart():
    mixers = [f"backbone.layers.{i}.mixer" for i in (0, 1, 10)]
    assert list(short_names(mixers).values()) == ["layer 0", "layer 1", "layer 10"]
    assert list(short_names(["a.0.mamba", "a.1.rglru"]).values()) == ["0.mamba", "1.rglru"]
    assert short_names(["only.one"]) == {"only.one": "only.one"}
    assert list(short_names(["a", "a.b"]).values()) == ["a", "b"]
