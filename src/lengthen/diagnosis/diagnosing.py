"""diagnose(): how far a model generalises and where it stops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from lengthen.data import Corpus, HeldOutSequences, load_corpus
from lengthen.data.loading import Source
from lengthen.diagnosis.confidence import mean_and_stderr
from lengthen.diagnosis.measure import Measure
from lengthen.diagnosis.position_loss import (
    Interval,
    IntervalSums,
    baseline_losses,
    bucket_intervals,
    buckets_of,
    carried_losses,
)
from lengthen.diagnosis.sequence_losses import sequence_losses
from lengthen.diagnosis.states import head_states
from lengthen.diagnosis.verdict import ENOUGH, break_point, sentence
from lengthen.errors import InputError
from lengthen.models import family_name, library_model, load, tokenizer_for, vocabulary_size, wrap
from lengthen.results import Diagnosis, HeadState, PositionPerplexity, versions
from lengthen.streaming import Progress, Tokens, loss_name

FIELD_POSITIONS = (2048, 8192, 32768, 131072)


def diagnose(
    model: str | Path | nn.Module,
    data: Source | Corpus | HeldOutSequences | NDArray[Any],
    *,
    train_context: int,
    max_length: int | None = None,
    n: int = 16,
    positions: Sequence[int] = FIELD_POSITIONS,
    tokenizer: Any = None,
    join: bool = False,
    segment: int | None = None,
    seed: int = 0,
    name: str | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """Position-wise loss to any length against the model's own reset baseline, with a verdict.

    model: a directory, a hub name, or a (wrapped) model. data: what load_corpus takes, a Corpus, or tokens [n, L + 1]
    (for a module that is no language model: what it reads, frames [n, L + 1, ...] or a corpus with its targets).
    train_context: T. max_length: L (64 T unless said). n: held-out sequences, at least 16 for a verdict.
    positions: where perplexity is told (over the eighth before each). tokenizer: the model's own unless said.
    join: lay documents end to end where none is long enough. segment: positions a call (chosen by device and n).
    Raises InputError for T < 1, L < T, text that is too short, or tokens the model does not have.
    """
    if train_context < 1:
        raise InputError(f"The training context is {train_context}; give at least 1 position.")
    length = 64 * train_context if max_length is None else max_length
    if length < train_context:
        raise InputError(
            f"The maximum length {length} is below the training context {train_context}; give at least that."
        )
    if any(p < 1 for p in positions):
        raise InputError(f"There is no perplexity at position {min(positions)}; give positions of at least 1.")
    if isinstance(model, str | Path):
        name = name or str(model)
        tokenizer = tokenizer if tokenizer is not None else tokenizer_for(model)
        model = load(model)
    wrap(model)
    tokens = _sequences(model, data, length, n, tokenizer if tokenizer is not None else "bytes", join, seed)

    buckets = bucket_intervals(train_context, length)
    around = [(p - max(1, p // 8), p) for p in sorted(set(positions)) if 0 < p <= length]
    in_context, far = (0, train_context), (32 * train_context, 64 * train_context)
    intervals: list[Interval] = [*buckets, *around, (0, length), in_context]
    if far[1] <= length:
        intervals.append(far)
    cuts = [train_context << k for k in range(32) if train_context << k <= length]
    states: list[HeadState] = []

    half = None if progress is None else lambda done, todo: progress(done, 2 * todo)
    rest = None if progress is None else lambda done, todo: progress(todo + done, 2 * todo)
    carried = carried_losses(
        model,
        tokens,
        intervals,
        cuts=cuts,
        segment=segment,
        at_cut=lambda position, state: states.extend(head_states(position, state)),
        progress=half,
    )
    reset = baseline_losses(model, tokens, intervals, train_context, segment=segment, progress=rest)

    found = buckets_of(carried, reset, len(buckets))
    enough = tokens.shape[0] >= ENOUGH
    reaches = found[-1].start >= train_context
    measure = Measure(loss_name(model, tokens))
    point = break_point(found, train_context, measure) if enough else None
    zero_start = _told(measure, reset, (0, length))
    beyond = _told(measure, carried, far) if far in intervals else (None, None)
    return Diagnosis(
        model=name or type(library_model(model)).__name__,
        family=family_name(model),
        train_context=train_context,
        max_length=length,
        n=tokens.shape[0],
        seed=seed,
        buckets=found,
        in_context=zero_start[0],
        in_context_stderr=zero_start[1],
        far=beyond[0],
        far_stderr=beyond[1],
        own_reset=_told(measure, reset, far)[0] if far in intervals else None,
        loss=measure.loss,
        break_point=point,
        fails=(point is not None) if enough and reaches and math.isfinite(found[-1].own_reset_loss) else None,
        verdict=sentence(found, train_context, point, tokens.shape[0], length, measure),
        positions=[PositionPerplexity(b, a, b, *_told(measure, carried, (a, b)), tokens.shape[0]) for a, b in around],
        states=states,
        sequences=sequence_losses(tokens, carried, reset, len(buckets)),
        configuration={"segment": segment, "join": join, "positions": list(positions)},
        versions=versions(),
    )


def _told(measure: Measure, sums: IntervalSums, interval: Interval) -> tuple[float, float]:
    """The mean loss over an interval as it is told, with the standard error carried over."""
    loss, stderr = mean_and_stderr(sums.means()[:, sums.intervals.index(interval)])
    return measure.value(loss), measure.value_stderr(loss, stderr)


def _sequences(model: nn.Module, data: Any, length: int, n: int, tokenizer: Any, join: bool, seed: int) -> Tokens:
    size = vocabulary_size(model)
    if isinstance(data, np.ndarray | HeldOutSequences) and len(data.shape) >= 2:
        if data.shape[1] < length + 1:
            raise InputError(f"The sequences have {data.shape[1]} positions, but {length + 1} are needed.")
        if isinstance(data, HeldOutSequences):
            return data.first(length)
        if size is not None and (data.ndim > 2 or data.dtype.kind not in "iu"):
            raise InputError(
                f"The data are {data.dtype} of shape {data.shape}, but a language model reads token ids [sequences, positions]."
            )
        if size is not None and data.size and not 0 <= data.min() <= data.max() < size:
            raise InputError(
                f"The tokens run from {data.min()} to {data.max()}, but the model has ids 0 to {size - 1}."
            )
        return data[:, : length + 1]
    corpus = data if isinstance(data, Corpus) else load_corpus(data, tokenizer)
    if size is not None:
        corpus.require_vocabulary(size)
    return HeldOutSequences(corpus, length=length, count=n, seed=seed, join=join)
