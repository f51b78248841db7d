"""The table of layer families: which library layers lengthen can run, and with which pure function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lengthen.models import mamba1, mamba2
from lengthen.models.call import Marks
from lengthen.state import LayerState, TensorSpec


@dataclass(frozen=True)
class Family:
    """One layer family.

    layers: qualified names of the library's layer classes ("package.module.Class").
    forward: (layer, x [B, T, D], state or None, marks) -> (y [B, T, D], state); pure.
    zero_state: (layer, rows, device, dtype) -> the zero state of one layer.
    specs: what each tensor of the state is.
    """

    name: str
    layers: tuple[str, ...]
    forward: Callable[[Any, Tensor, LayerState | None, Marks], tuple[Tensor, LayerState]]
    zero_state: Callable[[Any, int, torch.device, torch.dtype], LayerState]
    specs: Mapping[str, TensorSpec]


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in [
        Family(
            name="mamba1",
            layers=(
                "transformers.models.mamba.modeling_mamba.MambaMixer",
                "transformers.models.falcon_mamba.modeling_falcon_mamba.FalconMambaMixer",
                "transformers.models.jamba.modeling_jamba.JambaMambaMixer",
            ),
            forward=mamba1.forward,
            zero_state=mamba1.zero_state,
            specs=mamba1.SPECS,
        ),
        Family(
            name="mamba2",
            layers=(
                "transformers.models.mamba2.modeling_mamba2.Mamba2Mixer",
                "transformers.models.bamba.modeling_bamba.BambaMixer",
                "transformers.models.falcon_h1.modeling_falcon_h1.FalconH1Mixer",
                "transformers.models.granitemoehybrid.modeling_granitemoehybrid.GraniteMoeHybridMambaLayer",
                "transformers.models.nemotron_h.modeling_nemotron_h.NemotronHMamba2Mixer",
                "transformers.models.zamba2.modeling_zamba2.Zamba2MambaMixer",
            ),
            forward=mamba2.forward,
            zero_state=mamba2.zero_state,
            specs=mamba2.SPECS,
        ),
    ]
}


def family_of(layer: nn.Module) -> Family | None:
    """The family that can run this layer, or None."""
    names = {f"{cls.__module__}.{cls.__qualname__}" for cls in type(layer).__mro__}
    return next((family for family in FAMILIES.values() if names & set(family.layers)), None)
