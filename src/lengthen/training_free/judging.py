"""What a model's losses, heads and speed are under a method.

n sequences, T training context, L positions.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from lengthen.data import HeldOutSequences
from lengthen.diagnosis.passes import carried_pass, reset_pass
from lengthen.diagnosis.position_loss import Interval
from lengthen.diagnosis.states import head_states, heads
from lengthen.models import zero_state
from lengthen.results import HeadUnderMethod
from lengthen.streaming import stream
from lengthen.training_free.decay_totals import decay_totals
from lengthen.training_free.fitting import FittedMethod

IN_CONTEXTS = 16
"""Training contexts of each sequence that the loss in context is of."""
TIMED_CONTEXTS, TIMED_PAIRS = 4, 3
"""Training contexts of each sequence that are timed, and how often beside the untouched model."""


@dataclass(frozen=True)
class Judged:
    """Mean losses sequence by sequence [n], in context and far, and the heads."""

    in_context: NDArray[np.float64]
    far: NDArray[np.float64]
    heads: list[HeadUnderMethod]


def far_of(train_context: int, length: int) -> Interval:
    """The positions that are far: [32 T, 64 T), or the second half of a shorter run."""
    whole = 64 * train_context
    return (whole // 2, whole) if whole <= length else (length // 2, length)


def judged(model: nn.Module, fitted: FittedMethod | None, tokens: HeldOutSequences, train_context: int) -> Judged:
    """A model under a method (under none, where there is None) on tokens [n, L + 1]."""
    length = tokens.shape[1] - 1
    near = 0, min(length, IN_CONTEXTS * train_context)
    with _under(model, fitted):
        reset = reset_pass(model, tokens.first(near[1]), [near], train_context)
        with decay_totals(model) as totals:
            carried = carried_pass(model, tokens, [far_of(train_context, length)], cuts=(train_context, length))
        named = heads(zero_state(model, 1))
    at = [head_states(cut, named, carried.statistics[cut]) for cut in (train_context, length)]
    found = [
        HeadUnderMethod(
            inside.layer,
            inside.tensor,
            inside.head,
            float(totals[inside.layer][inside.head]) if inside.layer in totals else None,
            inside.norm,
            beyond.norm,
        )
        for inside, beyond in zip(*at)
    ]
    return Judged(reset.means()[:, 0], carried.sums.means()[:, 0], found)


def far_loss(model: nn.Module, fitted: FittedMethod, tokens: HeldOutSequences, train_context: int) -> float:
    """The mean loss over the far positions of tokens [n, L + 1]."""
    with _under(model, fitted):
        found = carried_pass(model, tokens, [far_of(train_context, tokens.shape[1] - 1)])
    return float(found.sums.means().mean())


def cost_of(model: nn.Module, fitted: FittedMethod | None, tokens: HeldOutSequences, train_context: int) -> float:
    """CPU time under a method over that without it: the median of interleaved pairs over the first few contexts."""
    if fitted is None:
        return 1.0
    piece = tokens.first(min(tokens.shape[1] - 1, TIMED_CONTEXTS * train_context))

    def seconds(under: Callable[[], AbstractContextManager[None]]) -> float:
        with under():
            began = time.process_time()
            for _ in stream(model, piece):
                pass
            return time.process_time() - began

    pairs = [(seconds(lambda: fitted.apply(model)), seconds(nullcontext)) for _ in range(TIMED_PAIRS)]
    return statistics.median(under / without for under, without in pairs)


def _under(model: nn.Module, fitted: FittedMethod | None) -> AbstractContextManager[None]:
    return nullcontext() if fitted is None else fitted.apply(model)
