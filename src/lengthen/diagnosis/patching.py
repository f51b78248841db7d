"""State patching: which layer's state the excess loss comes from.

At a position far past T, one layer's state is replaced by that of a run which began T tokens earlier: it has seen the
same last tokens, and no more than training shows. What of the excess loss over the next T tokens goes away is that
layer's share; the excess is what goes away when every layer is replaced. Attention keeps what it saw. A layer's share
includes its windows, a head's doesn't: heads need not add up to their layer, nor layers to the whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from lengthen.diagnosis.confidence import mean_and_stderr
from lengthen.diagnosis.pieces import Pieces
from lengthen.errors import InputError
from lengthen.models import SequenceState
from lengthen.results import Patch, Patching
from lengthen.state import RecurrentState, TensorSpec, heads_of
from lengthen.streaming import Progress, Tokens, stream

Choice = Callable[[str, TensorSpec, Tensor, Tensor], Tensor]
"""What stands in a layer's tensor: (layer, spec, carried, donor) -> tensor."""


def state_patching(
    model: nn.Module,
    tokens: Tokens,
    train_context: int,
    position: int,
    state: RecurrentState,
    *,
    segment: int | None = None,
    progress: Progress | None = None,
) -> Patching:
    """Replaces the state of each layer, then of each head of the layer with the largest share.

    tokens: [n, at least position + T + 1]. state: of the same sequences before input `position`, carried from their
    start. Raises InputError for a position below T or too close to the tokens' end.
    """
    end = position + train_context
    if position < train_context or end + 1 > tokens.shape[1]:
        raise InputError(
            f"States cannot be patched at {position}: {train_context} tokens are needed before it, and as many after "
            f"among the {tokens.shape[1]}."
        )
    *_, run = stream(model, Pieces(tokens, [position - train_context], train_context), segment=segment)
    donor, rest = run.final_state, Pieces(tokens, [position], train_context)
    heads = {layer: _heads(state, layer) for layer in state.tensors}
    todo, done = 2 + len(heads) + max(heads.values()), 0

    def losses(choice: Choice) -> NDArray[np.float64]:
        """Mean loss [n] from the state so patched."""
        nonlocal done
        patched = state.map_named(
            lambda layer, name, t, spec: choice(layer, spec, t, donor.tensors[layer][name].to(t.device))
        )
        if isinstance(state, SequenceState):
            patched = SequenceState(patched, state.attention)
        total = sum(part.losses.double().sum(1) for part in stream(model, rest, segment=segment, initial_state=patched))
        done += 1
        if progress is not None:
            progress(done, todo)
        assert isinstance(total, Tensor)
        return total.div(train_context).cpu().numpy()

    carried = losses(lambda layer, spec, t, d: t)
    excess = carried - losses(lambda layer, spec, t, d: d)

    def patch(layer: str, head: int | None) -> Patch:
        removed = carried - losses(
            lambda at, spec, t, d: t if at != layer else d if head is None else _mixed(t, d, spec, head)
        )
        with np.errstate(divide="ignore", invalid="ignore"):  # without excess there are no shares
            share = float(removed.mean() / excess.mean())
            _, stderr = mean_and_stderr(removed - share * excess)  # of a ratio of means, by the delta method
            return Patch(layer, head, share, float(np.abs(stderr / excess.mean())))

    layers = _ranked([patch(layer, None) for layer in heads])
    first = layers[0].layer
    inside = _ranked([patch(first, head) for head in range(heads[first])]) if heads[first] > 1 else []
    if progress is not None:  # the layer may have fewer heads than the one that has most
        progress(todo, todo)
    return Patching(position, end, *mean_and_stderr(excess), len(carried), layers + inside)


def _heads(state: RecurrentState, layer: str) -> int:
    """How many heads a layer's state has; 1 where its recurrent tensors do not agree on them."""
    counts = {
        heads_of(t, spec).shape[1]
        for name, t in state.tensors[layer].items()
        if (spec := state.specs[layer][name]).kind == "recurrent"
    }
    return counts.pop() if len(counts) == 1 else 1


def _mixed(carried: Tensor, donor: Tensor, spec: TensorSpec, head: int) -> Tensor:
    """The carried tensor with one head of the donor's; a window, which has no heads, stays."""
    if spec.kind == "window" or spec.head_axis is None:
        return carried
    mixed = carried.clone()
    mixed.select(spec.head_axis, head).copy_(donor.select(spec.head_axis, head))
    return mixed


def _ranked(patches: list[Patch]) -> list[Patch]:
    """The largest share first, those that are no number last."""
    return sorted(patches, key=lambda patch: -math.inf if math.isnan(patch.share) else patch.share, reverse=True)
