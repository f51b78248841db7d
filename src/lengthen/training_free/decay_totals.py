"""How much every head forgets over a run: its log-decays summed, under whatever hook the model runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from lengthen.models.hooked_layers import hooks_replaced
from lengthen.models.hooks import Hook, LayerView
from lengthen.state import LayerState


@contextmanager
def decay_totals(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Layer -> the sum of log-decays over all tokens that are run while this lasts, [H], the mean over rows and channels.

    Layers whose heads share one state give a single number, layers without decays none. Of Mamba-1's channels that of the
    slowest state counts. A hook that the model runs under goes on, and its decays are those counted.
    """
    found: dict[str, Tensor] = {}
    watching: dict[Hook | None, _Totals] = {}
    with hooks_replaced(model, lambda hook: watching.setdefault(hook, _Totals(hook or Hook(), found))):
        yield found


class _Totals(Hook):
    """Another hook, the decays that come out of it summed."""

    def __init__(self, inner: Hook, found: dict[str, Tensor]) -> None:
        self.inner, self.found = inner, found
        self.name, self.period, self.lanes = inner.name, inner.period, inner.lanes
        self.whole_prompt, self.chunk = inner.whole_prompt, inner.chunk

    def gates(self, view: LayerView, log_decay: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
        log_decay, gain = self.inner.gates(view, log_decay, gain)
        slowest = 1.0 if view.rates is None else -view.rates.amax(1)
        mean = log_decay.detach() if log_decay.dim() == 3 else log_decay.detach().mean(-1)
        total = mean.sum(1, dtype=torch.float64).mean(0) * slowest
        if all(spec.head_axis is None for spec in view.specs.values() if spec.kind == "recurrent"):
            total = total.mean(0, keepdim=True)
        self.found[view.layer] = self.found.get(view.layer, 0.0) + total
        return log_decay, gain

    def between(self, view: LayerView, state: LayerState) -> LayerState:
        return self.inner.between(view, state)

    def read(
        self, view: LayerView, kernel: Callable[..., tuple[Tensor, Tensor]], *inputs: Any, **options: Any
    ) -> tuple[Tensor, Tensor]:
        return self.inner.read(view, kernel, *inputs, **options)

    def memory(self, layer: str, zero: LayerState) -> LayerState:
        return self.inner.memory(layer, zero)
