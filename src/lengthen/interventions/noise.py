"""Initial states drawn from Gaussians: of one size, or fitted to the final states seen in training."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from lengthen.errors import InputError
from lengthen.interventions.base import Intervention, Rows
from lengthen.interventions.draws import is_noisy, standard_normal
from lengthen.interventions.moments import Moments
from lengthen.state import RecurrentState, TensorSpec


class RandomNoise(Intervention):
    """Independent N(0, std^2) in every recurrent entry where noise may stand; windows start at zero.

    std: of the noise. relative=True: std counts in units of the mean standard deviation (over layers and heads) of the
    first step's final states; that step starts from zero.
    """

    name = "random-noise"

    def __init__(self, std: float, relative: bool = False, seed: int = 0) -> None:
        if not std > 0:
            raise InputError(f"The noise's std is {std}; give a number above 0.")
        self.std, self.relative, self.seed = std, relative, seed
        self._moments = Moments(0.0) if relative else None

    def initial_state(self, rows: Rows, zero: RecurrentState) -> RecurrentState | None:
        scale = self.std
        self.advance(rows.step, zero)
        if self._moments is not None:
            if self._moments.mean is None:
                return None
            stds = [s.flatten() for named in self._moments.std().values() for s in named.values()]
            scale *= float(torch.cat(stds).mean())
        draws = standard_normal(rows, self.seed, zero)
        return zero.map_named(lambda layer, name, t, spec: draws[layer, name] * scale if is_noisy(spec) else t)

    def advance(self, step: int, zero: RecurrentState) -> None:
        if self._moments is not None and self._moments.mean is None:
            self._moments.advance(step, zero)

    def observe(self, rows: Rows, final_state: RecurrentState) -> None:
        # Later final states hold the noise itself: measuring them would let it grow from step to step.
        if self._moments is not None and self._moments.mean is None:
            self._moments.add(final_state)

    def save(self, directory: str | Path) -> None:
        if self._moments is not None:
            self._moments.save(Path(directory) / "moments.json")

    def load(self, directory: str | Path) -> None:
        if self._moments is not None:
            self._moments.load(Path(directory) / "moments.json")


class FittedNoise(Intervention):
    """N(mu, sigma^2) with mu, sigma per layer and head, fitted to the final states seen in training.

    momentum: of the running moments, updated once an optimiser step from all processes. The first step starts from zero.
    """

    name = "fitted-noise"

    def __init__(self, momentum: float = 0.9, seed: int = 0) -> None:
        if not 0 <= momentum < 1:
            raise InputError(f"momentum is {momentum}; give a number from 0 up to, but not including, 1.")
        self.momentum, self.seed = momentum, seed
        self._moments = Moments(momentum)

    def initial_state(self, rows: Rows, zero: RecurrentState) -> RecurrentState | None:
        self.advance(rows.step, zero)
        if self._moments.mean is None:
            return None
        mean, std = self._moments.mean, self._moments.std()
        draws = standard_normal(rows, self.seed, zero)

        def noise(layer: str, name: str, t: Tensor, spec: TensorSpec) -> Tensor:
            if not is_noisy(spec):
                return t
            shape = [1] * t.dim()
            if spec.head_axis is not None:
                shape[spec.head_axis] = t.shape[spec.head_axis]
            mu, sigma = (m[layer][name].to(t.device, t.dtype).view(shape) for m in (mean, std))
            return mu + sigma * draws[layer, name]

        return zero.map_named(noise)

    def advance(self, step: int, zero: RecurrentState) -> None:
        self._moments.advance(step, zero)

    def observe(self, rows: Rows, final_state: RecurrentState) -> None:
        self._moments.add(final_state)

    def save(self, directory: str | Path) -> None:
        self._moments.save(Path(directory) / "moments.json")

    def load(self, directory: str | Path) -> None:
        self._moments.load(Path(directory) / "moments.json")
