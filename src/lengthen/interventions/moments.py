"""Running moments of final states per layer, tensor and head, the same on every process."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor

from lengthen.errors import InputError
from lengthen.interventions.draws import is_noisy
from lengthen.state import RecurrentState, heads_of


class Moments:
    """Running mean and second moment of final states per layer, tensor and head, over all processes.

    Final states added during one optimiser step are reduced over all processes when the next step begins, so every
    process must call advance() once or more in every step, whether or not it has rows.
    """

    def __init__(self, momentum: float) -> None:
        self.momentum = momentum
        self.mean: dict[str, dict[str, Tensor]] | None = None
        self.square: dict[str, dict[str, Tensor]] | None = None
        self._sums: dict[tuple[str, str], Tensor] = {}
        self._step: int | None = None

    def add(self, state: RecurrentState) -> None:
        """Adds the final states of some rows of the step under way. Sums are [3, H]: entries, squares, count."""
        for key, sums in _sums_of(state).items():
            self._sums[key] = self._sums[key].to(sums.device) + sums if key in self._sums else sums

    def advance(self, step: int, zero: RecurrentState) -> None:
        """Begins a step: takes the finished step's states into the running moments. zero tells the layout."""
        if step == self._step:
            return
        first, self._step = self._step is None, step
        if first:
            return
        sums = self._sums or {key: torch.zeros_like(value) for key, value in _sums_of(zero).items()}
        self._sums = {}
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            flat = torch.cat([s.flatten() for s in sums.values()])
            torch.distributed.all_reduce(flat)
            parts = flat.split([s.numel() for s in sums.values()])
            sums = {key: part.view_as(s) for (key, s), part in zip(sums.items(), parts)}
        if not any(bool(count.any()) for _, _, count in sums.values()):
            return
        mean: dict[str, dict[str, Tensor]] = {}
        square: dict[str, dict[str, Tensor]] = {}
        for (layer, name), (total, squares, count) in sums.items():
            mean.setdefault(layer, {})[name] = total / count
            square.setdefault(layer, {})[name] = squares / count
        self.mean = _blend(self.mean, mean, self.momentum)
        self.square = _blend(self.square, square, self.momentum)

    def std(self) -> dict[str, dict[str, Tensor]]:
        """Standard deviation per layer, tensor and head [H]."""
        assert self.mean is not None and self.square is not None
        return {
            layer: {name: (self.square[layer][name] - m.square()).clamp_min(0).sqrt() for name, m in named.items()}
            for layer, named in self.mean.items()
        }

    def save(self, path: Path) -> None:
        plain = {
            "step": self._step,
            "mean": _lists(self.mean),
            "square": _lists(self.square),
            "sums": [[*key, value.tolist()] for key, value in self._sums.items()],
        }
        path.write_text(json.dumps(plain))

    def load(self, path: Path) -> None:
        try:
            plain = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"The moments of the fitted noise in {path} cannot be read ({error}).") from None
        self._step = plain["step"]
        self.mean, self.square = _tensors(plain["mean"]), _tensors(plain["square"])
        self._sums = {(a, b): torch.tensor(v, dtype=torch.float64) for a, b, v in plain["sums"]}


def _sums_of(state: RecurrentState) -> dict[tuple[str, str], Tensor]:
    """Per layer and tensor [3, H]: the sum of each head's entries, of their squares, and their count, over all rows."""
    found = {}
    for layer, named in state.tensors.items():
        for name, tensor in named.items():
            if is_noisy(spec := state.specs[layer][name]):
                x = heads_of(tensor.detach(), spec).double()
                count = torch.full_like(x.sum((0, 2)), x.shape[0] * x.shape[2])
                found[layer, name] = torch.stack([x.sum((0, 2)), x.square().sum((0, 2)), count])
    return found


def _blend(old: dict | None, found: dict, momentum: float) -> dict:
    if old is None:
        return found
    return {
        layer: {
            name: momentum * old[layer][name].to(value.device) + (1 - momentum) * value for name, value in named.items()
        }
        for layer, named in found.items()
    }


def _lists(moments: dict[str, dict[str, Tensor]] | None) -> dict | None:
    if moments is None:
        return None
    return {layer: {name: value.tolist() for name, value in named.items()} for layer, named in moments.items()}


def _tensors(plain: dict | None) -> dict[str, dict[str, Tensor]] | None:
    if plain is None:
        return None
    return {
        layer: {n: torch.tensor(v, dtype=torch.float64) for n, v in named.items()} for layer, named in plain.items()
    }
