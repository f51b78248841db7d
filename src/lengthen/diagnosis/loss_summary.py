"""The losses of a diagnosis as its result: buckets, break point, verdict, and the figures for a table.

T training context, L positions, n sequences. far: [32 T, 64 T).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import nn

from lengthen.diagnosis.confidence import mean_and_stderr
from lengthen.diagnosis.measure import CROSS_ENTROPY, Measure
from lengthen.diagnosis.passes import Carried
from lengthen.diagnosis.position_loss import Interval, IntervalSums, bucket_intervals, buckets_of
from lengthen.diagnosis.sequence_losses import sequence_losses
from lengthen.diagnosis.states import head_states, heads
from lengthen.diagnosis.unigram import unigram_loss
from lengthen.diagnosis.verdict import ENOUGH, break_point, generalisation_length, sentence
from lengthen.models import family_name, library_model, vocabulary_size, zero_state
from lengthen.results import Diagnosis, PositionPerplexity, versions
from lengthen.streaming import Tokens, loss_name


def intervals_of(train_context: int, length: int, positions: Sequence[int]) -> list[Interval]:
    """The intervals over which losses are summed: the buckets first, then the others."""
    found = [*bucket_intervals(train_context, length), *_around(positions, length), (0, length), (0, train_context)]
    return found + [_far(train_context)] * (_far(train_context)[1] <= length)


def loss_summary(
    model: nn.Module,
    tokens: Tokens,
    train_context: int,
    carried: Carried,
    reset: IntervalSums,
    *,
    positions: Sequence[int],
    seed: int,
    name: str | None,
    configuration: dict[str, Any],
) -> Diagnosis:
    """The diagnosis so far as the losses over intervals_of decide it."""
    n, length = tokens.shape[0], tokens.shape[1] - 1
    count = len(bucket_intervals(train_context, length))
    found = buckets_of(carried.sums, reset, count, seed)
    enough, reaches, finite = n >= ENOUGH, found[-1].start >= train_context, math.isfinite(found[-1].own_reset_loss)
    measure = Measure(loss_name(model, tokens))
    point = break_point(found, train_context, measure) if enough else None
    in_context, in_context_stderr = _told(measure, reset, (0, length))
    far: dict[str, float] = {}
    if (there := _far(train_context)) in reset.intervals:
        far["far"], far["far_stderr"] = _told(measure, carried.sums, there)
        far["own_reset"], _ = _told(measure, reset, there)
        far["far_over_own_reset"], far["far_over_own_reset_stderr"] = _ratio(measure, carried.sums, reset, there)
    layers = heads(zero_state(model, 1))
    return Diagnosis(
        model=name or type(library_model(model)).__name__,
        family=family_name(model),
        train_context=train_context,
        max_length=length,
        n=n,
        seed=seed,
        buckets=found,
        in_context=in_context,
        in_context_stderr=in_context_stderr,
        far=far.get("far"),
        far_stderr=far.get("far_stderr"),
        own_reset=far.get("own_reset"),
        break_point=point,
        fails=(point is not None) if enough and reaches and finite else None,
        verdict=sentence(found, train_context, point, n, length, measure),
        positions=[
            PositionPerplexity(b, a, b, *_told(measure, carried.sums, (a, b)), n) for a, b in _around(positions, length)
        ],
        states=[state for cut, rows in sorted(carried.statistics.items()) for state in head_states(cut, layers, rows)],
        loss=measure.loss,
        sequences=sequence_losses(tokens, carried.sums, reset, count),
        generalisation_length=generalisation_length(found, train_context, measure) if enough and finite else None,
        far_over_own_reset=far.get("far_over_own_reset"),
        far_over_own_reset_stderr=far.get("far_over_own_reset_stderr"),
        unigram=_unigram(model, tokens, measure, min(length, _far(train_context)[1])),
        configuration=configuration,
        versions=versions(),
    )


def _far(train_context: int) -> Interval:
    return 32 * train_context, 64 * train_context


def _around(positions: Sequence[int], length: int) -> list[Interval]:
    """The eighth before each position."""
    return [(p - max(1, p // 8), p) for p in sorted(set(positions)) if 0 < p <= length]


def _told(measure: Measure, sums: IntervalSums, interval: Interval) -> tuple[float, float]:
    """The mean loss over an interval as it is told, with the standard error carried over."""
    loss, stderr = mean_and_stderr(sums.means()[:, sums.intervals.index(interval)])
    return measure.value(loss), measure.value_stderr(loss, stderr)


def _ratio(measure: Measure, carried: IntervalSums, reset: IntervalSums, interval: Interval) -> tuple[float, float]:
    """Carried over reset, as losses are told, over an interval, with the standard error of the paired difference."""
    losses, baseline = (sums.means()[:, sums.intervals.index(interval)] for sums in (carried, reset))
    with np.errstate(invalid="ignore"):  # both infinite
        difference, stderr = mean_and_stderr(losses - baseline)
        own = float(baseline.mean())
        ratio = 1 + measure.share(difference, own)
        if measure.loss != CROSS_ENTROPY:
            _, stderr = mean_and_stderr((losses - ratio * baseline) / own)
    return ratio, ratio * stderr if measure.loss == CROSS_ENTROPY else stderr


def _unigram(model: nn.Module, tokens: Tokens, measure: Measure, length: int) -> float | None:
    return None if vocabulary_size(model) is None else measure.value(unigram_loss(tokens, length))
