"""Means over sequences with their standard errors, and the width of a 95 % interval."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def mean_and_stderr(values: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and standard error of the mean of values [n]; the standard error of a single value is NaN."""
    if not np.isfinite(values).all():
        return (math.nan if np.isnan(values).any() else math.inf), math.nan
    stderr = float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
    return float(values.mean()), stderr


def t_975(degrees: int) -> float:
    """The 97.5 % quantile of Student's t, by its expansion in 1 / degrees (error below 0.001 from 10 degrees on)."""
    z = 1.959963984540054
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3
