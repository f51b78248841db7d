"""What every forward of a wrapped model does around its library's own part: marks checked, padding compacted, the
state handed to the layers and collected from them.

B batch, T positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lengthen.errors import InputError
from lengthen.models.binding import layout, state_of, wrapped_layers
from lengthen.models.call import Call, Marks, keep_call_in_checkpoints, running
from lengthen.models.padding import Compaction
from lengthen.models.staggered import Staggered
from lengthen.state import RecurrentState


@dataclass(frozen=True)
class ForwardPass:
    """One forward of a model, from its initial state to its final one. rows: those that the model runs."""

    target: Any
    call: Call
    compaction: Compaction
    rows: int
    lanes: Staggered | None

    @staticmethod
    def begin(
        target: Any,
        inputs: Tensor,
        initial_state: RecurrentState | None,
        reset: Tensor | None,
        attention_mask: Tensor | None,
    ) -> ForwardPass:
        """For inputs [B, T, ...], a state of B rows (None: zero), reset bool [B, T], attention_mask [B, T] (1 real).

        Raises InputError where these do not fit each other or the model.
        """
        rows, positions = inputs.shape[:2]
        if positions == 0:
            raise InputError("The input has no positions; give at least one token.")
        for name, mark in (("reset", reset), ("attention_mask", attention_mask)):
            if mark is not None and tuple(mark.shape) != (rows, positions):
                raise InputError(
                    f"{name} has shape {tuple(mark.shape)}, the input {rows} rows of {positions} positions."
                )
        if initial_state is not None:
            initial_state.require_layout(layout(target))
            if initial_state.rows != rows:
                raise InputError(
                    f"initial_state has {initial_state.rows} rows, the input {rows}; use initial_state.index."
                )
            if initial_state.device != inputs.device:
                initial_state = initial_state.to(inputs.device)
        compaction = Compaction.of(attention_mask, reset)
        lanes, initial_state = Staggered.begin(target, inputs, initial_state, reset)
        lengths = compaction.lengths
        if lanes is not None:
            rows, lengths = rows * lanes.hook.lanes, None if lengths is None else lanes.spread(lengths)
        keep_call_in_checkpoints(target)
        return ForwardPass(target, Call(initial_state, Marks(compaction.reset, lengths)), compaction, rows, lanes)

    def pack(self, x: Tensor) -> Tensor:
        """[B, T, ...] as the model runs it: real positions first, a row for each lane."""
        x = self.compaction.pack(x)
        return x if self.lanes is None else self.lanes.spread(x)

    def unpack(self, x: Any) -> Any:
        """What the model gave for such (or a tuple of it), [B, T, ...] in the order of the input."""
        return self.compaction.unpack(x if self.lanes is None else self.lanes.chosen(x))

    @contextmanager
    def running(self) -> Iterator[None]:
        """The layers run inside see this call; nothing collected after it counts."""
        with running(self.call):
            yield
        self.call.finished = True

    def final_state(self) -> RecurrentState:
        """What the layers ended with. Raises InputError where one was not run, so that it has no final state."""
        missing = [binding.name for binding, _ in wrapped_layers(self.target) if binding.name not in self.call.final]
        if missing:
            raise InputError(
                f"The recurrent layer {missing[0]} was not run in this forward of {type(self.target).__name__}, so that "
                "its state is lost; run every recurrent layer in each forward, or take the layer out."
            )
        collected = self.call.final
        if self.lanes is not None:
            collected = {layer: self.lanes.one_row(state) for layer, state in collected.items()}
        final = state_of(self.target, collected)
        trailing = self.compaction.trailing_reset
        return final if trailing is None else final.zero_rows(trailing)
