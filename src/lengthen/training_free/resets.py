"""States cut down at regular points of a sequence: what was read before counts no more, or less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lengthen.errors import InputError
from lengthen.models.hooks import Hook, LayerView
from lengthen.state import LayerState
from lengthen.training_free.fitting import Calibration, HookMethod

MAXIMUM = "maximum"
"""The tensor of a state that others are kept relative to, and that does not shrink with them."""


@dataclass(frozen=True)
class _Reset(HookMethod):
    """period: tokens between resets; the training context unless given."""

    period: int | None = None

    def __post_init__(self) -> None:
        self.require_whole("period")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"train-context"}) if self.period is None else frozenset()

    def measured(self, model: nn.Module, calibration: Calibration) -> dict[str, Tensor]:
        return {"period": torch.tensor(calibration.train_context if self.period is None else self.period)}


@dataclass(frozen=True)
class HardReset(_Reset):
    """Recurrent and window state zeroed before every multiple of the period. Attention in hybrids keeps what it saw."""

    name = "hard-reset"

    def hook(self, tensors: Mapping[str, Tensor]) -> Hook:
        return _Shrinking(self.name, int(tensors["period"]), 0.0)


@dataclass(frozen=True)
class SoftReset(_Reset):
    """The recurrent state times `keep` before every multiple of the period; the window stays."""

    name = "soft-reset"

    keep: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.keep <= 1:
            raise InputError(f"The setting keep of {self.name} is {self.keep}; give a number above 0, at most 1.")

    def hook(self, tensors: Mapping[str, Tensor]) -> Hook:
        return _Shrinking(self.name, int(tensors["period"]), self.keep)


class _Shrinking(Hook):
    """The state times a factor at every multiple of a period; 0 takes the window and all else to zero."""

    def __init__(self, name: str, period: int, factor: float) -> None:
        self.name, self.period, self.factor = name, period, factor

    def between(self, view: LayerView, state: LayerState) -> LayerState:
        if self.factor == 0:
            return {name: torch.zeros_like(t) for name, t in state.items()}
        shrinks = {name for name, spec in view.specs.items() if spec.kind == "recurrent" and name != MAXIMUM}
        return {name: t * self.factor if name in shrinks else t for name, t in state.items()}
