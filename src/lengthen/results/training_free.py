"""A model under methods that train nothing, beside post-training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lengthen.results.base import Result
from lengthen.results.comparison import Difference


@dataclass(frozen=True)
class Estimate(Result):
    """A mean over sequences as losses are told (perplexity, if they are cross-entropy) with Student's 95 % interval, which
    fewer than 16 sequences do not give."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class HeadUnderMethod(Result):
    """One head while a run to L lasts. log_decay: the sum of its log-decays over all L positions, the mean over sequences
    and channels, None where it has none; what a method multiplies a state by now and then is not in it. norm_in_context,
    norm_far: the root mean square over sequences of its state's norm at T and at L."""

    layer: str
    tensor: str
    head: int
    log_decay: float | None
    norm_in_context: float
    norm_far: float


@dataclass(frozen=True)
class Rival(Result):
    """One model run under one method, fitted to it; "untouched" under none.

    in_context: windows of T from the zero state; far: with the state carried. tokens, forwards, seconds (of CPU time): what
    the model's post-training, the fit and the choice of settings took, each step of training a forward. cost: CPU time a
    token under the method, over that without it, in the same run. losses_in_context, losses_far: mean losses sequence by
    sequence. chosen: whether the settings are those of several that did best on a text to choose by. over_untouched: in
    context, against the same model without a method; over_reset: far, against the yardstick,
    the control arm with its state zeroed every T. Both are paired."""

    model: str
    method: str
    settings: dict[str, Any]
    in_context: Estimate
    far: Estimate
    tokens: int
    forwards: int
    seconds: float
    cost: float
    heads: list[HeadUnderMethod]
    losses_in_context: list[float]
    losses_far: list[float]
    chosen: bool = False
    over_untouched: Difference | None = None
    over_reset: Difference | None = None


@dataclass(frozen=True)
class Rivals(Result):
    """Ways to use a model past its training context T side by side, on the same sequences of L positions: as it is, under
    training-free methods, after post-training, and after that under each method, fitted anew. far: positions
    [far_start, L). splits: what the three texts hold (sha256), of which no two share a position. left_out: method -> why
    it is not there."""

    model: str
    family: str
    train_context: int
    max_length: int
    far_start: int
    n: int
    seed: int
    loss: str
    rivals: list[Rival]
    left_out: dict[str, str]
    splits: dict[str, str]
    configuration: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
