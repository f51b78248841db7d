"""How far a model generalises, and why it stops."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from lengthen.results.base import Result


@dataclass(frozen=True)
class Bucket(Result):
    """Mean loss (nats a token, if it is cross-entropy) over positions [start, end): of one run, and of the same tokens
    with the state zeroed every T inputs (own_reset). stderr is over n sequences; excess = loss - own_reset_loss, paired.
    low and high: 95 % bands by the bootstrap over sequences."""

    start: int
    end: int
    loss: float
    stderr: float
    own_reset_loss: float
    own_reset_stderr: float
    excess: float
    excess_stderr: float
    n: int
    low: float = math.nan
    high: float = math.nan
    excess_low: float = math.nan
    excess_high: float = math.nan


@dataclass(frozen=True)
class PositionPerplexity(Result):
    """Perplexity around one position: over [start, end)."""

    position: int
    start: int
    end: int
    perplexity: float
    stderr: float
    n: int


@dataclass(frozen=True)
class HeadState(Result):
    """One head's recurrent state before input `position`: mean, standard deviation and root mean square norm over
    entries and sequences, and the largest absolute entry."""

    position: int
    layer: str
    tensor: str
    head: int
    mean: float
    std: float
    norm: float
    largest: float


@dataclass(frozen=True)
class RemembrancePoint(Result):
    """EffRem_end(start): how far the prediction after `end` tokens moves when those before `start` are dropped: total
    variation between the two distributions of the next token, 0 to 1, the mean over n sequences."""

    end: int
    start: int
    mean: float
    stderr: float
    n: int


@dataclass(frozen=True)
class Remembrance(Result):
    """Effective remembrance at several ends and starts. tokens: inputs processed; state_bytes: the most memory that
    states took at once, which grows with the length where attention keeps a cache."""

    points: list[RemembrancePoint]
    tokens: int
    state_bytes: int


@dataclass(frozen=True)
class HeadDrift(Result):
    """How far a head's states before input `position` lie from any that training shows (distance, in standard deviations
    of those), and how far states from within the training context may lie by chance (limit)."""

    position: int
    layer: str
    tensor: str
    head: int
    distance: float
    limit: float
    outside: bool


@dataclass(frozen=True)
class Forgetting(Result):
    """After how many tokens what a head holds has decayed to 1/e; None where it does not within a usable measure.
    stderr is over n sequences."""

    layer: str
    tensor: str
    head: int
    tokens: float | None
    stderr: float | None
    n: int


@dataclass(frozen=True)
class Drift(Result):
    """Where the recurrent state leaves what training shows. level: the chance that states from within the training
    context have any head outside; windows: how many training windows say what it shows; draws: how many groups of n
    states the limits rest on. forgetting: how long each head remembers."""

    level: float
    windows: int
    draws: int
    n: int
    heads: list[HeadDrift]
    forgetting: list[Forgetting]


@dataclass(frozen=True)
class Patch(Result):
    """One layer's state (one head's, where head is given) replaced by that of a run of T tokens over the same text: the
    share of the excess loss that goes away, and its standard error."""

    layer: str
    head: int | None
    share: float
    stderr: float


@dataclass(frozen=True)
class Patching(Result):
    """State patching at `position`, judged over [position, end). excess: loss with the state carried over that with all
    layers patched, in nats a token; patches: layers, then heads of the first of them, the largest share first."""

    position: int
    end: int
    excess: float
    excess_stderr: float
    n: int
    patches: list[Patch]


@dataclass(frozen=True)
class SequenceLosses(Result):
    """Each sequence's mean loss over each bucket (a list a sequence), so that another model's on the same sequences can be
    paired with it. tokens: sha256 of what the sequences hold; overlap: the most positions that two of them share, None
    where that is not known."""

    carried: list[list[float]]
    own_reset: list[list[float]]
    tokens: str
    overlap: int | None


@dataclass(frozen=True)
class Recommendation(Result):
    """What to do, from a diagnosis alone. rule: the rule that led to it; finding: the facts it rests on; advice: what
    follows; intervention and steps: what to post-train with first, where that is the advice."""

    rule: str
    finding: str
    advice: str
    intervention: str | None = None
    steps: int | None = None


@dataclass(frozen=True)
class Diagnosis(Result):
    """How far a model generalises: position-wise loss against own_reset, break point, verdict.

    loss: what the losses are. in_context, far, own_reset, unigram and positions are perplexities where it is
    cross-entropy, and mean losses where it is anything else. generalisation_length: the largest position up to which
    they stay within 2 % of own_reset. far_over_own_reset: their ratio over [32 T, 64 T), paired. unigram: what the best
    prediction without any context would reach on the same tokens. remembrance, drift and patching are None where they
    were not asked for or do not apply."""

    model: str
    family: str
    train_context: int
    max_length: int
    n: int
    seed: int
    buckets: list[Bucket]
    in_context: float | None
    in_context_stderr: float | None
    far: float | None
    far_stderr: float | None
    own_reset: float | None
    break_point: int | None
    fails: bool | None
    verdict: str
    positions: list[PositionPerplexity]
    states: list[HeadState]
    loss: str = "cross-entropy"
    sequences: SequenceLosses | None = None
    generalisation_length: int | None = None
    far_over_own_reset: float | None = None
    far_over_own_reset_stderr: float | None = None
    unigram: float | None = None
    remembrance: Remembrance | None = None
    drift: Drift | None = None
    patching: Patching | None = None
    recommendation: Recommendation | None = None
    configuration: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
