"""The loss position by position: sums per bucket over a stream, so that memory does not grow with the length.

T training context, L positions, n sequences. Buckets are half-open [start, end); past T their edges are multiples of T.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lengthen.diagnosis.confidence import mean_and_stderr, percentile_bands
from lengthen.results import Bucket

Interval = tuple[int, int]


def bucket_intervals(train_context: int, max_length: int) -> list[Interval]:
    """The buckets up to L: quarters below T, then edges at T times 1, 2, 3, 4, 6, 8, 12, 16, ..."""
    t = train_context
    edges = {0, t // 4, t // 2, (3 * t) // 4, t}
    octave = 1
    while octave * t < max_length:
        edges |= {octave * t, (3 * octave // 2) * t if octave > 1 else t}
        octave *= 2
    edges = {e for e in edges if e < max_length} | {max_length}
    ordered = sorted(edges)
    return list(itertools.pairwise(ordered))


class IntervalSums:
    """Sums of losses over intervals of positions, for n sequences side by side."""

    def __init__(self, intervals: Sequence[Interval], n: int) -> None:
        self.intervals = list(intervals)
        self.sums = np.zeros((n, len(self.intervals)))

    def add(self, start: int, losses: Tensor) -> None:
        """Adds losses [n, S] of positions start, start + 1, ..."""
        end = start + losses.shape[1]
        cumulative = None
        for i, (low, high) in enumerate(self.intervals):
            a, b = max(low, start) - start, min(high, end) - start
            if a < b:
                if cumulative is None:
                    cumulative = torch.nn.functional.pad(losses.double().cumsum(1), (1, 0)).cpu().numpy()
                if np.isfinite(cumulative[:, b]).all():
                    self.sums[:, i] += cumulative[:, b] - cumulative[:, a]
                else:
                    self.sums[:, i] += losses[:, a:b].double().sum(1).cpu().numpy()

    def means(self) -> NDArray[np.float64]:
        """Mean loss [n, intervals]."""
        return self.sums / np.array([high - low for low, high in self.intervals])


def buckets_of(carried: IntervalSums, reset: IntervalSums, count: int, seed: int) -> list[Bucket]:
    """The first `count` intervals as buckets, with bootstrap bands by resamples of this seed."""
    losses, baseline = carried.means()[:, :count], reset.means()[:, :count]
    with np.errstate(invalid="ignore"):  # both infinite
        excesses = losses - baseline
    bands = np.stack([*percentile_bands(losses, seed), *percentile_bands(excesses, seed)], 1)
    found = []
    for i, (low, high) in enumerate(carried.intervals[:count]):
        loss, stderr = mean_and_stderr(losses[:, i])
        own, own_stderr = mean_and_stderr(baseline[:, i])
        excess, excess_stderr = mean_and_stderr(excesses[:, i])
        found.append(
            Bucket(low, high, loss, stderr, own, own_stderr, excess, excess_stderr, len(losses), *bands[i].tolist())
        )
    return found
