"""A recurrence that knows neither resets nor padding, run in pieces between them.

B rows, T positions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from lengthen.errors import InputError
from lengthen.models.call import Marks
from lengthen.state import LayerState


def run_in_pieces(
    run: Callable[[Tensor, LayerState], tuple[Tensor, LayerState]], x: Tensor, state: LayerState, marks: Marks
) -> tuple[Tensor, LayerState]:
    """run(x [B, T, ...], state) -> (y [B, T, ...], state), cut wherever a row is reset or ends.

    A row's state is zero where it is reset, and stays what it is, bit for bit, from its last real position on.
    Raises InputError where rows or positions are not those of the call.
    """
    rows, positions = x.shape[:2]
    expected = next(iter(state.values())).shape[0]
    if rows != expected or (marks.reset is not None and marks.reset.shape != (rows, positions)):
        known = f"{expected} rows" if marks.reset is None else f"{len(marks.reset)} rows of {marks.reset.shape[1]}"
        raise InputError(
            f"A recurrent layer was given {rows} rows of {positions} positions, but the model has {known}; let the "
            "model's inputs be [rows, positions, ...] and keep both up to the layer."
        )
    cuts = {0, positions}
    if marks.reset is not None:
        cuts |= set(marks.reset.any(0).nonzero().flatten().tolist())
    if marks.lengths is not None:
        cuts |= set(marks.lengths.tolist())
    outputs = []
    for low, high in itertools.pairwise(sorted(cuts)):
        if marks.reset is not None:
            state = {name: t.masked_fill(_per_row(marks.reset[:, low], t), 0) for name, t in state.items()}
        y, after = run(x[:, low:high], state)
        if marks.lengths is not None:
            ended = marks.lengths <= low
            after = {name: torch.where(_per_row(ended, t), state[name], t) for name, t in after.items()}
        state = after
        outputs.append(y)
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, 1), state


def _per_row(mask: Tensor, t: Tensor) -> Tensor:
    return mask.view(-1, *[1] * (t.dim() - 1))
