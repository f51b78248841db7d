"""Tokens with small steps skipped in heads that remember long, so that a longer text moves their state no further.

n rows of calibration text, T0 the training context, B rows, T positions, H heads (or D channels).
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

_BELOW = 0.999


@dataclass(frozen=True)
class LongMamba(HookMethod):
    """In a global head, one that keeps more than a share `theta` of its state over T0, tokens with small steps are skipped.

    The least step that is not skipped is such that, on calibration text, the steps taken in L positions sum to what all
    steps in T0 do; up to T0 none is skipped. A channel of Mamba-1 keeps what its slowest state keeps.
    theta: published are 0.05 for Mamba-2 1.3B, 1e-5 for Zamba2 and 1e-30 for Mamba-1 1.4B. clamp: steps in this largest
    share count as the least of them when the sum is formed; published are 0.05 and 0.2, with which thresholds no longer
    rise from L = T0 / clamp on, so that far too much is kept.
    Source: Ye et al., LongMamba, arXiv 2504.16053.
    """

    name = "long-mamba"
    uses = frozenset({"decay", "gain", "step"})

    theta: float = 0.05
    clamp: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.theta <= 1:
            raise InputError(f"The theta of {self.name} is {self.theta}; give 0 (all heads) to 1 (none).")
        if not 0 <= self.clamp < 1:
            raise InputError(f"The clamp of {self.name} is {self.clamp}; give 0 (no clamp) or more, below 1.")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"calibration", "train-context", "length"})

    def measured(self, model: nn.Module, calibration: Calibration) -> dict[str, Tensor]:
        if calibration.shortening <= self.clamp:
            raise InputError(
                f"The clamp of {self.name} is {self.clamp}, with which thresholds no longer rise at {calibration.length} "
                f"positions; give less than {calibration.shortening:g}, or 0."
            )
        watching = _Watching(self, calibration.shortening)
        with hooked(model, watching), torch.no_grad():
            calibration.losses(model)
        return watching.thresholds

    def hook(self, tensors: Mapping[str, Tensor]) -> Hook:
        return _Skipping(self.name, tensors)


def step_threshold(steps: Tensor, shortening: float, clamp: float = 0.0) -> Tensor:
    """The step [H] at or below which a token is skipped, from calibration steps [n, T0, H]; 0 skips none.

    shortening: T0 / L. The largest steps whose sum passes `shortening` times that of all are not skipped; the threshold
    lies a little below the least of them, for the same token often has the same step, and rounding must decide nothing.
    """
    ordered = steps.flatten(0, 1).sort(0, descending=True).values
    if clamp:
        ordered = ordered.clamp(max=ordered[max(1, int(len(ordered) * clamp)) - 1])
    sums = ordered.double().cumsum(0)
    passed = sums > sums[-1] * shortening
    least = passed.int().argmax(0, keepdim=True)
    return (_BELOW * ordered.gather(0, least)[0]).masked_fill(~passed[:-1].any(0), 0)


class _Watching(Hook):
    """Changes nothing and finds each layer's thresholds from one call over T0 without padding."""

    uses = LongMamba.uses

    def __init__(self, method: LongMamba, shortening: float) -> None:
        self.name, self.method, self.shortening = method.name, method, shortening
        self.thresholds: dict[str, Tensor] = {}

    def gates(self, view: LayerView, log_decay: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        assert view.step is not None
        slowest = 1.0 if view.rates is None else -view.rates.amax(1)
        kept = torch.exp(log_decay.sum(1) * slowest).mean(0)
        threshold = step_threshold(view.step, self.shortening, self.method.clamp)
        self.thresholds[view.layer] = threshold.masked_fill(kept <= self.method.theta, 0)
        return log_decay, gain


class _Skipping(Hook):
    """Tokens skipped in the heads where their step is at most a threshold."""

    uses = LongMamba.uses

    def __init__(self, name: str, thresholds: Mapping[str, Tensor]) -> None:
        self.name, self.thresholds = name, thresholds

    def gates(self, view: LayerView, log_decay: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        assert view.step is not None
        skipped = view.step <= self.thresholds[view.layer].to(view.step.dtype)
        return log_decay.masked_fill(skipped, 0), gain.masked_fill(skipped, 0)
