"""Steps or decays times one number a layer, searched for on text as long as the length in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lengthen.errors import InputError
from lengthen.models.hooked_layers import hookable_layers, hooked
from lengthen.models.hooks import Hook, LayerView
from lengthen.streaming import evaluating
from lengthen.training_free.decay_matching import DecayScaling
from lengthen.training_free.fitting import Calibration, HookMethod
from lengthen.training_free.scale_search import descent, spsa

RATES = {"spsa": 0.01, "gradient": 0.1}
"""How scales are searched for, and the rate of a step unless one is given."""


@dataclass(frozen=True)
class _CalibratedScaling(HookMethod):
    """search: "spsa", by pairs of losses, or "gradient". steps: of the search, each over the whole long text.

    rate: of a step; 0.01 for spsa and 0.1 for gradient unless given. The scales kept are those of the least loss met,
    all on the same text; 1 is among them.
    """

    search: str = "spsa"
    steps: int = 50
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.search not in RATES:
            raise InputError(f"The search of {self.name} is {self.search!r}; choose one of {', '.join(RATES)}.")
        self.require_whole("steps")
        if self.rate is not None and not self.rate > 0:
            raise InputError(f"The rate of {self.name} is {self.rate}; give a number above 0.")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"long-calibration"} | ({"gradients"} if self.search == "gradient" else set()))

    def measured(self, model: nn.Module, calibration: Calibration) -> dict[str, Tensor]:
        layers = [binding.name for binding, _ in hookable_layers(model)]

        def loss(scales: Tensor) -> Tensor:
            with hooked(model, self.hook(dict(zip(layers, scales.unbind(), strict=True)))):
                return calibration.long_losses(model).mean()

        rate = RATES[self.search] if self.rate is None else self.rate
        start = torch.ones(len(layers), device=next(model.parameters()).device)
        with evaluating(model):
            if self.search == "spsa":
                found = spsa(loss, start, steps=self.steps, rate=rate, seed=calibration.seed)
            else:
                found = descent(loss, start, steps=self.steps, rate=rate)
        return dict(zip(layers, found.unbind(), strict=True))


@dataclass(frozen=True)
class MambaExtend(_CalibratedScaling):
    """A layer's step Delta times one number, after its softplus: decay and write together.

    Source: Azizi et al., MambaExtend, ICLR 2025.
    """

    name = "mamba-extend"
    uses = frozenset({"decay", "gain", "step"})

    def hook(self, tensors: Mapping[str, Tensor]) -> Hook:
        return _StepScalingByLayer(self.name, tensors)


@dataclass(frozen=True)
class MambaModulation(_CalibratedScaling):
    """A layer's decays alone times one number: what is A of Mamba's layers, and the log-decay of all others.

    Source: Lu et al., Mamba Modulation, arXiv 2509.19633. The published code mostly raises |A| to a power instead.
    """

    name = "mamba-modulation"
    uses = DecayScaling.uses

    steps: int = 30

    def hook(self, tensors: Mapping[str, Tensor]) -> Hook:
        return DecayScaling(self.name, tensors)


class _StepScalingByLayer(DecayScaling):
    """Decay and gain of every token times its layer's number."""

    uses = MambaExtend.uses

    def gates(self, view: LayerView, log_decay: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        log_decay, gain = super().gates(view, log_decay, gain)
        return log_decay, gain * self.scales[view.layer].to(gain.dtype)
