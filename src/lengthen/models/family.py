"""What a layer family is: the library's layer classes it runs, and the pure function that runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lengthen.state import LayerState, TensorSpec


def _output_alone(layer: Any, y: Tensor) -> Any:
    return y


def _nothing(model: nn.Module) -> None:
    pass


@dataclass(frozen=True)
class LayerKind:
    """One kind of layer with a state of its own.

    name: unique among all kinds. kernel: the recurrence it runs on (a function of lengthen.kernels).
    layers: qualified names of the library's layer classes ("package.module.Class").
    forward: (layer, x [B, T, D], state or None, marks) -> (y [B, T, D], state); pure.
    zero_state: (layer, rows, device, dtype) -> the zero state of one layer; dtype is float32 or float64.
    specs: what each tensor of the state is; a layer need not have them all. A function of the layer where it decides.
    returns: (layer, y) -> what the library's forward of this layer returns where y is the output; y alone unless said.
    arguments: further arguments of the library's forward that this one takes too, by name.
    own_cache: whether the library's own forward carries its cache wherever it runs; where not, generate() goes from one
    of lengthen's states to the next.
    quantities: of hooks.QUANTITIES, what the forward hands to a hook through its marks.
    prepare, restore: (model) -> None, what wrap() does first and unwrap() last to a model with such layers; prepare may
    refuse it with an InputError.
    """

    name: str
    kernel: str
    layers: tuple[str, ...]
    forward: Callable[..., tuple[Any, LayerState]]
    zero_state: Callable[[Any, int, torch.device, torch.dtype], LayerState]
    specs: Mapping[str, TensorSpec] | Callable[[Any], Mapping[str, TensorSpec]]
    returns: Callable[[Any, Any], Any] = _output_alone
    arguments: tuple[str, ...] = ()
    own_cache: bool = True
    quantities: frozenset[str] = frozenset()
    prepare: Callable[[nn.Module], None] = _nothing
    restore: Callable[[nn.Module], None] = _nothing

    def specs_of(self, layer: Any) -> Mapping[str, TensorSpec]:
        """The specs of one layer's state."""
        return self.specs(layer) if callable(self.specs) else self.specs


@dataclass(frozen=True)
class Family:
    """A layer family: one kind of layer, or those that work together (time mix and channel mix)."""

    name: str
    kinds: tuple[LayerKind, ...]
