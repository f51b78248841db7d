"""One call of a wrapped model: what its recurrent layers read (initial state, resets, lengths) and write (final state).

B batch, T positions. The call reaches the layers through a context variable, not through arguments, so that no wrapper
on the way (mixed precision, data parallel, checkpointing) can cast, scatter or drop it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lengthen.state import LayerState, RecurrentState


class HookInCall(Protocol):
    """A hook (see hooks.py) in one call of one layer."""

    def gates(
        self, log_decay: Tensor, writes: Sequence[Tensor], step: Tensor | None, rates: Tensor | None
    ) -> tuple[Tensor, ...]:
        """The log-decay and the writes that take the place of these."""
        ...

    def read(self, kernel: Callable[..., tuple[Tensor, Tensor]], *inputs: Any, **options: Any) -> tuple[Tensor, Tensor]:
        """What stands for kernel(*inputs, **options)."""
        ...


@dataclass(frozen=True)
class Marks:
    """What positions mean to a recurrence.

    reset: bool [B, T] or None; both states are zero before position t of row b.
    lengths: int64 [B] or None; only the first lengths[b] positions of row b are real, the rest are the identity.
    hook: what changes the recurrence while it runs, or None.
    """

    reset: Tensor | None = None
    lengths: Tensor | None = None
    hook: HookInCall | None = None

    def hooked(
        self, log_decay: Tensor, *writes: Tensor, step: Tensor | None = None, rates: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """log_decay [B, T, ...] and writes [B, T, ...] as the hook changes them, before padding and resets are marked.

        writes: whatever is proportional to what the layer writes. step, rates: as LayerView has them.
        """
        return (log_decay, *writes) if self.hook is None else self.hook.gates(log_decay, writes, step, rates)

    def reading(self, kernel: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
        """The kernel, or what the hook reads in its place."""
        return kernel if self.hook is None else functools.partial(self.hook.read, kernel)

    def real(self, positions: int) -> Tensor | None:
        """bool [B, T]: which positions are real; None where all are."""
        if self.lengths is None:
            return None
        return torch.arange(positions, device=self.lengths.device) < self.lengths[:, None]

    def decay(self, log_decay: Tensor) -> Tensor:
        """log_decay [B, T, ...] with 0 at padding, where a state stays as it is, and -inf at resets."""
        real, trailing = self.real(log_decay.shape[1]), [1] * (log_decay.dim() - 2)
        if real is not None:
            log_decay = log_decay.masked_fill(~real.view(*real.shape, *trailing), 0)
        if self.reset is not None:
            reset = self.reset if real is None else self.reset & real
            log_decay = log_decay.masked_fill(reset.view(*reset.shape, *trailing), float("-inf"))
        return log_decay

    def gain(self, gain: Tensor) -> Tensor:
        """gain [B, T, ...] with 0 at padding, so that nothing of it is written."""
        real = self.real(gain.shape[1])
        return gain if real is None else gain.masked_fill(~real.view(*real.shape, *[1] * (gain.dim() - 2)), 0)


@dataclass
class Call:
    """The state going into one forward pass and the state coming out of it, layer by layer."""

    initial_state: RecurrentState | None
    marks: Marks
    final: dict[str, LayerState] = field(default_factory=dict)
    left: Tensor | None = None  # bool [B, T]: tokens that a hook let leave the layers that follow
    finished: bool = False

    def initial(self, layer: str) -> LayerState | None:
        return None if self.initial_state is None else dict(self.initial_state.tensors[layer])

    def collect(self, layer: str, state: LayerState) -> None:
        """Keeps a layer's final state; a recomputation in the backward pass comes too late to change it."""
        if not self.finished:
            self.final[layer] = state


_current: ContextVar[Call | None] = ContextVar("lengthen_call", default=None)


def current_call() -> Call | None:
    """The call under way, or None where the library's own path runs.

    Raises RuntimeError inside a backward pass without a call: a layer recomputed there would silently start from zero.
    """
    call = _current.get()
    if call is None and torch._C._current_graph_task_id() != -1:
        raise RuntimeError(
            "A recurrent layer was recomputed in the backward pass outside its call, where its initial state is lost; "
            "use the model's own gradient checkpointing (activation_checkpointing_enable) instead of wrapping layers by hand."
        )
    return call


@contextmanager
def running(call: Call) -> Iterator[Call]:
    """Makes this the call under way."""
    token = _current.set(call)
    try:
        yield call
    finally:
        _current.reset(token)


@dataclass(frozen=True)
class CheckpointInCall:
    """The library's checkpointing function, made to recompute a layer inside the call it belongs to."""

    function: Callable[..., Any]

    def __call__(self, layer: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        call = _current.get()
        if call is None:
            return self.function(layer, *args, **kwargs)

        def in_call(*inner: Any, **named: Any) -> Any:
            with running(call):
                return layer(*inner, **named)

        return self.function(in_call, *args, **kwargs)


def keep_call_in_checkpoints(model: nn.Module) -> None:
    """Wraps the checkpointing functions that transformers put on the model's blocks, once each."""
    for module in model.modules():
        function = module.__dict__.get("_gradient_checkpointing_func")
        if function is not None and not isinstance(function, CheckpointInCall):
            module._gradient_checkpointing_func = CheckpointInCall(function)  # type: ignore[assignment]
