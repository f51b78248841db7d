"""Several rows for each sequence, whose periods begin at different times: a hook's lanes.

n sequences, L lanes, L n rows lane by lane, T positions. Outside the model a sequence is one row, as without lanes: its
state holds that of the first lane, and those of the others in a hook's memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lengthen.errors import InputError
from lengthen.models.binding import state_of, wrapped_layers, zero_state
from lengthen.models.hooks import POSITIONS, Hook, lane_name
from lengthen.state import LayerState, RecurrentState


@dataclass(frozen=True)
class Staggered:
    """The lanes of one call. hook: theirs. read: int64 [n, T], the lane whose period began first, for each position."""

    target: Any
    hook: Hook
    read: Tensor

    @staticmethod
    def begin(
        target: Any, inputs: Tensor, state: RecurrentState | None, reset: Tensor | None
    ) -> tuple[Staggered | None, RecurrentState | None]:
        """The lanes that the model's hook asks for, and the state (None: zero) as L n rows; None and the state without.

        Raises InputError for packed rows.
        """
        hook = next((b.hook for b, _ in wrapped_layers(target) if b.hook is not None), None)
        if hook is None or hook.lanes == 1:
            return None, state
        assert hook.period is not None
        if reset is not None:
            raise InputError(f"{hook.name} runs rows of its own, which packed rows cannot; run one sequence a row.")
        state = zero_state(target, len(inputs), inputs.device) if state is None else state
        before = next(iter(state.tensors.values()))[POSITIONS]
        begun = torch.stack([before + offset(hook, lane) for lane in range(hook.lanes)])
        here = torch.arange(inputs.shape[1], device=inputs.device)
        lanes = Staggered(target, hook, ((begun[..., None] + here) % hook.period).argmax(0))
        return lanes, state_of(target, {layer: lanes._rows(dict(named)) for layer, named in state.tensors.items()})

    def spread(self, x: Tensor) -> Tensor:
        """[n, ...] -> [L n, ...], the same for every lane."""
        return x.repeat(self.hook.lanes, *[1] * (x.dim() - 1))

    def chosen(self, x: Any) -> Any:
        """[L n, T, ...] (or a tuple of such) -> [n, T, ...], at each position the lane that is read."""
        if isinstance(x, tuple):
            return tuple(map(self.chosen, x))
        lanes = x.unflatten(0, (self.hook.lanes, -1))
        read = self.read.view(1, *self.read.shape, *[1] * (x.dim() - 2))
        return lanes.gather(0, read.expand(1, *lanes.shape[1:]))[0]

    def one_row(self, state: LayerState) -> LayerState:
        """A layer's state of L n rows as one of n."""
        found: LayerState = {}
        for name, t in state.items():
            first, *others = t.chunk(self.hook.lanes)
            found[name] = first
            if name != POSITIONS:  # the others follow from the first
                found |= {lane_name(lane, name): other for lane, other in enumerate(others, 1)}
        return found

    def _rows(self, state: LayerState) -> LayerState:
        """A layer's state of n rows as one of L n."""
        lanes = range(1, self.hook.lanes)
        found = {POSITIONS: torch.cat([state[POSITIONS] + offset(self.hook, lane) for lane in (0, *lanes)])}
        for name, t in state.items():
            if lane_name(1, name) in state:
                found[name] = torch.cat([t, *(state[lane_name(lane, name)] for lane in lanes)])
        return found


def offset(hook: Hook, lane: int) -> int:
    """How many tokens a lane's period begins before that of the first."""
    assert hook.period is not None
    return lane * hook.period // hook.lanes
