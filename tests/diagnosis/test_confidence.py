"""Standard errors and intervals against their formulas, and what a single or infinite value makes of them."""

import math

import numpy as np
import pytest

from lengthen.diagnosis.confidence import mean_and_stderr, percentile_bands, t_975


def test_the_mean_s_error_is_that_of_the_sample():
    values = np.array([1.0, 2.0, 4.0, 7.0])
    assert mean_and_stderr(values) == pytest.approx((3.5, math.sqrt(7) / 2))
    mean, error = mean_and_stderr(values[:1])
    assert mean == 1.0 and math.isnan(error)


@pytest.mark.parametrize(("wrong", "mean"), [(math.inf, math.inf), (math.nan, math.nan)])
def test_a_value_that_is_not_finite_has_a_mean_but_no_error(wrong, mean):
    found, error = mean_and_stderr(np.array([1.0, wrong]))
    assert math.isnan(error) and (found == mean or (math.isnan(found) and math.isnan(mean)))


@pytest.mark.parametrize(("degrees", "quantile"), [(10, 2.22814), (15, 2.13145), (31, 2.03951), (1000, 1.96234)])
def test_quantiles_of_student_s_t_are_those_of_its_tables(degrees, quantile):
    assert t_975(degrees) == pytest.approx(quantile, abs=1e-3)


def test_bands_are_about_the_mean_as_wide_as_its_error_and_the_same_for_a_seed():
    values = np.random.default_rng(0).normal(3.0, 1.0, (200, 2))
    low, high = percentile_bands(values, seed=1)
    errors = values.std(0, ddof=1) / math.sqrt(200)
    assert low == pytest.approx(values.mean(0) - 1.96 * errors, abs=0.3 * errors.max())
    assert high == pytest.approx(values.mean(0) + 1.96 * errors, abs=0.3 * errors.max())
    again = percentile_bands(values, seed=1)
    assert np.array_equal(low, again[0]) and np.array_equal(high, again[1])


def test_a_column_without_a_band_does_not_spoil_its_neighbour():
    values = np.array([[1.0, 1.0], [2.0, math.inf], [3.0, 1.0]])
    low, high = percentile_bands(values, seed=0)
    assert 1.0 <= low[0] < 2.0 < high[0] <= 3.0 and math.isnan(low[1]) and math.isnan(high[1])
    assert np.isnan(percentile_bands(values[:1], seed=0)).all()


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
