"""How long each head remembers: the tokens after which a random difference in its state has shrunk to 1/e.

Measured on the model as it runs, so that it holds for every family, its decays explicit or not: of a layer, the inputs
do not depend on its own state, so that what a difference put into one layer's state loses there is what the layer
forgets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from lengthen.diagnosis.confidence import mean_and_stderr
from lengthen.diagnosis.pieces import Pieces, rows_together
from lengthen.errors import InputError
from lengthen.models import zero_state
from lengthen.results import Forgetting
from lengthen.state import RecurrentState, TensorSpec, heads_of
from lengthen.streaming import Tokens, stream

HORIZON = 4
"""Training contexts over which the decay is followed; a slower one is extrapolated."""
ROWS = 64
SMALLEST = 1e-4
"""A decay (in log) below which float32 cannot tell it from none."""


def forgetting_times(
    model: nn.Module,
    tokens: Tokens,
    train_context: int,
    *,
    seed: int = 0,
    segment: int | None = None,
) -> list[Forgetting]:
    """Each head's forgetting time, from tokens [n, at least 2 T + 1], over up to four of the sequences.

    After T tokens the state of one layer at a time gets a Gaussian difference of its own size (where noise may stand),
    and both runs go on over the same tokens. Raises InputError for tokens that do not reach 2 T.
    """
    length = min(tokens.shape[1] - 1 - train_context, HORIZON * train_context)
    if length < train_context:
        raise InputError(
            f"Forgetting is measured past {2 * train_context} positions, but the sequences have {tokens.shape[1] - 1}; "
            "give longer ones."
        )
    random = torch.Generator().manual_seed(seed)
    layers = list(zero_state(model, 1, "meta").tensors)
    n = min(tokens.shape[0], max(1, rows_together(model, ROWS) // (len(layers) + 1)), 4)
    *_, settled = stream(model, Pieces(tokens, [0], train_context, sequences=n), segment=segment)
    state = settled.final_state.map(lambda t, _: t)  # without what attention saw
    started = RecurrentState.concatenate([state, *(_disturbed(state, layer, random) for layer in layers)])
    followed = Pieces(tokens, [train_context], length, sequences=n, times=len(layers) + 1)
    at = sorted({*(1 << k for k in range(32) if 1 << k < length), length})
    before, decays = _differences(started, layers, n), []
    for part in stream(model, followed, segment=segment, cuts=at, initial_state=started):
        if part.end in at:
            after = _differences(part.final_state, layers, n)
            decays.append({key: (after[key] / before[key]).log() for key in before})
    found = []
    for layer, tensor in before:
        curves = torch.stack([decay[layer, tensor] for decay in decays], -1).tolist()  # [n, H, cuts]
        for head in range(len(curves[0])):
            times = [_crossing(at, curves[row][head]) for row in range(n)]
            known = [time for time in times if time is not None]
            mean, stderr = mean_and_stderr(np.array(known)) if len(known) == n else (None, None)
            found.append(Forgetting(layer, tensor, head, mean, stderr, n))
    return found


def _disturbed(state: RecurrentState, layer: str, random: torch.Generator) -> RecurrentState:
    """The state with a Gaussian difference, of the size of its entries, in one layer's tensors."""

    def disturb(name: str, _: str, t: Tensor, spec: TensorSpec) -> Tensor:
        if name != layer or not _is_measured(spec):
            return t
        size = heads_of(t, spec).double().square().mean((0, 2)).sqrt().clamp_min(1e-3)
        axis = spec.head_axis or 0
        shape = [-1 if i == axis and spec.head_axis is not None else 1 for i in range(t.dim())]
        noise = torch.randn(t.shape, generator=random, dtype=torch.float64).to(t)
        return t + size.to(t).view(shape) * noise

    return state.map_named(disturb)


def _differences(state: RecurrentState, layers: Sequence[str], n: int) -> dict[tuple[str, str], Tensor]:
    """(layer, tensor) -> [n, H]: how far the rows with a difference in that layer are from those without."""
    found = {}
    for i, layer in enumerate(layers):
        for name, tensor in state.tensors[layer].items():
            spec = state.specs[layer][name]
            if _is_measured(spec):
                entries = heads_of(tensor, spec).double().cpu()
                found[layer, name] = (entries[(i + 1) * n : (i + 2) * n] - entries[:n]).norm(dim=-1)
    return found


def _is_measured(spec: TensorSpec) -> bool:
    return spec.kind == "recurrent" and spec.noise


def _crossing(positions: Sequence[int], decays: Sequence[float]) -> float | None:
    """Where a log decay first reaches -1, from its values at these positions; None where it does not decay."""
    before = (0.0, 0.0)
    for position, decay in zip(positions, decays):
        if decay <= -1:
            return before[0] + (position - before[0]) * (-1 - before[1]) / (max(decay, -1e3) - before[1])
        before = (position, decay)
    return before[0] / -before[1] if before[1] < -SMALLEST else None
