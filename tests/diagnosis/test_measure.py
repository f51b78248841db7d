"""Losses as they are told: perplexity where they are cross-entropy, and shares of what is told."""

import math

import pytest

from lengthen.diagnosis.measure import Measure

SQUARES = Measure("mean squared error")


def test_only_cross_entropy_is_told_as_perplexity():
    assert Measure().name == "perplexity" and SQUARES.name == "mean squared error"
    assert Measure().value(2.0) == math.exp(2.0) and SQUARES.value(2.0) == 2.0
    assert Measure().value(701.0) == math.inf and math.isnan(Measure().value(math.nan))


def test_the_error_of_what_is_told_is_its_slope_times_the_loss_s_error():
    step = 1e-6
    slope = (Measure().value(1.5 + step) - Measure().value(1.5 - step)) / (2 * step)
    assert Measure().value_stderr(1.5, 0.1) == pytest.approx(slope * 0.1, rel=1e-8)
    assert SQUARES.value_stderr(1.5, 0.1) == 0.1


def test_a_share_is_of_what_is_told():
    before, after = 1.5, 1.7
    assert Measure().share(after - before, before) == pytest.approx(math.exp(after) / math.exp(before) - 1)
    assert SQUARES.share(after - before, before) == pytest.approx(after / before - 1)
    assert math.isfinite(Measure().share(1e6, 1.0)) and math.isfinite(SQUARES.share(1e-9, 0.0))
