"""Effective remembrance: how much the tokens before a start still count for the prediction at an end, in one pass.

EffRem_T(t) = TV(q(. | x[0:T]), q(. | x[t:T])), TV(p, q) = 1/2 sum |p - q|, both from the zero state (Buitrago Ruiz and
Gu, "Understanding and Improving Length Generalization in Recurrent Models", 2025).

Every start t asks for a run of its own over x[t:T]. Runs are laid end to end in rows of at most the largest T, the
state zeroed where one begins, and the rows stream together: full calls, and no token more than the definition's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lengthen.diagnosis.confidence import mean_and_stderr
from lengthen.diagnosis.pieces import rows_together
from lengthen.errors import InputError
from lengthen.models import SequenceState, library_model, sequence_start
from lengthen.models.head import head_logits
from lengthen.models.language_models import run_base
from lengthen.results import Remembrance, RemembrancePoint
from lengthen.state import RecurrentState
from lengthen.streaming import Progress, Tokens, evaluating, require_streamable, segment_for

ROWS = 32
"""Rows that stream together at most, unless one sequence alone needs more."""


def effective_remembrance(
    model: nn.Module,
    tokens: Tokens,
    *,
    ends: Sequence[int],
    starts: Sequence[int],
    segment: int | None = None,
    progress: Progress | None = None,
) -> Remembrance:
    """EffRem_T(t) for every end T and every start t < T, over tokens int64 [n, at least the largest T].

    Processes max T - t tokens for every start t, 0 among them, and computes logits at the ends alone. Memory is that of
    a state for each row; a hybrid's rows carry an attention cache, which grows with T (state_bytes in the result).
    segment: positions a call (by device and rows unless said). Raises InputError for a model without a vocabulary, an
    end beyond the tokens, or a start that is not before some end.
    """
    require_streamable(model)
    head = getattr(library_model(model), "get_output_embeddings", None)
    if head is None or head() is None:
        raise InputError(
            f"{type(library_model(model)).__name__} predicts no vocabulary, and effective remembrance compares "
            "distributions over one; diagnose it without."
        )
    ends, starts = sorted(set(ends)), sorted({0, *starts})
    if not ends or ends[0] < 1 or ends[-1] > tokens.shape[1]:
        raise InputError(f"Effective remembrance cannot end at {ends}; give ends from 1 to {tokens.shape[1]} tokens.")
    if starts[0] < 0 or starts[-1] >= ends[-1]:
        raise InputError(f"Starts from {starts[0]} to {starts[-1]} are not below the end {ends[-1]}; give such as are.")
    layout = _laid_out(starts, ends[-1])
    n, together = tokens.shape[0], max(1, rows_together(model, ROWS) // len(layout))
    distances: dict[tuple[int, int], list[NDArray[np.float64]]] = {}
    processed = largest = 0
    with evaluating(model):
        for first in range(0, n, together):
            sequences = slice(first, min(n, first + together))
            logits: dict[tuple[int, int], Tensor] = {}
            for part in _segments(model, tokens, sequences, layout, ends, segment):
                processed, largest = processed + part.tokens, max(largest, part.state_bytes)
                logits |= part.logits
                if progress is not None:
                    progress(processed, n * sum(ends[-1] - start for start in starts))
            whole = {end: logits[end, 0].double().softmax(-1) for end in ends}
            for (end, start), found in logits.items():
                distance = (whole[end] - found.double().softmax(-1)).abs().sum(-1) / 2
                distances.setdefault((end, start), []).append(distance.cpu().numpy())
    points = [
        RemembrancePoint(end, start, *mean_and_stderr(np.concatenate(found)), n)
        for (end, start), found in sorted(distances.items())
    ]
    return Remembrance(points, processed, largest)


@dataclass(frozen=True)
class _Run:
    """The run over x[start:T] and where it lies in its row: positions [offset, offset + T - start)."""

    start: int
    offset: int
    length: int


def _laid_out(starts: Sequence[int], end: int) -> list[list[_Run]]:
    """Rows of runs, none longer than `end`, the longest row first: each run goes into the first row with room for it."""
    rows: list[list[_Run]] = []
    for start in sorted(starts):
        length = end - start
        row = next((row for row in rows if _length(row) + length <= end), None)
        if row is None:
            rows.append(row := [])
        row.append(_Run(start, _length(row), length))
    return sorted(rows, key=_length, reverse=True)


def _length(row: list[_Run]) -> int:
    return row[-1].offset + row[-1].length if row else 0


@dataclass(frozen=True)
class _Segment:
    """The tokens a call took, the memory of its final states, and (end, start) -> logits [sequences, V] found in it."""

    tokens: int
    state_bytes: int
    logits: dict[tuple[int, int], Tensor]


def _segments(
    model: nn.Module, tokens: Tokens, sequences: slice, layout: list[list[_Run]], ends: list[int], segment: int | None
) -> Iterator[_Segment]:
    """One pass over some sequences. The sequences stand side by side in each row of the layout; a full row leaves."""
    target, device = library_model(model), next(model.parameters()).device
    count = sequences.stop - sequences.start
    state: RecurrentState | None = None
    for first, last in itertools.pairwise(sorted({0, *map(_length, layout)})):
        rows = [row for row in layout if _length(row) >= last]
        # Half of what a stream takes: where runs begin, resets need temporaries of their own.
        size = segment or -(-segment_for(model, count * len(rows)) // 128) * 64
        state = sequence_start(model, count * len(rows)) if state is None else state.index(range(count * len(rows)))
        for low in range(first, last, size):
            high = min(last, low + size)
            ids = torch.cat([_read(tokens, sequences, row, low, high) for row in rows]).to(device)
            begins = torch.zeros(len(rows), high - low, dtype=torch.bool)
            wanted: dict[tuple[int, int], tuple[int, int]] = {}
            for i, run in ((i, run) for i, row in enumerate(rows) for run in row):
                if run.offset > 0 and low <= run.offset < high:
                    begins[i, run.offset - low] = True
                at = {end: run.offset + end - run.start - 1 for end in ends if end > run.start}
                wanted |= {(end, run.start): (i, p - low) for end, p in at.items() if low <= p < high}
            reset = begins.repeat_interleave(count, 0).to(device) if begins.any() else None
            base, state = run_base(model, {"input_ids": ids}, state, reset)
            hidden = base[0].unflatten(0, (len(rows), count))
            logits = {key: head_logits(target, hidden[i, :, p : p + 1])[:, 0] for key, (i, p) in wanted.items()}
            yield _Segment(ids.numel(), _bytes(state), logits)


def _read(tokens: Tokens, sequences: slice, row: list[_Run], low: int, high: int) -> Tensor:
    """Positions [low, high) of a row as int64 [sequences, high - low]."""
    parts = []
    for run in row:
        a, b = max(low, run.offset), min(high, run.offset + run.length)
        if a < b:
            shift = run.start - run.offset
            parts.append(torch.as_tensor(tokens[sequences, a + shift : b + shift]).long())
    return torch.cat(parts, 1)


def _bytes(state: RecurrentState) -> int:
    if not isinstance(state, SequenceState):
        return state.bytes
    cached = [t for pair in state.attention.layers.values() for t in pair]
    return state.bytes + sum(t.numel() * t.element_size() for t in cached)
