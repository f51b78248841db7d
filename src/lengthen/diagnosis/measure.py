"""What losses are told as: perplexity for cross-entropy, the mean loss itself for anything else."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lengthen.results import Bucket

CROSS_ENTROPY = "cross-entropy"


@dataclass(frozen=True)
class Measure:
    """How losses of one kind are told and compared. loss: their kind, in words."""

    loss: str = CROSS_ENTROPY

    @property
    def name(self) -> str:
        """What value() gives, in words."""
        return "perplexity" if self.loss == CROSS_ENTROPY else self.loss

    def value(self, loss: float) -> float:
        """A mean loss as it is told."""
        if self.loss != CROSS_ENTROPY:
            return loss
        return math.exp(loss) if loss < 700 else math.inf if loss == loss else math.nan

    def value_stderr(self, loss: float, stderr: float) -> float:
        """The standard error of value(loss), from the loss's own."""
        return self.value(loss) * stderr if self.loss == CROSS_ENTROPY else stderr

    def change(self, bucket: Bucket) -> float:
        """By what share the bucket's value lies above own_reset's (0.02: by 2 %)."""
        return self.share(bucket.excess, bucket.own_reset_loss)

    def share(self, difference: float, against: float) -> float:
        """A difference of mean losses as a share of what is told of the loss it is held against."""
        if self.loss == CROSS_ENTROPY:
            return math.expm1(min(difference, 700))
        return difference / max(abs(against), 1e-300)
