"""States of the last tokens alone: whole segments forgotten one by one, or every token once it is old enough.

B rows, T positions, H heads, K key dim, V value dim, T0 the training context. State [B, H, K, V].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lengthen.models.families import KINDS
from lengthen.models.hooked_layers import hookable_layers
from lengthen.models.hooks import Hook, LayerView
from lengthen.state import LayerState
from lengthen.training_free.fitting import Calibration, HookMethod

_NEVER = -1e4
"""A log-decay whose decay is 0 in float64 too, and that can be subtracted again."""


@dataclass(frozen=True)
class SegmentRing(HookMethod):
    """A state is the sum of what each of the last `segments` segments wrote; the oldest is left out as a new one begins.

    Sums alone are formed, so that nothing is lost to rounding. A token is read with between `segments` - 1 and `segments`
    segments before it. period: tokens of a segment; T0 divided by the number of segments unless given.
    Source: after Chen et al., Stuffed Mamba, arXiv 2410.07145, first version.
    """

    name = "segment-ring"
    uses = frozenset({"read"})

    segments: int = 4
    period: int | None = None

    def __post_init__(self) -> None:
        self.require_whole("segments")
        self.require_whole("period")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"train-context"} if self.period is None else ())

    def measured(self, model: nn.Module, calibration: Calibration) -> dict[str, Tensor]:
        period = self.period
        if period is None:
            assert calibration.train_context is not None
            period = max(1, calibration.train_context // self.segments)
        return {"period": torch.tensor(period)}

    def hook(self, tensors: Mapping[str, Tensor]) -> Hook:
        return _Ring(self.name, self.segments, int(tensors["period"]))


@dataclass(frozen=True)
class SlidingWindow(HookMethod):
    """A state is what the last `window` tokens wrote: the state, minus the state so many tokens ago as it has decayed since.

    That is exact in one layer; through several a token is still heard of from further back. window: T0 unless given. What
    a sequence starts from is not left out. Differences lose about 1e-2 with states in bfloat16, which lengthen never has.
    Source: Chen et al., Stuffed Mamba, arXiv 2410.07145, first version; no window is published.
    """

    name = "sliding-window"
    uses = frozenset({"read"})

    window: int | None = None

    def __post_init__(self) -> None:
        self.require_whole("window")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"train-context"} if self.window is None else ())

    def measured(self, model: nn.Module, calibration: Calibration) -> dict[str, Tensor]:
        window = calibration.train_context if self.window is None else self.window
        by_head = {b.name: torch.tensor(KINDS[b.kind].kernel == "ssd") for b, _ in hookable_layers(model)}
        return by_head | {"window": torch.tensor(window)}

    def hook(self, tensors: Mapping[str, Tensor]) -> Hook:
        by_head = {name for name, t in tensors.items() if name != "window" and t}
        return _Difference(self.name, int(tensors["window"]), by_head)


class _Ring(Hook):
    """Memory: what this segment wrote ("current") and those before it, latest first ("older"), as they have decayed."""

    uses = SegmentRing.uses

    def __init__(self, name: str, segments: int, period: int) -> None:
        self.name, self.segments, self.period = name, segments, period

    def memory(self, layer: str, zero: LayerState) -> LayerState:
        state = kernel_state(zero)
        older = state.new_zeros(len(state), self.segments - 1, *state.shape[1:])
        return {"current": state, "older": older, "begun": state.new_zeros(len(state))}

    def between(self, view: LayerView, state: LayerState) -> LayerState:
        if view.memory:
            current, older = view.memory["current"], view.memory["older"]
            view.memory["older"] = torch.cat([current[:, None], older], 1)[:, : self.segments - 1]
            view.memory["current"] = torch.zeros_like(current)
        return state

    def read(
        self, view: LayerView, kernel: Callable[..., tuple[Tensor, Tensor]], *inputs: Any, **options: Any
    ) -> tuple[Tensor, Tensor]:
        given = options.pop("initial_state")
        current, older = view.memory["current"], view.memory["older"]
        if given is not None:  # what a sequence starts from belongs to its first segment
            current = torch.where(_like(view.memory["begun"], current) == 0, given, current)
        view.memory["begun"] = torch.ones_like(view.memory["begun"])
        y, _ = kernel(*inputs, initial_state=current + older.sum(1), **options)
        _, current = kernel(*inputs, initial_state=current, **options)
        kept = inputs[3].sum(1).exp()  # [B, H] or [B, H, K]
        older = older * kept.view(len(kept), 1, *kept.shape[1:], *[1] * (4 - kept.dim()))
        view.memory["current"], view.memory["older"] = current, older
        return y, current + older.sum(1)


class _Difference(Hook):
    """Memory: keys, values (with their gains) and log-decays of the last tokens, and the state before them ("before")."""

    uses = SlidingWindow.uses

    def __init__(self, name: str, window: int, by_head: set[str]) -> None:
        self.name, self.window, self.by_head = name, window, by_head

    def memory(self, layer: str, zero: LayerState) -> LayerState:
        state = kernel_state(zero)
        rows, heads, keys, values = state.shape
        of_token: dict[str, tuple[int, ...]] = {"key": (heads, keys), "value": (heads, values)}
        of_token["log_decay"] = (heads,) if layer in self.by_head else (heads, keys)
        return {name: state.new_zeros(rows, self.window, *shape) for name, shape in of_token.items()} | {
            "before": state
        }

    def read(
        self,
        view: LayerView,
        kernel: Callable[..., tuple[Tensor, Tensor]],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        log_decay: Tensor,
        gain: Tensor | None = None,
        *,
        initial_state: Tensor | None = None,
        bonus: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor]:
        with_bonus = {} if bonus is None else {"bonus": bonus}
        y, state = kernel(query, key, value, log_decay, gain, initial_state=initial_state, **with_bonus, **options)
        positions, heads = value.shape[1:3]
        query, key = (t.repeat_interleave(heads // t.shape[2], 2) for t in (query, key))
        written = value if gain is None else value * gain[..., None]
        joined = {
            name: torch.cat([view.memory[name], t.to(view.memory[name].dtype)], 1)
            for name, t in (("key", key), ("value", written), ("log_decay", log_decay))
        }
        old = {name: t[:, :positions] for name, t in joined.items()}  # the tokens that fall out, one a position
        if view.real is not None:
            old = {name: t.masked_fill(~_like(view.real, t), 0) if name != "key" else t for name, t in old.items()}
        # The log-decay over the window that ends at a position, or with a bonus, whose outputs read the state before
        # their token, over the one that ends before it.
        sums = joined["log_decay"].double().clamp_min(_NEVER).cumsum(1)
        sums = torch.cat([torch.zeros_like(sums[:, :1]), sums], 1)
        first = 1 if bonus is None else 0
        since = sums[:, self.window + first :][:, :positions] - sums[:, first:][:, :positions]
        factor = since.exp().to(state.dtype)
        asked = query * (factor[..., None] if factor.dim() == 3 else factor)
        with_bonus = {} if bonus is None else {"bonus": torch.zeros_like(bonus)}
        gone, before = kernel(
            asked, old["key"], old["value"], old["log_decay"], initial_state=view.memory["before"], **with_bonus
        )
        view.memory["before"] = before
        view.memory |= {name: self._last(t, view.real) for name, t in joined.items()}
        return y - gone.to(y.dtype), state

    def _last(self, joined: Tensor, real: Tensor | None) -> Tensor:
        """Of memory and tokens [B, window + T, ...], what the last `window` real ones are."""
        if real is None:
            return joined[:, -self.window :]
        places = real.sum(1, keepdim=True) + torch.arange(self.window, device=joined.device)
        return joined.gather(1, _like(places, joined).expand(-1, -1, *joined.shape[2:]))


def kernel_state(zero: LayerState) -> Tensor:
    """The zero state as the kernel has it, [B, H, K, V]: with a column for the normaliser where there is one."""
    state = zero["recurrent"]
    return state.new_zeros(*state.shape[:-1], state.shape[-1] + ("normaliser" in zero))


def _like(t: Tensor, other: Tensor) -> Tensor:
    """t with as many axes as another tensor whose first axes are its own."""
    return t.view(*t.shape, *[1] * (other.dim() - t.dim()))
