"""What may be done to a model's recurrence while it runs: the hooks' protocol.

B rows, T positions, H heads. One Hook serves all recurrent layers of a model, which it tells apart by LayerView; it is
put on and taken off by hooked_layers.hooked. A hook acts wherever the model reads a token, in one run, in segments and
token by token alike, and leaves attention alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from lengthen.state import LayerState, TensorSpec

QUANTITIES = {
    "decay": "the decay of each token",
    "offset": "the log-decay common to all that a head or channel keeps",
    "gain": "the gain on what a token writes",
    "step": "the step size, by which a token decays and writes alike",
    "read": "the read of keys and values",
}
"""What a hook may need of a layer (LayerKind.quantities says what it has): name -> in words."""

MEMORY = "hook."
"""How the names of tensors begin that a hook keeps in a layer's state."""
MEMORY_SPEC = TensorSpec("window", noise=False)
POSITIONS = MEMORY + "positions"
"""int64 [B], in the state of every layer under a hook with a period: how many tokens its rows have read."""


@dataclass
class LayerView:
    """What a hook sees of one layer in one call.

    layer: its name in the model. kind: of LayerKind. specs: what its state's tensors are.
    real: bool [B, T] or None; the positions that are not padding, all where None.
    step: what its step sizes are, [B, T, H] or [B, T, D], after softplus; None where it has none.
    rates: [D, N], negative, where a channel's N states decay at rates of their own: log_decay [B, T, D] is then that of
    a state at rate -1, and that of state n is -rates[:, n] times it. None where log_decay is the layer's own.
    memory: the hook's own tensors for this layer, batch first, zeros at a row's start. A hook puts another tensor in an
    entry's place, never changes one; it is carried with the state.
    """

    layer: str
    kind: str
    specs: Mapping[str, TensorSpec]
    real: Tensor | None
    memory: LayerState
    step: Tensor | None = None
    rates: Tensor | None = None
    left: Tensor | None = field(default=None, repr=False)

    def leave(self, tokens: Tensor) -> None:
        """Tokens (bool [B, T]) that this layer skips and that later layers never see, for a hook with whole_prompt.

        Skipping keeps a state bit for bit. What later layers add to such a token is zero.
        """
        self.left = tokens


class Hook:
    """What a method does to recurrent layers; as it stands here, nothing at all.

    name: of the method, for messages. uses: of QUANTITIES, what it needs every recurrent layer to have.
    period: `between` is called wherever a row has read a multiple of so many tokens; None for never.
    lanes: rows that run for each sequence, with states of their own and periods that begin a share of one apart; what the
    one whose period began first gives is read. More than one needs a period.
    whole_prompt: whether what it does to a token depends on those after it, so that a prompt must be one call and
    losses of a text mean nothing; stream() refuses it.
    chunk: tokens of each row that a prompt becomes, a part of its text with the introduction before it and the question
    after it, of which one is answered from; None for prompts as they are. Only tasks know of a question.
    """

    name: str = "identity"
    uses: frozenset[str] = frozenset()
    period: int | None = None
    lanes: int = 1
    whole_prompt: bool = False
    chunk: int | None = None

    def gates(self, view: LayerView, log_decay: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        """The decay and the gain that take the place of these, of the same shapes.

        log_decay: [B, T, H], [B, T, H, K] or [B, T, D], at most 0, at least float32; -inf forgets all before.
        gain: ones, of log_decay's shape, or [B, T, H] where a head has one gain; times what the layer writes.
        Both 0 skip a token: the state stays what it is, bit for bit. Padding and resets come after the hook.
        """
        return log_decay, gain

    def between(self, view: LayerView, state: LayerState) -> LayerState:
        """The state that takes the place of this one at a multiple of `period`; rows elsewhere keep theirs.

        Also called for layers that have a window alone, such as a channel mix.
        """
        return state

    def read(
        self, view: LayerView, kernel: Callable[..., tuple[Tensor, Tensor]], *inputs: Any, **options: Any
    ) -> tuple[Tensor, Tensor]:
        """What stands for kernel(query, key, value, log_decay, input_gain or None, **options): output and final state.

        kernel: ssd or gated_linear_attention. log_decay and input_gain have padding and resets in them.
        """
        return kernel(*inputs, **options)

    def memory(self, layer: str, zero: LayerState) -> LayerState:
        """The zeros that view.memory starts from, batch first, for a layer with this zero state; none unless said.

        zero: of a layer with a recurrent state; a channel mix has a window alone, and no memory.
        """
        return {}


def memory_of(hook: Hook, layer: str, zero: LayerState, specs: Mapping[str, TensorSpec]) -> LayerState:
    """What a hook keeps in the state of the layer with this zero state.

    The hook's memory, positions for a period, and whatever one row keeps for each lane but the first.
    """
    memory: LayerState = {}
    if is_recurrent(zero, specs):
        memory = {MEMORY + name: tensor for name, tensor in hook.memory(layer, zero).items()}
    lanes = range(1, hook.lanes)
    memory |= {lane_name(lane, name): tensor for lane in lanes for name, tensor in (zero | memory).items()}
    if hook.period is not None:
        some = next(iter(zero.values()))
        memory[POSITIONS] = torch.zeros(some.shape[0], dtype=torch.long, device=some.device)
    return memory


def lane_name(lane: int, name: str) -> str:
    """What a tensor of a state is called that is another lane's than the first."""
    return f"{MEMORY}lane{lane}.{name}"


def is_recurrent(state: LayerState, specs: Mapping[str, TensorSpec]) -> bool:
    """Whether a layer with this state has more than a window."""
    return any(specs[name].kind == "recurrent" for name in state)
