"""What generate() carries from step to step where a library's own cache cannot: the state of lengthen's own forward."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from lengthen.state import RecurrentState


class StateCache:
    """A state in the place of a library's cache: handed out by one step of generate(), given to the next."""

    is_compileable = False
    is_croppable = False

    def __init__(self, state: RecurrentState, positions: int) -> None:
        self.state = state
        self.positions = positions

    @staticmethod
    def of(cache: Any) -> StateCache | None:
        """The cache that a call was given; None for none, or for a library's that nothing has filled yet.

        Raises TypeError for a library's cache that holds something.
        """
        if isinstance(cache, StateCache):
            return cache
        if cache is None or _is_empty(cache):
            return None
        raise TypeError(
            f"A {type(cache).__name__} that the library filled was given, which lengthen cannot go on from; start from "
            "the first token, or give initial_state."
        )

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The number of positions behind the state."""
        return self.positions

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Puts the rows that beam search goes on with in the place of the old ones."""
        self.state = self.state.index(beam_idx)


def _is_empty(cache: Any) -> bool:
    """Whether nothing has filled a library's cache, which counts no positions where all its layers are recurrent."""
    filled = [v for layer in getattr(cache, "layers", ()) for v in getattr(layer, "has_previous_state", {}).values()]
    return not any(filled) if filled else cache.get_seq_length() == 0
