"""Step sizes times a constant: every token decays and writes as if it stood for less time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lengthen.errors import InputError
from lengthen.models.hooks import Hook, LayerView
from lengthen.training_free.fitting import Calibration, HookMethod


@dataclass(frozen=True)
class ConstantDelta(HookMethod):
    """Mamba's step Delta times a ratio, after its softplus: decay and write together.

    ratio: T0 / L unless given.
    """

    name = "constant-delta"
    uses = frozenset({"decay", "gain", "step"})

    ratio: float | None = None

    def __post_init__(self) -> None:
        if self.ratio is not None and not self.ratio > 0:
            raise InputError(f"The ratio of {self.name} is {self.ratio}; give a number above 0.")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"train-context", "length"}) if self.ratio is None else frozenset()

    def measured(self, model: nn.Module, calibration: Calibration) -> dict[str, Tensor]:
        return {"ratio": torch.tensor(calibration.shortening if self.ratio is None else self.ratio)}

    def hook(self, tensors: Mapping[str, Tensor]) -> Hook:
        return StepScaling(self.name, float(tensors["ratio"]))


class StepScaling(Hook):
    """Decay and gain of every token times a ratio."""

    uses = ConstantDelta.uses

    def __init__(self, name: str, ratio: float) -> None:
        self.name, self.ratio = name, ratio

    def gates(self, view: LayerView, log_decay: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        return log_decay * self.ratio, gain * self.ratio
