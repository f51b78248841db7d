"""Bands by the bootstrap, and the figures for a table: generalisation length, far over own_reset, unigram."""

import math

import numpy as np
import pytest
import torch

from lengthen import diagnose, wrap
from lengthen.diagnosis.confidence import percentile_bands
from lengthen.diagnosis.unigram import unigram_loss
from lengthen.diagnosis.verdict import generalisation_length
from tests.conftest import tiny_mamba2
from tests.diagnosis.test_diagnosing import curve


def test_bands_cover_the_true_mean_about_as_often_as_they_say():
    """Of 16 skewed values the percentile bootstrap is a little narrow."""
    values = np.random.default_rng(0).exponential(size=(16, 500))
    low, high = percentile_bands(values, seed=0)
    covered = ((low < 1) & (high > 1)).mean()
    assert 0.85 < covered < 0.97
    again, other = percentile_bands(values, seed=0), percentile_bands(values, seed=1)
    assert (again[0] == low).all() and not (other[0] == low).all()


def test_there_are_no_bands_where_there_is_nothing_to_resample():
    low, high = percentile_bands(np.array([[1.0, math.inf, 2.0], [1.0, 3.0, 4.0]]), seed=0)
    assert low[0] == high[0] == 1 and math.isnan(low[1]) and low[2] == 2 and high[2] == 4
    assert np.isnan(percentile_bands(np.ones((1, 2)), seed=0)).all()


@pytest.mark.parametrize(
    "excesses, length",
    [
        ((0, 0, 0, 0, 0), 1024),
        ((0, 0, 0.01, 0.03, 0.01), 256),
        ((0, 0.5, 0, 0, 0), 64),
        ((0.5, 0.01, 0, 0, math.nan), 512),  # what lies within the training context does not count
        ((0, 0, math.inf, 0, 0), 128),
    ],
)
def test_generalisation_length(excesses, length):
    assert generalisation_length(curve(*excesses), 64) == length


def test_the_figures_of_a_diagnosis():
    model = wrap(tiny_mamba2())
    tokens = np.random.default_rng(0).integers(256, size=(16, 2049))
    found = diagnose(model, tokens, train_context=32, segment=300)
    assert found.generalisation_length == 2048
    assert found.far_over_own_reset == pytest.approx(found.far / found.own_reset)
    assert 0 < found.far_over_own_reset_stderr < 0.1 * found.far_stderr  # paired
    shares = np.bincount(tokens[:, 1:].ravel()) / tokens[:, 1:].size
    assert found.unigram == pytest.approx(math.exp(-(shares * np.log(shares)).sum()))
    for bucket in found.buckets:
        assert bucket.low < bucket.loss < bucket.high and bucket.high - bucket.low < 5 * bucket.stderr
        assert bucket.excess_low <= bucket.excess <= bucket.excess_high


def test_the_unigram_loss_does_not_depend_on_how_tokens_are_read(monkeypatch):
    tokens = torch.randint(50, (3, 301), generator=torch.Generator().manual_seed(0))
    whole = unigram_loss(tokens, 300)
    monkeypatch.setattr("lengthen.diagnosis.unigram.COLUMNS", 7)
    assert unigram_loss(tokens, 300) == whole and unigram_loss(tokens[:, :101], 100) == unigram_loss(tokens, 100)
