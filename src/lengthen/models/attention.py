"""Attention in hybrids: what its layers see of a sequence, and the cache that carries it from call to call.

B rows, T positions of a call, S positions in the cache, H heads of keys, E size of a head.

A call given no state, or a RecurrentState alone, drops the cache: attention sees this call's tokens, at positions from
0. That is what passing a state between unrelated sequences needs, so training and plain calls do it. A SequenceState
is a RecurrentState that also holds the cache of the very sequence it belongs to: a call given one carries it, so that
attention sees the sequence from its start, at positions that continue, and returns another. streaming and the parity
gate begin with one (binding.sequence_start). Where attention sees no further back than a window, its cache holds no
more than that, so that memory stays flat. Keeping the cache beside the state and not in it means that whatever
mixes or makes states (noise, averages, banks, files) cannot take keys and values along.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lengthen.errors import InputError
from lengthen.models.call import Marks
from lengthen.state import RecurrentState

_WITHOUT_ATTENTION = frozenset({"linear_attention", "mlp", "moe"})
_ALL_BEFORE = frozenset({"full_attention", "hybrid"})
"""Kinds of layers (config.layer_types) whose attention sees all before it."""


@dataclass(frozen=True)
class AttentionCache:
    """Keys and values that a model's attention layers have seen, row by row. Nothing changes one in place.

    layers: attention layer's index -> (keys, values), each [B, H, S, E], keys with their positions applied; none
    before the first call. lengths: int64 [B]; of row b the first lengths[b] of S are real and the rest is void.
    read: int64 [B]; the positions a row has read since its start, of which these are the last.
    """

    layers: Mapping[int, tuple[Tensor, Tensor]]
    lengths: Tensor
    read: Tensor

    @staticmethod
    def empty(rows: int, device: torch.device) -> AttentionCache:
        """The cache before the first token."""
        return AttentionCache({}, *(torch.zeros(rows, dtype=torch.long, device=device) for _ in range(2)))

    @property
    def width(self) -> int:
        """S."""
        return next((keys.shape[2] for keys, _ in self.layers.values()), 0)

    def map(self, function: Callable[[Tensor], Tensor]) -> AttentionCache:
        """function on every tensor, lengths and read included."""
        layers = {layer: (function(keys), function(values)) for layer, (keys, values) in self.layers.items()}
        return AttentionCache(layers, function(self.lengths), function(self.read))


class SequenceState(RecurrentState):
    """The state of B rows together with what attention saw of the same rows, to go on with these very sequences.

    Selecting, moving, copying or detaching rows keeps the cache; whatever makes another state of this one (map, where,
    average, ...) gives a RecurrentState alone.
    """

    __slots__ = ("attention",)

    attention: AttentionCache

    def __init__(self, state: RecurrentState, attention: AttentionCache) -> None:
        if attention.lengths.shape[0] != state.rows:
            raise InputError(f"The cache has {attention.lengths.shape[0]} rows, its state {state.rows}; use index().")
        super().__init__(state.tensors, state.specs, state.family, state.weights)
        object.__setattr__(self, "attention", attention)

    def __reduce__(self) -> tuple:
        return SequenceState, (self.alone(), self.attention)

    def alone(self) -> RecurrentState:
        """The recurrent and window state without the cache: what may pass to another sequence."""
        return RecurrentState(self.tensors, self.specs, self.family, self.weights)

    def index(self, rows: Tensor | Sequence[int]) -> SequenceState:
        chosen = torch.as_tensor(rows, dtype=torch.long)
        cache = self.attention.map(lambda t: t.index_select(0, chosen.to(t.device)))
        return SequenceState(super().index(rows), cache)

    def to(self, device: torch.device | str) -> SequenceState:
        return SequenceState(super().to(device), self.attention.map(lambda t: t.to(device)))

    def clone(self) -> SequenceState:
        return SequenceState(super().clone(), self.attention.map(torch.clone))

    def detach(self) -> SequenceState:
        return SequenceState(super().detach(), self.attention.map(torch.detach))

    def with_weights(self, fingerprint: str | None) -> SequenceState:
        return SequenceState(super().with_weights(fingerprint), self.attention)

    def save(self, path: str | Path) -> None:
        """Raises InputError: a file of a state holds no attention cache."""
        raise InputError(
            f"This state carries an attention cache, which a state file does not hold, so it is not saved to {path}; "
            "save state.alone() to pass it to other sequences."
        )


class GrowingCache:
    """What attention layers call update() on during one call: the cache so far plus this call, always new tensors.

    window: positions that attention sees, its own included; None for all.
    """

    def __init__(self, before: AttentionCache, window: int | None = None) -> None:
        self.before, self.window = before, window
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Keys and values [B, H, S + T, E] of a layer for this call's [B, H, T, E]."""
        if layer_idx in self.before.layers:
            old_keys, old_values = self.before.layers[layer_idx]
            keys, values = torch.cat([old_keys, keys], 2), torch.cat([old_values, values], 2)
        self.layers[layer_idx] = keys, values
        return keys, values

    def after(self, positions: int, marks: Marks, trailing_reset: Tensor | None) -> AttentionCache:
        """The cache after the call: real positions since each row's last reset that a later call sees, in front."""
        keep, earlier = self._kept(positions, marks), self.before.read - self.before.lengths
        if marks.reset is not None:
            earlier = earlier * ~marks.reset.any(1)
        if trailing_reset is not None:
            keep, earlier = keep & ~trailing_reset[:, None], earlier * ~trailing_reset
        read = earlier + keep.sum(1)
        if self.window is not None:
            keep = keep & (keep.flip(1).cumsum(1).flip(1) < self.window)
        lengths = keep.sum(1)
        if bool(keep.all()):
            return AttentionCache(dict(self.layers), lengths, read)
        order = torch.argsort((~keep).to(torch.int8), dim=1, stable=True)[:, : int(lengths.max())]

        def moved(t: Tensor) -> Tensor:
            return t.gather(2, order[:, None, :, None].expand(-1, t.shape[1], -1, t.shape[3]))

        return AttentionCache({layer: (moved(k), moved(v)) for layer, (k, v) in self.layers.items()}, lengths, read)

    def _kept(self, positions: int, marks: Marks) -> Tensor:
        """bool [B, S + T]: which of the cached and the new positions a later call may see."""
        lengths = self.before.lengths
        old = torch.arange(self.before.width, device=lengths.device) < lengths[:, None]
        new = marks.real(positions)
        if new is None:
            new = old.new_ones(old.shape[0], positions)
        if marks.reset is not None:
            old = old & ~marks.reset.any(1, keepdim=True)
            new = new & (_last_reset(marks.reset)[:, -1:] <= torch.arange(positions, device=new.device))
        return torch.cat([old, new], 1)


def has_attention(model: nn.Module) -> bool:
    """Whether the model has layers with a cache of keys and values: named ...Attention by the library, not wrapped."""
    return any(type(m).__name__.endswith("Attention") and "_lengthen" not in m.__dict__ for m in model.modules())


def attention_arguments(
    model: Any, before: AttentionCache | None, marks: Marks, rows: int, positions: int, device: torch.device
) -> dict[str, Any]:
    """What the base model is called with so that attention sees what it should: mask, positions and cache.

    before: the cache to carry, None to drop it. Nothing is needed where that and resets are absent: the library's own
    causal attention is right, and padding on the right is seen by no real position.
    Raises InputError where the model's attention cannot take such a mask.
    """
    if before is None and marks.reset is None:
        return {}
    windows = _windows(model)
    past = AttentionCache.empty(rows, device) if before is None else before

    def mask(window: int | None) -> Tensor:
        seen = _visible(past, marks.reset, positions, window)
        if model.config._attn_implementation != "eager":
            return seen
        lowest = torch.finfo(model.dtype).min
        return torch.zeros(seen.shape, dtype=model.dtype, device=device).masked_fill(~seen, lowest)

    masks = {window: mask(window) for window in windows.values()}
    found: dict[str, Any] = {"position_ids": _positions(past, marks.reset, positions)}
    if len(masks) == 1:
        found["attention_mask"] = next(iter(masks.values()))
    else:
        found["attention_mask"] = dict.fromkeys(_WITHOUT_ATTENTION) | {k: masks[w] for k, w in windows.items()}
    if before is not None:
        longest = None if None in masks else max(filter(None, masks))
        found["cache"] = GrowingCache(before, longest)
    return found


def _positions(past: AttentionCache, reset: Tensor | None, positions: int) -> Tensor:
    """int64 [B, T]: positions since the start of each row's sequence or its last reset."""
    here = torch.arange(positions, device=past.lengths.device).expand(past.lengths.shape[0], -1)
    if reset is None:
        return past.read[:, None] + here
    last = _last_reset(reset)
    return torch.where(last < 0, past.read[:, None] + here, here - last)


def _visible(past: AttentionCache, reset: Tensor | None, positions: int, window: int | None) -> Tensor:
    """bool [B or 1, 1, T, S + T]: which cached and which new positions each new position sees."""
    device, lengths = past.lengths.device, past.lengths
    if reset is None and bool((lengths == past.width).all()):
        lengths = lengths[:1]
    new = torch.ones(positions, positions, dtype=torch.bool, device=device).tril()[None]
    back = (lengths[:, None] - torch.arange(past.width, device=device))[:, None]  # from the call's first position
    old = (back > 0).expand(-1, positions, -1)
    if window is not None:
        new = new.triu(1 - window)
        old = old & (back + torch.arange(positions, device=device)[:, None] < window)
    if reset is not None:
        document = reset.cumsum(1)
        new = new & (document[:, :, None] == document[:, None])
        old = old & (document == 0)[:, :, None]
    return torch.cat([old, new.expand(len(old), -1, -1)], 2)[:, None]


def _last_reset(reset: Tensor) -> Tensor:
    """int64 [B, T]: the last reset at or before each position, -1 where there is none."""
    here = torch.arange(reset.shape[1], device=reset.device)
    return torch.where(reset, here, -1).cummax(1).values


def _windows(model: Any) -> dict[str, int | None]:
    """How many positions attention sees, its own included, None for all before it; by kind of layer."""
    how, config = model.config._attn_implementation, model.config.get_text_config()
    if how not in ("eager", "sdpa"):
        raise InputError(
            f"{type(model).__name__} runs its attention with {how}, which takes no mask for carried caches or resets; "
            "load it with attn_implementation='sdpa'."
        )
    kinds = set(getattr(config, "layer_types", None) or _ALL_BEFORE) - _WITHOUT_ATTENTION
    other = sorted(kinds - _ALL_BEFORE - {"sliding_attention"})
    if not other and "sliding_attention" not in kinds and getattr(config, "sliding_window", None) is not None:
        other = [f"windows of {config.sliding_window} positions in its {min(kinds)}"]
    if other:
        raise InputError(
            f"{type(model).__name__} has {other[0]} layers, whose masks lengthen cannot build; its attention can neither "
            "be reset nor carried, so run it without reset and without streaming."
        )
    return {kind: config.sliding_window if kind == "sliding_attention" else None for kind in kinds}
