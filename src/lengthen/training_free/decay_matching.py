"""Decays slowed where a memory reaches so far that a longer text overfills it.

B rows, T positions, H heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lengthen.errors import InputError
from lengthen.models.hooked_layers import hooked
from lengthen.models.hooks import Hook, LayerView
from lengthen.training_free.fitting import Calibration, HookMethod


@dataclass(frozen=True)
class DecayMatching(HookMethod):
    """The log-decay times T0 / L in heads that remember long: exp(sum of log-decays) over L is what it was over T0.

    A head's time scale is 1 over its mean log-decay on calibration text, in tokens; with a decay for each key channel it
    is the channel's, in Mamba-1 that of a channel's slowest state. What is written stays as it is.
    share: of T0; heads whose time scale exceeds it are slowed.
    """

    name = "decay-matching"
    uses = frozenset({"decay"})

    share: float = 0.25

    def __post_init__(self) -> None:
        if not self.share >= 0:
            raise InputError(f"The share of {self.name} is {self.share}; give 0 (all heads) or more.")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"calibration", "train-context", "length"})

    def measured(self, model: nn.Module, calibration: Calibration) -> dict[str, Tensor]:
        assert calibration.train_context is not None
        longest = self.share * calibration.train_context
        return {
            layer: torch.where(-1 / mean > longest, calibration.shortening, 1.0)
            for layer, mean in mean_log_decays(model, calibration).items()
        }

    def hook(self, tensors: Mapping[str, Tensor]) -> Hook:
        return DecayScaling(self.name, tensors)


class DecayScaling(Hook):
    """The log-decay of each layer times a number for each of its heads or channels."""

    uses = DecayMatching.uses

    def __init__(self, name: str, scales: Mapping[str, Tensor]) -> None:
        self.name, self.scales = name, scales

    def gates(self, view: LayerView, log_decay: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        return log_decay * self.scales[view.layer].to(log_decay.dtype), gain


def mean_log_decays(model: nn.Module, calibration: Calibration) -> dict[str, Tensor]:
    """Layer -> the mean log-decay of a token in the calibration text, [H], [H, K] or [D], at most 0.

    Of Mamba-1's channels that of the slowest state.
    """
    watching = _Watching()
    with hooked(model, watching), torch.no_grad():
        calibration.losses(model)
    return watching.means


class _Watching(Hook):
    """Changes nothing and keeps each layer's mean log-decay of one call without padding."""

    name = "decay-matching"
    uses = DecayMatching.uses

    def __init__(self) -> None:
        self.means: dict[str, Tensor] = {}

    def gates(self, view: LayerView, log_decay: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        slowest = 1.0 if view.rates is None else -view.rates.amax(1)
        self.means[view.layer] = log_decay.mean((0, 1)) * slowest
        return log_decay, gain
