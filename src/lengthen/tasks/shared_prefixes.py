"""Rows of tokens run through a model, what several of them share once: the state is forked where they part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from lengthen.models import sequence_start, zero_state
from lengthen.models.hooked_layers import require_no_chunks, whole_prompt_hook
from lengthen.models.language_models import run_base
from lengthen.state import RecurrentState
from lengthen.streaming import evaluating, segment_for
from lengthen.tasks.codec import Ids

TOKENS_TOGETHER, ROWS_TOGETHER = 1 << 15, 64
"""Rows that run side by side: so many, with so many tokens."""
BYTES = 1 << 28
"""What their states may take."""


@dataclass
class Cost:
    """Tokens of prompts, and how many of them were processed."""

    tokens: int = 0
    processed: int = 0


@dataclass(frozen=True)
class _Branch:
    """Rows that agree up to position `start`, and the row of a state there."""

    row: int
    members: list[int]
    start: int = 0


def final_states(
    model: nn.Module,
    rows: Sequence[Ids],
    cost: Cost | None = None,
    *,
    segment: int | None = None,
    chunks: bool = False,
) -> Iterator[tuple[list[int], RecurrentState]]:
    """The state after each row of tokens (a wrapped language model's): (which rows, their states in that order), as found.

    Branches of the same extent run side by side, in segments; memory is that of the states where rows part. Under a hook
    that must see a whole prompt, each row is one call. Yields every row once. chunks: whether rows are already such as a
    hook that answers from one of several wants; without, it is refused.
    """
    if not chunks:
        require_no_chunks(model)
    cost = cost if cost is not None else Cost()
    cost.tokens += sum(map(len, rows))
    with evaluating(model):
        start = sequence_start(model, 1)
        if whole_prompt_hook(model) is not None:
            for i, row in enumerate(rows):
                cost.processed += len(row)
                ids = torch.from_numpy(row)[None].to(start.device)
                yield [i], run_base(model, {"input_ids": ids}, start)[1] if len(row) else start
            return
        yield from _run(model, rows, start, [_Branch(0, list(range(len(rows))))], cost, segment)


def rows_together(model: nn.Module, length: int) -> int:
    """How many rows of this length may run side by side, at least one."""
    states = BYTES // zero_state(model, 1, "meta").bytes
    return max(1, min(ROWS_TOGETHER, TOKENS_TOGETHER // max(length, 1), states))


def _run(
    model: nn.Module,
    rows: Sequence[Ids],
    state: RecurrentState,
    branches: Sequence[_Branch],
    cost: Cost,
    segment: int | None,
) -> Iterator[tuple[list[int], RecurrentState]]:
    extents: dict[tuple[int, int], list[_Branch]] = {}
    for branch in branches:
        extents.setdefault((branch.start, _shared([rows[m] for m in branch.members], branch.start)), []).append(branch)
    for (start, end), alike in extents.items():
        after = state.index([b.row for b in alike])
        cost.processed += (end - start) * len(alike)
        step = segment or segment_for(model, len(alike))
        for low in range(start, end, step):
            ids = np.stack([rows[b.members[0]][low : min(low + step, end)] for b in alike])
            _, after = run_base(model, {"input_ids": torch.from_numpy(ids).to(after.device)}, after)
        done = [(i, m) for i, b in enumerate(alike) for m in b.members if len(rows[m]) == end]
        if done:
            yield [m for _, m in done], after.index([i for i, _ in done])
        parted: list[_Branch] = []
        for i, branch in enumerate(alike):
            by_token: dict[int, list[int]] = {}
            for m in branch.members:
                if len(rows[m]) > end:
                    by_token.setdefault(int(rows[m][end]), []).append(m)
            parted += [_Branch(i, members, end) for members in by_token.values()]
        if parted:
            yield from _run(model, rows, after, parted, cost, segment)


def _shared(rows: Sequence[Ids], start: int) -> int:
    """Up to which position all rows agree, given that they do up to `start`."""
    end = min(map(len, rows))
    for row in rows[1:]:
        differing = np.flatnonzero(row[start:end] != rows[0][start:end])
        end = start + int(differing[0]) if len(differing) else end
    return end
