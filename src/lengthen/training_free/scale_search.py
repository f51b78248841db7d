"""Searching a few numbers by the loss alone, or by its gradient too; each step is judged on the same text."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lengthen.errors import RunError

LEAST = 0.01
"""The least that a scale may become."""

Loss = Callable[[Tensor], Tensor]
"""The loss of scales [n], a scalar of the same text every time."""


def spsa(loss: Loss, start: Tensor, *, steps: int, rate: float, seed: int) -> Tensor:
    """The best scales [n] that simultaneous perturbation finds from `start`, by two losses a step.

    Every scale is moved up or down at once by 0.1 / (1 + step)^0.1, as the seed says, and all go `rate` times the slope
    between the two. Source: Spall, IEEE Trans. Automatic Control 37 (1992) 332. Raises RunError for a loss not finite.
    """
    generator = torch.Generator().manual_seed(seed)
    best, scales = _Best(loss, start), start
    best.of(start)
    for step in range(steps):
        signs = torch.randint(0, 2, start.shape, generator=generator).to(start) * 2 - 1
        size = 0.1 / (1 + step) ** 0.1
        up, down = (best.of((scales + s * size * signs).clamp(min=LEAST)) for s in (1, -1))
        scales = (scales - rate * (up - down) / (2 * size) * signs).clamp(min=LEAST)
    best.of(scales)
    return best.scales


def descent(loss: Loss, start: Tensor, *, steps: int, rate: float) -> Tensor:
    """The best scales [n] that Adam meets on its way from `start`. Raises RunError for a loss that is not finite."""
    scales = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([scales], lr=rate)
    best = _Best(loss, start)
    for _ in range(steps):
        best.of(scales, gradient=True)
        optimiser.step()
        with torch.no_grad():
            scales.clamp_(min=LEAST)
    best.of(scales.detach())
    return best.scales


@dataclass
class _Best:
    """A loss that remembers the scales at which it was least."""

    loss: Loss
    scales: Tensor
    least: float = field(default=math.inf)

    def of(self, scales: Tensor, *, gradient: bool = False) -> float:
        """The loss at these scales; with its gradient in scales.grad, if asked for."""
        with torch.set_grad_enabled(gradient):
            loss = self.loss(scales)
        if gradient:
            (scales.grad,) = torch.autograd.grad(loss, scales)
        value = loss.item()
        if not math.isfinite(value):
            raise RunError(f"The loss is {value} at the scales {scales.tolist()}; take smaller steps.")
        if value < self.least:
            self.least, self.scales = value, scales.detach().clone()
        return value
