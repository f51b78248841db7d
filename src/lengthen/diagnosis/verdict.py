"""From buckets to a break point and a sentence: where a model's loss leaves its own reset baseline for good."""

from __future__ import annotations

import math

from lengthen.diagnosis.confidence import t_975
from lengthen.diagnosis.measure import Measure
from lengthen.results import Bucket

PERPLEXITY = Measure()

MARGIN = 0.02
"""A model fails where its perplexity (or mean loss) exceeds own_reset by 2 %, and by the 95 % interval of the difference."""
ENOUGH = 16
"""With fewer sequences no break point is claimed."""


def exceeds(bucket: Bucket, measure: Measure = PERPLEXITY) -> bool:
    """Whether the bucket's loss is above own_reset by the margin, and surely so.

    A loss that is not finite is, where own_reset is finite.
    """
    if not math.isfinite(bucket.loss):
        return math.isfinite(bucket.own_reset_loss)
    return measure.change(bucket) > MARGIN and bucket.excess - t_975(bucket.n - 1) * bucket.excess_stderr > 0


def break_point(buckets: list[Bucket], train_context: int, measure: Measure = PERPLEXITY) -> int | None:
    """The start of the first bucket past T that exceeds own_reset and after which no later bucket falls back."""
    found = None
    for bucket in reversed([b for b in buckets if b.start >= train_context]):
        if not exceeds(bucket, measure):
            break
        found = bucket.start
    return found


def generalisation_length(buckets: list[Bucket], train_context: int, measure: Measure = PERPLEXITY) -> int:
    """The largest position up to which every bucket past T stays within the margin of own_reset."""
    reached = min(train_context, buckets[-1].end)
    for bucket in buckets:
        if bucket.start >= train_context:
            if not measure.change(bucket) <= MARGIN:
                break
            reached = bucket.end
    return reached


def sentence(
    buckets: list[Bucket],
    train_context: int,
    point: int | None,
    n: int,
    max_length: int,
    measure: Measure = PERPLEXITY,
) -> str:
    """What the buckets say, in one sentence."""
    last = buckets[-1]
    if n < ENOUGH:
        return f"No verdict: {n} sequences are too few to tell a failure from chance; give at least {ENOUGH}."
    if last.start < train_context:
        return f"No verdict: {max_length} positions do not reach past the training context of {train_context}."
    if not math.isfinite(last.own_reset_loss):
        return (
            "No verdict: the loss is not finite even with the state zeroed every training context; check the weights."
        )
    if point is None:
        return (
            f"No failure up to {max_length:,} positions: past the training context of {train_context:,} the "
            f"{measure.name} stays with the reset baseline (last bucket {100 * measure.change(last):+z.1f} %)."
        )
    if not math.isfinite(last.loss):
        return f"Fails: the loss is no longer finite; it leaves the reset baseline at position {point:,}."
    return (
        f"Fails: from position {point:,} ({point / train_context:g} times the training context) the {measure.name} exceeds "
        f"the reset baseline for good, and is {1 + measure.change(last):.3g} times it at {last.start:,} to {last.end:,}."
    )
