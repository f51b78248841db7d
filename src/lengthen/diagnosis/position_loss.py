"""The loss position by position: sums per bucket over a stream, so that memory does not grow with the length.

T training context, L positions, n sequences. Buckets are half-open [start, end); past T their edges are multiples of T.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lengthen.diagnosis.confidence import mean_and_stderr
from lengthen.results import Bucket
from lengthen.state import RecurrentState
from lengthen.streaming import Progress, Tokens, reset_losses, stream

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


def carried_losses(
    model: nn.Module,
    tokens: Tokens,
    intervals: Sequence[Interval],
    *,
    cuts: Sequence[int] = (),
    segment: int | None = None,
    at_cut: Callable[[int, RecurrentState], None] | None = None,
    progress: Progress | None = None,
) -> IntervalSums:
    """One run over tokens [n, L + 1] with the state carried; at_cut(position, state) sees the state before each cut."""
    sums = IntervalSums(intervals, tokens.shape[0])
    wanted = set(cuts)
    for part in stream(model, tokens, segment=segment, cuts=cuts):
        sums.add(part.start, part.losses)
        if at_cut is not None and part.end in wanted:
            at_cut(part.end, part.final_state)
        if progress is not None:
            progress(part.end, tokens.shape[1] - 1)
    return sums


def baseline_losses(
    model: nn.Module,
    tokens: Tokens,
    intervals: Sequence[Interval],
    train_context: int,
    *,
    segment: int | None = None,
    progress: Progress | None = None,
) -> IntervalSums:
    """The reset baseline of a model: the same tokens with the state zeroed before inputs k T."""
    sums = IntervalSums(intervals, tokens.shape[0])
    for start, losses in reset_losses(model, tokens, train_context, segment=segment):
        sums.add(start, losses)
        if progress is not None:
            progress(start + losses.shape[1], tokens.shape[1] - 1)
    return sums


def buckets_of(carried: IntervalSums, reset: IntervalSums, count: int) -> list[Bucket]:
    """The first `count` intervals as buckets."""
    losses, baseline = carried.means(), reset.means()
    found = []
    for i, (low, high) in enumerate(carried.intervals[:count]):
        loss, stderr = mean_and_stderr(losses[:, i])
        own, own_stderr = mean_and_stderr(baseline[:, i])
        excess, excess_stderr = mean_and_stderr(losses[:, i] - baseline[:, i])
        found.append(Bucket(low, high, loss, stderr, own, own_stderr, excess, excess_stderr, len(losses)))
    return found
