"""A prompt thinned out halfway through the model: the tokens with the smallest steps are not seen by later layers.

B rows, T positions, H heads (or D channels).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lengthen.errors import InputError
from lengthen.models.hooked_layers import hookable_layers
from lengthen.models.hooks import Hook, LayerView
from lengthen.state import LayerState
from lengthen.training_free.fitting import Calibration, HookMethod


@dataclass(frozen=True)
class DeciMamba(HookMethod):
    """Of a prompt's tokens, those with the largest norm of their steps over heads or channels go on from a layer.

    A row's prompt is the first call from its zero state, and its last token, from which the answer follows, always goes
    on; so does every token of later calls. Attention sees all tokens.
    first: the first such layer, counted among recurrent layers from 0; half of them unless given. layers: how many
    follow each other. base: tokens that go on from the first, T0 unless given; `ratio` times as many from each next.
    Published for Mamba 130M: first 12, layers 1 or 9, base 2000 to 8000, ratio 0.5 or 0.83.
    Source: Ben-Kish et al., DeciMamba, arXiv 2406.14528.
    """

    name = "deci-mamba"
    uses = frozenset({"decay", "gain", "step"})

    first: int | None = None
    layers: int = 1
    base: int | None = None
    ratio: float = 0.5

    def __post_init__(self) -> None:
        for setting, least in (("first", 0), ("layers", 1), ("base", 1)):
            self.require_whole(setting, least)
        if not 0 < self.ratio <= 1:
            raise InputError(f"The ratio of {self.name} is {self.ratio}; give a number above 0, at most 1.")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"prompt"} | ({"train-context"} if self.base is None else set()))

    def require_model(self, model: nn.Module) -> None:
        super().require_model(model)
        depth = len(hookable_layers(model))
        if self._first(depth) + self.layers > depth:
            raise InputError(
                f"{self.name} would thin out tokens at {self.layers} recurrent layers from number {self._first(depth)} on, "
                f"but the model has {depth}; give a smaller first."
            )

    def measured(self, model: nn.Module, calibration: Calibration) -> dict[str, Tensor]:
        base = calibration.train_context if self.base is None else self.base
        assert base is not None
        names = [binding.name for binding, _ in hookable_layers(model)]
        first = self._first(len(names))
        return {
            name: torch.tensor(max(1, int(base * self.ratio**i)))
            for i, name in enumerate(names[first : first + self.layers])
        }

    def hook(self, tensors: Mapping[str, Tensor]) -> Hook:
        return _ThinningOut(self.name, {layer: int(count) for layer, count in tensors.items()})

    def _first(self, depth: int) -> int:
        return depth // 2 if self.first is None else self.first


class _ThinningOut(Hook):
    """At each of these layers so many tokens of a row's first call go on."""

    uses = DeciMamba.uses
    whole_prompt = True

    def __init__(self, name: str, counts: Mapping[str, int]) -> None:
        self.name, self.counts = name, counts

    def memory(self, layer: str, zero: LayerState) -> LayerState:
        rows = next(iter(zero.values()))
        return {"begun": rows.new_zeros(len(rows))} if layer in self.counts else {}

    def gates(self, view: LayerView, log_decay: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        if view.layer in self.counts:
            assert view.step is not None
            real = torch.ones_like(view.step[..., 0], dtype=torch.bool) if view.real is None else view.real
            chosen = largest_steps(view.step, real, self.counts[view.layer])
            view.leave(real & ~chosen & (view.memory["begun"] == 0)[:, None])
            view.memory["begun"] = torch.where(real.any(1), 1, view.memory["begun"])
        return log_decay, gain


def largest_steps(step: Tensor, real: Tensor, count: int) -> Tensor:
    """bool [B, T]: the `count` tokens of largest norm of step [B, T, H] among the real ones, the last always with them."""
    here = torch.arange(real.shape[1], device=real.device)
    last = torch.where(real, here, -1).amax(1, keepdim=True)
    norms = step.norm(dim=-1).masked_fill(~real, -math.inf).masked_fill(here == last, math.inf)
    order = norms.argsort(dim=1, descending=True, stable=True)
    return (order.argsort(1) < count) & real
