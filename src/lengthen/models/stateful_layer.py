"""Any layer that brings its own recurrence: two methods, and lengthen carries its state."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from lengthen.errors import InputError
from lengthen.models.call import Marks
from lengthen.models.family import Family, LayerKind
from lengthen.models.pieces import run_in_pieces
from lengthen.state import LayerState, TensorSpec


@runtime_checkable
class StatefulLayer(Protocol):
    """A torch.nn.Module with these two methods, whose forward(x) gives the y of scan(x, a zero state).

    wrap() finds such a layer by the methods, wherever it lies, and runs scan in place of its forward. It needs no
    notion of resets or padding: scan is called on the pieces between them. An attribute state_specs (tensor name ->
    TensorSpec) may say which axis numbers heads, and what is a window; without it every tensor is recurrent, one head.
    """

    def zero_state(self, rows: int, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """The state before the first position: named tensors of zeros, each [rows, ...], of this device and dtype.

        dtype is float64 in a float64 model and float32 in all others; scan must keep it.
        """
        ...

    def scan(self, x: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """One segment x [B, T, ...] from a state: (y [B, T, ...], the state after it), nothing changed in place."""
        ...


def zero_state(layer: Any, rows: int, device: torch.device, dtype: torch.dtype) -> LayerState:
    """The layer's own."""
    return layer.zero_state(rows, device, dtype)


def forward(layer: Any, x: Tensor, state: LayerState | None, marks: Marks) -> tuple[Tensor, LayerState]:
    """The layer's scan over one segment, cut at resets and where rows end."""
    if state is None:
        double = any(p.dtype == torch.float64 for p in layer.parameters()) or x.dtype == torch.float64
        state = layer.zero_state(x.shape[0], x.device, torch.float64 if double else torch.float32)

    def run(part: Tensor, before: LayerState) -> tuple[Tensor, LayerState]:
        versions = {name: t._version for name, t in before.items() if not t.is_inference()}
        y, after = layer.scan(part, dict(before))
        if any(before[name]._version != version for name, version in versions.items()):
            raise InputError(
                f"{type(layer).__name__}.scan changed the state it was given in place, where others may keep it; let it "
                "return new tensors."
            )
        if after.keys() != before.keys():
            raise InputError(
                f"{type(layer).__name__}.scan returned the state {sorted(after)}, but was given {sorted(before)}; let it "
                "return the same names."
            )
        return y, after

    return run_in_pieces(run, x, state, marks)


def require_one_input(name: str, layer: Any) -> None:
    """Raises InputError where the layer's forward takes more than x, which scan would never see."""
    further = list(inspect.signature(type(layer).forward).parameters)[2:]
    if further:
        raise InputError(
            f"The forward of {name} ({type(layer).__name__}) takes {further[0]!r}, which scan(x, state) would not be "
            "given; let it take x alone."
        )


def specs(layer: Any) -> Mapping[str, TensorSpec]:
    """The layer's state_specs, or recurrent for every tensor."""
    given = getattr(layer, "state_specs", None)
    names = layer.zero_state(1, torch.device("meta"), torch.float32)
    return given if given is not None else dict.fromkeys(names, TensorSpec("recurrent"))


FAMILY = Family(
    "stateful-layer",
    (
        LayerKind(
            name="stateful-layer",
            kernel="the layer's scan",
            layers=(),
            forward=forward,
            zero_state=zero_state,
            specs=specs,
        ),
    ),
)
