"""The losses of a diagnosis as its result: buckets, and the figures for a table."""

import math

import numpy as np
import pytest
import torch

from lengthen import diagnose, wrap
from lengthen.diagnosis.loss_summary import intervals_of
from lengthen.diagnosis.position_loss import bucket_intervals
from tests.conftest import tiny_mamba2
from tests.test_frames import Predictor


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


def test_intervals_begin_with_the_buckets_and_hold_what_the_figures_need():
    found = intervals_of(8, 1024, [100, 2000, 4])
    count = len(bucket_intervals(8, 1024))
    assert found[:count] == bucket_intervals(8, 1024)
    assert found[count:] == [(3, 4), (88, 100), (0, 1024), (0, 8), (256, 512)]  # 2000 lies beyond
    assert intervals_of(8, 511, [])[-1] == (0, 8)  # the far interval does not fit


def test_what_is_not_reached_is_not_told():
    model = wrap(tiny_mamba2())
    tokens = np.random.default_rng(0).integers(256, size=(16, 257))
    found = diagnose(model, tokens, train_context=32, max_length=256, positions=[100, 300], drift=False, patching=False)
    assert found.far is None and found.own_reset is None and found.far_over_own_reset is None
    assert [p.position for p in found.positions] == [100] and found.max_length == 256


@torch.no_grad()
def test_losses_that_are_no_cross_entropy_are_told_as_they_are():
    """Nothing is exponentiated, no token has a frequency, and the error of a ratio is that of its linearisation."""
    model, frames = wrap(Predictor()), np.random.default_rng(0).normal(size=(16, 257, 5)).astype(np.float32)
    found = diagnose(model, frames, train_context=4, drift=False, patching=False)
    inputs, targets = torch.from_numpy(frames[:, :-1]), torch.from_numpy(frames[:, 1:])
    losses = (model(inputs).predictions - targets).double().square().mean(-1).numpy()
    windows = model(inputs.reshape(-1, 4, 5)).predictions.view(16, 256, 5)
    reset = (windows - targets).double().square().mean(-1).numpy()
    far, own = losses[:, 128:].mean(1), reset[:, 128:].mean(1)
    assert found.loss == "mean squared error" and found.unigram is None
    assert (found.far, found.own_reset) == pytest.approx((far.mean(), own.mean()), rel=1e-5)
    ratio = far.mean() / own.mean()
    assert found.far_over_own_reset == pytest.approx(ratio, rel=1e-5)
    assert found.far_over_own_reset_stderr == pytest.approx((far - ratio * own).std(ddof=1) / 4 / own.mean(), rel=1e-3)
