"""The causal convolution in front of a library's recurrence: from its window, with resets and padding, and its activation."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers.activations import ACT2FN

from lengthen.kernels import short_conv
from lengthen.models.call import Marks
from lengthen.models.fla_on_cpu import activation
from lengthen.state import LayerState


def convolved(layer: Any, x: Tensor, state: LayerState, marks: Marks) -> tuple[Tensor, Tensor]:
    """layer.conv1d of x [B, T, D] from the state's window, under the activation that layer.activation names; and the final
    window [B, D, width - 1]."""
    silu = layer.activation in ("silu", "swish")
    y, window = short_conv(
        x,
        layer.conv1d.weight.squeeze(1),
        layer.conv1d.bias,
        window=state.get("window"),
        reset=marks.reset,
        lengths=marks.lengths,
        activation="silu" if silu else None,
    )
    if silu:
        return y, window
    # The delta rules' layers hold no more than the name.
    act = activation(layer.act) if hasattr(layer, "act") else ACT2FN[layer.activation]
    return act(y), window
