"""Running a model's recurrent layers under a hook: putting it on and taking it off, and one layer's call with it.

B rows, T positions.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from lengthen.errors import InputError
from lengthen.models.binding import LayerBinding, library_model, wrapped_layers
from lengthen.models.call import Call, Marks
from lengthen.models.families import KINDS
from lengthen.models.family import LayerKind
from lengthen.models.hooks import MEMORY, POSITIONS, QUANTITIES, Hook, LayerView, is_recurrent, memory_of
from lengthen.models.padding import Compaction
from lengthen.state import LayerState

# -- on and off ---------------------------------------------------------------------------------------------------


@contextmanager
def hooked(model: nn.Module, hook: Hook) -> Iterator[None]:
    """Runs a wrapped model's recurrent layers under a hook for as long as this lasts; the weights stay as they are.

    A hook with a memory or a period carries it in the state: states made without it are refused then.
    Raises InputError where the model is not wrapped, runs under a hook already, or has a layer without what it needs.
    """
    for binding, layer in hookable_layers(model):
        if binding.hook is not None:
            raise InputError(
                f"The model runs under {binding.hook.name} already; take it off before {hook.name} is put on."
            )
        require_quantities(hook.name, hook.uses, binding, layer)
        if not getattr(layer, "batch_first", True):
            raise InputError(
                f"{hook.name} cannot run on {binding.name}, whose inputs are [positions, rows, ...]; build the layer with "
                "batch_first=True."
            )
    with hooks_replaced(model, lambda _: hook):
        yield


@contextmanager
def hooks_replaced(model: nn.Module, replacement: Callable[[Hook | None], Hook]) -> Iterator[None]:
    """Runs every wrapped layer under what `replacement` makes of its hook, for as long as this lasts."""
    layers: list[tuple[LayerBinding, Any]] = list(wrapped_layers(library_model(model)))
    placed: list[tuple[Hook | None, Hook, Any]] = []
    try:
        for binding, layer in layers:
            hook = replacement(binding.hook)
            layer._lengthen = replace(binding, hook=hook)
            placed.append((binding.hook, hook, layer))
        yield
    finally:
        for before, hook, layer in placed:
            binding = layer.__dict__.get("_lengthen")
            if binding is not None and binding.hook is hook:
                layer._lengthen = replace(binding, hook=before)


def hookable_layers(model: nn.Module) -> list[tuple[LayerBinding, Any]]:
    """The wrapped layers with a recurrent state, in the model's order. Raises InputError where there is none."""
    found = []
    for binding, layer in wrapped_layers(library_model(model)):
        kind = KINDS[binding.kind]
        if is_recurrent(kind.zero_state(layer, 1, torch.device("meta"), torch.float32), kind.specs_of(layer)):
            found.append((binding, layer))
    if not found:
        raise InputError(f"{type(library_model(model)).__name__} is not wrapped; call lengthen.wrap(model) first.")
    return found


def whole_prompt_hook(model: nn.Module) -> Hook | None:
    """The hook that the model runs under, if it must see a whole prompt at once."""
    return next((hook for hook in _hooks(model) if hook.whole_prompt), None)


def chunking_hook(model: nn.Module) -> Hook | None:
    """The hook that the model runs under, if it answers from one of several chunks of a prompt."""
    return next((hook for hook in _hooks(model) if hook.chunk is not None), None)


def require_no_chunks(model: nn.Module) -> None:
    """Raises InputError where the model runs under a hook that needs a question apart from the text, and there is none."""
    hook = chunking_hook(model)
    if hook is not None:
        raise InputError(
            f"{hook.name} needs a question apart from the text that it is about, which there is none of here; judge it by "
            "tasks that have one, such as passkey."
        )


def _hooks(model: nn.Module) -> Iterator[Hook]:
    return (b.hook for b, _ in wrapped_layers(library_model(model)) if b.hook is not None)


def require_quantities(name: str, uses: frozenset[str], binding: LayerBinding, layer: nn.Module) -> None:
    """Raises InputError where a layer lacks one of QUANTITIES that the method of this name uses."""
    for quantity in QUANTITIES:
        if quantity in uses and quantity not in KINDS[binding.kind].quantities:
            raise InputError(
                f"{name} changes {QUANTITIES[quantity]}, but {binding.name} ({type(layer).__name__}) has none; choose "
                "another method for this model."
            )


# -- one layer's call ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _HookInCall:
    """A hook and what it sees of one layer, as the layer's family calls it through its marks."""

    hook: Hook
    view: LayerView

    def gates(
        self, log_decay: Tensor, writes: Sequence[Tensor], step: Tensor | None, rates: Tensor | None
    ) -> tuple[Tensor, ...]:
        self.view.step, self.view.rates = step, rates
        shape = min((log_decay.shape, *(write.shape for write in writes)), key=len)
        log_decay, gain = self.hook.gates(self.view, log_decay, log_decay.new_ones(shape))
        if self.view.left is not None:
            log_decay, gain = (t.masked_fill(_spread(self.view.left, t), 0) for t in (log_decay, gain))
        return log_decay, *((write * _spread(gain, write)).to(write.dtype) for write in writes)

    def read(self, kernel: Callable[..., tuple[Tensor, Tensor]], *inputs: Any, **options: Any) -> tuple[Tensor, Tensor]:
        return self.hook.read(self.view, kernel, *inputs, **options)


def run_hooked(
    layer: Any, binding: LayerBinding, hook: Hook, x: Tensor, call: Call, further: dict[str, Any]
) -> tuple[Any, LayerState]:
    """One layer over one segment under its hook: x [B, T, ...] -> (what its family gives, final state with memory)."""
    kind, marks, left = KINDS[binding.kind], call.marks, call.left
    state = call.initial(binding.name)
    if state is None:
        zero = kind.zero_state(layer, x.shape[0], x.device, torch.promote_types(x.dtype, torch.float32))
        own, memory = None, memory_of(hook, binding.name, zero, kind.specs_of(layer))
    else:
        own = {name: t for name, t in state.items() if not name.startswith(MEMORY)}
        memory = {name: t for name, t in state.items() if name.startswith(MEMORY)}
    run = _Run(layer, binding, kind, hook)
    if left is None:
        y, own, memory, call.left = run.over(x, own, memory, marks, further)
        return y, {**own, **memory}
    if marks.reset is not None:
        raise InputError(f"{hook.name} lets tokens leave, which packed rows cannot; run one sequence a row.")
    real = marks.real(x.shape[1])
    compaction = Compaction.of(~left if real is None else ~left & real, None)
    y, own, memory, further_left = run.over(compaction.pack(x), own, memory, Marks(lengths=compaction.lengths), further)
    y = compaction.unpack(y)
    if further_left is not None:
        call.left = left | compaction.unpack(further_left)
    return y.masked_fill(_spread(left, y), 0), {**own, **memory}


@dataclass(frozen=True)
class _Run:
    """A layer under its hook in one call."""

    layer: Any
    binding: LayerBinding
    kind: LayerKind
    hook: Hook

    def over(
        self, x: Tensor, own: LayerState | None, memory: LayerState, marks: Marks, further: dict[str, Any]
    ) -> tuple[Any, LayerState, LayerState, Tensor | None]:
        """Output, state and memory after x [B, T, ...], cut where `between` is due or a row's memory starts anew.

        And which tokens leave, bool [B, T], or None.
        """
        rows, positions = x.shape[:2]
        due, counted = _due(self.hook.period, memory, marks, rows, positions)
        cuts = {0, positions}
        if due is not None:
            cuts |= set(due.any(0).nonzero().flatten().tolist())
        if memory and marks.reset is not None:
            cuts |= set(marks.reset.any(0).nonzero().flatten().tolist())
        outputs: list[Any] = []
        left = None
        for low, high in itertools.pairwise(sorted(cuts)):
            if marks.reset is not None:
                memory = {name: t.masked_fill(_spread(marks.reset[:, low], t), 0) for name, t in memory.items()}
            piece = _piece(marks, low, high)
            view = LayerView(
                self.binding.name,
                self.binding.kind,
                self.kind.specs_of(self.layer),
                piece.real(high - low),
                {name.removeprefix(MEMORY): t for name, t in memory.items() if name != POSITIONS},
            )
            if due is not None and own is not None and bool(due[:, low].any()):
                before, kept = own, dict(view.memory)
                own = _where(due[:, low], self.hook.between(view, dict(own)), before)
                view.memory = _where(due[:, low], view.memory, kept)
            named = {name: _part(value, rows, positions, low, high) for name, value in further.items()}
            hook = _HookInCall(self.hook, view)
            y, own = self.kind.forward(self.layer, x[:, low:high], own, replace(piece, hook=hook), **named)
            memory = {MEMORY + name: t for name, t in view.memory.items()}
            if view.left is not None:
                left = torch.zeros(rows, positions, dtype=torch.bool, device=x.device) if left is None else left
                left[:, low:high] = view.left
            outputs.append(y)
        if own is None:
            raise AssertionError("a call has at least one position")
        if counted is not None:
            memory[POSITIONS] = counted
        return outputs[0] if len(outputs) == 1 else self._joined(outputs), own, memory, left

    def _joined(self, outputs: list[Any]) -> Any:
        if isinstance(self.layer, nn.RNNBase):  # output and hx, which is that of the last piece
            return torch.cat([y for y, _ in outputs], 1), outputs[-1][1]
        if isinstance(outputs[0], tuple):
            return tuple(torch.cat(parts, 1) for parts in zip(*outputs))
        return torch.cat(outputs, 1)


def _due(
    period: int | None, memory: LayerState, marks: Marks, rows: int, positions: int
) -> tuple[Tensor | None, Tensor | None]:
    """bool [B, T]: before which positions `between` is due, and int64 [B]: what the rows have read after them."""
    if period is None:
        return None, None
    before = memory[POSITIONS]
    here = torch.arange(positions, device=before.device)
    read = before[:, None] + here
    if marks.reset is not None:
        last = torch.where(marks.reset, here, -1).cummax(1).values
        read = torch.where(last < 0, read, here - last)
    due = (read % period == 0) & (read > 0)
    after = torch.cat([before[:, None], read + 1], 1)
    if marks.lengths is None:
        return due, after[:, -1]
    return due & (here < marks.lengths[:, None]), after.gather(1, marks.lengths[:, None])[:, 0]


def _piece(marks: Marks, low: int, high: int) -> Marks:
    """The marks of positions [low, high)."""
    return Marks(
        None if marks.reset is None else marks.reset[:, low:high],
        None if marks.lengths is None else (marks.lengths - low).clamp(0, high - low),
    )


def _part(value: Any, rows: int, positions: int, low: int, high: int) -> Any:
    """Positions [low, high) of what is given for each position; anything else as it is."""
    given = isinstance(value, Tensor) and value.shape[:2] == (rows, positions)
    return value[:, low:high] if given else value


def _where(rows: Tensor, one: LayerState, other: LayerState) -> LayerState:
    return {name: torch.where(_spread(rows, t), t, other[name]) for name, t in one.items()}


def _spread(t: Tensor, over: Tensor) -> Tensor:
    """t with as many axes as another tensor whose first axes are its own."""
    return t.view(*t.shape, *[1] * (over.dim() - t.dim()))
