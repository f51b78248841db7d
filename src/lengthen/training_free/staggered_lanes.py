"""Windows that overlap: a token is read with at least half a window before it, for twice the work or more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lengthen.errors import InputError
from lengthen.models.attention import has_attention
from lengthen.models.binding import library_model
from lengthen.models.hooks import Hook, LayerView
from lengthen.state import LayerState
from lengthen.training_free.fitting import Calibration, HookMethod


@dataclass(frozen=True)
class StaggeredLanes(HookMethod):
    """Lanes that all read every token, each from the zero state once a window, one after the other; the oldest is read.

    With W tokens a window and m lanes, that is what windows of W tokens that begin every W / m would give, a token taken
    from the earliest that still holds it: after the first window it is read with W - W / m to W tokens, its own counted.
    A token costs m times as much. lanes: at least 2. window: T0 unless given.
    """

    name = "staggered-lanes"

    lanes: int = 2
    window: int | None = None

    def __post_init__(self) -> None:
        self.require_whole("lanes", 2)
        self.require_whole("window", self.lanes)  # a token at least for each lane

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"lanes"} | ({"train-context"} if self.window is None else set()))

    def require_model(self, model: nn.Module) -> None:
        super().require_model(model)
        if has_attention(library_model(model)):
            raise InputError(
                f"{self.name} runs several rows for each sequence, but what attention saw is kept for one in "
                f"{type(library_model(model)).__name__}; choose hard-reset for this model."
            )

    def measured(self, model: nn.Module, calibration: Calibration) -> dict[str, Tensor]:
        window = calibration.train_context if self.window is None else self.window
        assert window is not None
        return {"window": torch.tensor(max(window, self.lanes))}

    def hook(self, tensors: Mapping[str, Tensor]) -> Hook:
        return _Restarting(self.name, self.lanes, int(tensors["window"]))


@dataclass(frozen=True)
class OverlappedReset(StaggeredLanes):
    """Staggered lanes, four of them: three quarters of a window or more before each token."""

    name = "overlapped-reset"

    lanes: int = 4


class _Restarting(Hook):
    """Lanes whose states are zero again at every multiple of a period."""

    def __init__(self, name: str, lanes: int, period: int) -> None:
        self.name, self.lanes, self.period = name, lanes, period

    def between(self, view: LayerView, state: LayerState) -> LayerState:
        return {name: torch.zeros_like(t) for name, t in state.items()}
