"""Runs held against one another on the same sequences."""

from __future__ import annotations

from dataclasses import dataclass, field

from lengthen.results.base import Result
from lengthen.results.diagnosis import Diagnosis


@dataclass(frozen=True)
class Difference(Result):
    """How far the loss `of` one run lies above that `against` which it is held, over positions [start, end) of the same
    sequences: the paired mean over n sequences, its standard error and 95 % interval [low, high], in the losses' unit.
    change: the same as a share of what is told (0.02: perplexity is 2 % higher), with its 95 % interval. With fewer than
    16 sequences there is no interval."""

    name: str
    of: str
    against: str
    start: int
    end: int
    difference: float
    stderr: float
    low: float | None
    high: float | None
    change: float
    change_low: float | None
    change_high: float | None
    n: int


@dataclass(frozen=True)
class Certificate(Result):
    """What post-training did, on the same sequences before, after, and (where there is one) in the control arm.

    differences: in context and far, paired; curves: the same for each bucket. repaired: whether a model that failed no
    longer does; None where it did not fail or there is no verdict."""

    before: str
    after: str
    control: str | None
    train_context: int
    max_length: int
    n: int
    seed: int
    tokens: str
    overlap: int | None
    loss: str
    repaired: bool | None
    verdict: str
    differences: list[Difference]
    curves: list[Difference]


@dataclass(frozen=True)
class Comparison(Result):
    """Runs side by side, and a certificate for each that could be paired with the first; unpaired: run -> why not."""

    runs: dict[str, Diagnosis]
    certificates: list[Certificate]
    unpaired: dict[str, str] = field(default_factory=dict)
