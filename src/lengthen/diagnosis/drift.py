"""Where the recurrent state leaves what training shows: a distance per head, with limits that chance rarely exceeds.

n sequences, W windows, P positions of a window, H heads over all layers and tensors, F features of a head's state.

Training shows the states at positions up to T of windows from zero. A group of n states, one a sequence, is compared
head by head with those at each of P such positions: the distance is the Wasserstein-1 distance of a feature in standard
deviations, the largest of the features, at the position that is nearest. Groups drawn from windows held out say what
chance gives: the limits are set so that a group from within the training context has any head beyond its limit with
probability LEVEL at most (a conformal rank over groups of the largest head).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from lengthen.diagnosis.pieces import Pieces, rows_together
from lengthen.diagnosis.states import Head, Statistics, head_statistics, heads
from lengthen.errors import InputError
from lengthen.models import zero_state
from lengthen.results import Drift, Forgetting, HeadDrift
from lengthen.streaming import Progress, Tokens, stream

LEVEL = 0.05
"""What the limits hold, as draws from fresh text confirm."""
RANK = 0.01
"""What the rank aims at: limits from windows that share documents and are drawn again and again come out too narrow."""
DRAWS = 200
WINDOWS = 512
FEWEST_WINDOWS = 64
PLACES = 32
ROWS = 64
"""Windows that run side by side at most, unless there are more sequences."""

Features = NDArray[np.float64]
"""[..., H, F]: of each head, mean, standard deviation and largest absolute entry."""


def features(statistics: Statistics) -> Features:
    """The features [n, H, F] of states by their statistics [n, H, 4]; one that overflowed lies far away."""
    return np.nan_to_num(statistics[..., :3], nan=1e30, posinf=1e30, neginf=-1e30)


@dataclass(frozen=True)
class TrainingStates:
    """What training shows, made by training_states.

    quantiles: [P, n, H, F], sorted along n. spread: [P, H, F]. limits: [H].
    """

    heads: list[Head]
    quantiles: Features
    spread: Features
    limits: NDArray[np.float64]
    windows: int

    def judge(self, position: int, statistics: Statistics) -> list[HeadDrift]:
        """Each head's distance and limit for a group of states before input `position`, by their statistics [n, H, 4]."""
        distances = _distances(self.quantiles, self.spread, features(statistics))
        rows = zip(self.heads, distances.tolist(), self.limits.tolist())
        return [HeadDrift(position, *head, found, limit, found > limit) for head, found, limit in rows]

    def drift(self, groups: Mapping[int, Statistics], forgetting: list[Forgetting]) -> Drift:
        """The drift of groups by their positions, beside how long each head remembers."""
        found = [head for position, group in sorted(groups.items()) for head in self.judge(position, group)]
        return Drift(LEVEL, self.windows, DRAWS, self.quantiles.shape[1], found, forgetting)


def enough_windows(tokens: Tokens, train_context: int) -> bool:
    """Whether the tokens [n, L + 1] hold as many training windows as limits need."""
    return tokens.shape[0] * ((tokens.shape[1] - 1) // train_context) >= FEWEST_WINDOWS


def training_states(
    model: nn.Module,
    tokens: Tokens,
    train_context: int,
    *,
    seed: int = 0,
    segment: int | None = None,
    progress: Progress | None = None,
) -> TrainingStates:
    """What training shows, from windows of T tokens cut from tokens [n, L + 1], each run from the zero state.

    Every second window says what states there are, the others where the limits lie. Raises InputError for fewer than
    64 windows.
    """
    if not enough_windows(tokens, train_context):
        raise InputError(
            f"{tokens.shape[0]} sequences of {tokens.shape[1] - 1} positions hold fewer than {FEWEST_WINDOWS} windows of "
            f"{train_context}, too few to say what training shows; give more or longer sequences."
        )
    random = np.random.default_rng(seed)
    n = tokens.shape[0]
    each = min((tokens.shape[1] - 1) // train_context, max(2, WINDOWS // n)) // 2 * 2
    firsts = np.linspace(0, tokens.shape[1] - 1 - train_context, each).astype(int).tolist()
    shown = _ladder(train_context)
    drawn = sorted(set((random.integers(train_context, size=PLACES) + 1).tolist()))
    together = max(1, rows_together(model, ROWS) // n)
    reference: list[Features] = []
    held_out: list[Features] = []
    done = 0
    for kept, chosen, cuts in ((reference, firsts[::2], shown), (held_out, firsts[1::2], drawn)):
        for i in range(0, len(chosen), together):
            found = window_statistics(model, tokens, chosen[i : i + together], train_context, cuts, segment)
            kept.append(features(found))
            done += len(found)
            if progress is not None:
                progress(done, each)
    states, others = np.concatenate(reference), np.concatenate(held_out)  # [windows of a sequence, P, n, H, F]
    pooled = np.sort(np.moveaxis(states, 1, 0).reshape(len(shown), -1, *states.shape[3:]), axis=1)
    quantiles = np.quantile(pooled, (np.arange(n) + 0.5) / n, axis=1).swapaxes(0, 1)
    spread = pooled.std(1)
    spread = np.maximum(spread, 1e-6 * np.abs(pooled).max(1) + 1e-30)
    scores = np.stack(
        [
            _distances(
                quantiles, spread, others[random.integers(len(others), size=n), random.integers(len(drawn)), range(n)]
            )
            for _ in range(DRAWS)
        ]
    )
    floor = np.quantile(scores, 0.9, axis=0) + 1e-30
    largest = np.sort((scores / floor).max(1))
    rank = math.ceil((1 - RANK) * (DRAWS + 1))
    return TrainingStates(heads(zero_state(model, 1)), quantiles, spread, floor * largest[rank - 1], n * each)


def _ladder(train_context: int) -> list[int]:
    """Positions up to T: evenly spaced, and by powers of two below the first."""
    step = max(1, train_context / PLACES)
    even = {round(step * k) for k in range(1, PLACES + 1)}
    return sorted({p for p in even if p <= train_context} | {1 << k for k in range(32) if 1 << k < step})


def window_statistics(
    model: nn.Module, tokens: Tokens, firsts: Sequence[int], length: int, cuts: Sequence[int], segment: int | None
) -> Statistics:
    """The statistics [windows, cuts, n, H, 4] before each cut of the windows that begin at these positions."""
    found = {
        piece.end: head_statistics(piece.final_state)
        for piece in stream(model, Pieces(tokens, firsts, length), segment=segment, cuts=cuts)
        if piece.end in cuts
    }
    return np.stack([found[cut].reshape(len(firsts), tokens.shape[0], *found[cut].shape[1:]) for cut in cuts], 1)


def _distances(quantiles: Features, spread: Features, group: Features) -> NDArray[np.float64]:
    """The distance of each head [H] of a group [n, H, F] from the nearest of the positions."""
    apart = np.abs(quantiles - np.sort(group, axis=0)).mean(1) / spread
    return apart.max(-1).min(0)
