"""The spectrum of a layer's decays with its ends cut off: no head much faster or much slower than the rest."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lengthen.errors import InputError
from lengthen.training_free.fitting import Calibration, Method
from lengthen.training_free.weight_edits import edited, rates


@dataclass(frozen=True)
class SpectrumWinsorising(Method):
    """exp(-|A|), the decay of a step of 1, clipped to its quantiles in each layer; other entries stay bit for bit.

    quantile: q, so that [q, 1 - q] is kept; below one half.
    """

    name = "spectrum-winsorising"

    quantile: float = 0.05

    def __post_init__(self) -> None:
        if not 0 <= self.quantile < 0.5:
            raise InputError(f"The quantile of {self.name} is {self.quantile}; give 0 or more, below 0.5.")

    def require_model(self, model: nn.Module) -> None:
        rates(self.name, model)

    def measured(self, model: nn.Module, calibration: Calibration) -> dict[str, Tensor]:
        return {
            name: winsorised(log_rate.detach(), self.quantile) for name, log_rate in rates(self.name, model).items()
        }

    def put_on(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> AbstractContextManager[None]:
        return edited(model, tensors)


def winsorised(log_rate: Tensor, quantile: float) -> Tensor:
    """A_log with decays exp(-exp(A_log)) clipped to their quantiles, linear between entries; of A_log's dtype.

    A quantile of decays is clipped to as a bound on A_log, so that what lies inside is not rounded.
    """
    ends = torch.tensor([quantile, 1 - quantile], dtype=torch.float64, device=log_rate.device)
    slowest, fastest = (
        torch.quantile(torch.exp(-torch.exp(log_rate.double())).flatten(), ends).log().neg().log().flip(0)
    )
    return log_rate.clamp(slowest.to(log_rate.dtype), fastest.to(log_rate.dtype))
