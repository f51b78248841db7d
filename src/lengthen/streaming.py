"""Running a wrapped model over a sequence of any length, segment by segment, in memory that does not grow.

n sequences stream side by side; positions count from 0 at the start of the sequence, never of a segment.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from lengthen.errors import InputError
from lengthen.models.binding import is_language_model, library_model, sequence_start, weights_fingerprint
from lengthen.models.head import token_losses
from lengthen.models.hooked_layers import require_no_chunks, whole_prompt_hook
from lengthen.models.language_models import run_base
from lengthen.models.plain_modules import prediction_loss_name, prediction_losses
from lengthen.models.wrapping import require_wrapped
from lengthen.state import RecurrentState

SEGMENT = 2048
"""Positions a call at most: a multiple of the kernels' chunk, and below what overflows 32-bit offsets on a GPU."""
CPU_TOKENS = 4096
"""Tokens a call on a CPU, where temporaries beyond the cache cost more than calls do."""


class Tokens(Protocol):
    """Tokens [n, L + 1] or frames [n, L + 1, ...]: a tensor, an array, or what gives columns as one.

    The target of a position is the next position's value, or what an attribute `targets` [n, L, ...] says, as that of
    data.HeldOutSequences does for data with targets of their own; position L is not looked at then.
    """

    @property
    def shape(self) -> Sequence[int]: ...

    def __getitem__(self, key: tuple[slice, slice], /) -> Any: ...


Progress = Callable[[int, int], None]
"""Called with what is done and what there is to do."""


@dataclass(frozen=True)
class Segment:
    """Positions [start, start + S) of n sequences: loss[i, s] of predicting token start + s + 1, and the final state."""

    start: int
    losses: Tensor
    final_state: RecurrentState

    @property
    def end(self) -> int:
        return self.start + self.losses.shape[1]


def stream(
    model: nn.Module,
    tokens: Tokens,
    *,
    segment: int | None = None,
    cuts: Sequence[int] = (),
    initial_state: RecurrentState | None = None,
    start: int = 0,
) -> Iterator[Segment]:
    """Runs the model over tokens [n, L + 1] (or frames) and yields the L losses segment by segment, the state carried.

    segment: positions a call, best a multiple of 64 (segment_for's choice unless said). cuts: further positions at
    which a segment ends, so that the state before them can be seen. initial_state, start: go on where an earlier
    stream stopped, at position start; a state marked with its weights (by with_weights) is refused by other weights.
    Each boundary position is counted once: the target of a segment's last input is the next segment's first.
    Raises InputError if there is no token to predict, or under a hook that must see a whole prompt.
    """
    require_streamable(model)
    length = tokens.shape[1] - 1
    if length < 1:
        raise InputError(f"A sequence of {tokens.shape[1]} tokens has nothing to predict; give at least two.")
    if segment is not None and segment < 1:
        raise InputError(f"A segment of {segment} positions cannot be run; give at least 1.")
    if initial_state is not None and initial_state.weights is not None:
        initial_state.require_weights(weights_fingerprint(model))
    segment = segment or segment_for(model, tokens.shape[0])
    with evaluating(model):
        for part in _stream(model, tokens, 0, length, segment, [c - start for c in cuts], initial_state):
            yield Segment(start + part.start, part.losses, part.final_state)


def _stream(
    model: nn.Module,
    tokens: Tokens,
    first: int,
    last: int,
    segment: int,
    cuts: Sequence[int],
    state: RecurrentState | None,
) -> Iterator[Segment]:
    """Positions [first, last) of the tokens, segment by segment from this state."""
    edges = sorted({*range(first, last, segment), last, *(c for c in cuts if first < c < last)})
    for low, high in itertools.pairwise(edges):
        losses, state = losses_of(model, *inputs_and_targets(model, tokens, low, high), state)
        yield Segment(low, losses, state)


def inputs_and_targets(model: nn.Module, tokens: Tokens, low: int, high: int) -> tuple[Tensor, Tensor]:
    """Positions [low, high) as the model takes them, and what each should give: both [n, high - low, ...]."""
    parameter = next(model.parameters())

    def taken(values: Any) -> Tensor:
        values = torch.as_tensor(values).to(parameter.device)
        return values if values.is_floating_point() else values.long()

    own = getattr(tokens, "targets", None)
    values = taken(tokens[:, low : high + (own is None)])
    inputs, targets = (values[:, :-1], values[:, 1:]) if own is None else (values, taken(own[:, low:high]))
    return (inputs.to(parameter.dtype) if inputs.is_floating_point() else inputs), targets


def losses_of(
    model: nn.Module, inputs: Tensor, targets: Tensor, initial_state: RecurrentState | None = None
) -> tuple[Tensor, RecurrentState]:
    """Losses [n, S] and final state of one segment: inputs [n, S, ...] and what they should give, [n, S, ...]."""
    target = library_model(model)
    if not is_language_model(model):
        output = target(inputs, initial_state=initial_state)
        return prediction_losses(target, output.predictions, targets), output.final_state
    base, final_state = run_base(model, {"input_ids": inputs}, initial_state)
    return token_losses(target, base[0], targets), final_state


def loss_name(model: nn.Module, tokens: Tokens) -> str:
    """What losses_of takes the loss of such tokens to be: cross-entropy, mean squared error, or the model's own loss."""
    return (
        "cross-entropy"
        if is_language_model(model)
        else prediction_loss_name(model, inputs_and_targets(model, tokens, 0, 1)[1])
    )


def reset_losses(
    model: nn.Module, tokens: Tokens, period: int, *, segment: int | None = None
) -> Iterator[tuple[int, Tensor]]:
    """The losses of the same tokens with the state zeroed before inputs k * period: (start, losses [n, S]) in order.

    segment: positions of each sequence a call. Periods that fit into a segment are rows of their own from the zero
    state, which equals a reset exactly; a longer one is streamed. Memory does not grow with the length.
    """
    require_streamable(model)
    n, length = tokens.shape[0], tokens.shape[1] - 1
    segment = segment or segment_for(model, n)
    together = segment // period * period
    with evaluating(model):
        for low in range(0, length, together or period):
            high = min(length, low + (together or period))
            if not together:
                for part in _stream(model, tokens, low, high, segment, (), None):
                    yield part.start, part.losses
                continue
            whole = (high - low) // period * period
            for start, end in ((low, low + whole), (low + whole, high)):
                if start < end:
                    size = min(period, end - start)
                    parts = inputs_and_targets(model, tokens, start, end)
                    inputs, targets = (p.reshape(-1, size, *p.shape[2:]) for p in parts)
                    losses, _ = losses_of(model, inputs, targets)
                    yield start, losses.view(n, end - start)


def require_streamable(model: nn.Module) -> None:
    """Raises InputError where the model is not wrapped, or runs under a hook that needs a whole prompt or a question."""
    require_wrapped(model)
    require_no_chunks(model)
    hook = whole_prompt_hook(model)
    if hook is not None:
        raise InputError(
            f"{hook.name} must see the whole prompt before its first token is run, so that no loss of a text read token "
            "by token can be had under it; judge it by tasks instead."
        )


def segment_for(model: nn.Module, n: int) -> int:
    """Positions a call for n sequences: SEGMENT, on a CPU fewer where many sequences stream side by side."""
    if next(model.parameters()).device.type != "cpu":
        return SEGMENT
    return max(64, min(SEGMENT, CPU_TOKENS // n // 64 * 64))


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; the model's own mode comes back afterwards."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(training)


def generate(
    model: Any, prompt: Tensor, count: int, *, initial_state: RecurrentState | None = None, segment: int = SEGMENT
) -> tuple[Tensor, RecurrentState]:
    """Greedy continuation of prompt [n, S] by `count` tokens, the prompt streamed: ([n, count], final state).

    Under a hook that must see a whole prompt, the prompt is one call; one that needs a question apart from the text is
    refused where there is no initial state, to which tasks have come by it.
    """
    require_wrapped(model)
    if initial_state is None:
        require_no_chunks(model)
    segment = segment if whole_prompt_hook(model) is None else max(prompt.shape[1], 1)
    state: RecurrentState = initial_state or sequence_start(model, prompt.shape[0])
    made = []
    with evaluating(model):
        for low in range(0, prompt.shape[1], segment):
            output = model(input_ids=prompt[:, low : low + segment], initial_state=state, logits_to_keep=1)
            state = output.final_state
        for i in range(count):
            token = output.logits[:, -1].argmax(-1, keepdim=True)
            made.append(token)
            if i + 1 < count:
                output = model(input_ids=token, initial_state=state)
                state = output.final_state
    return torch.cat(made, dim=1), state
