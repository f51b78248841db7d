"""What fla's layers of several families share: short convolutions, heads that share keys, the norm and gate at the end.

B batch, T positions, H heads, D channels, W convolution width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lengthen.kernels import short_conv
from lengthen.models.call import Marks
from lengthen.models.family import LayerKind
from lengthen.models.fla_on_cpu import activation, run_as_before, run_on_cpu
from lengthen.state import LayerState

_SMALLEST_SQUARE = 1e-6  # added to the squared norm of keys and queries


def returns(layer: Any, y: Tensor) -> tuple[Tensor, None, None]:
    """What fla's layers return: the output, no attention weights, no cache."""
    return y, None, None


def fla_kind(**fields: Any) -> LayerKind:
    """A kind of fla's layers (the fields of LayerKind): of a model with such, all of fla's modules run on a CPU.

    fla's own cache needs a GPU, and present transformers hand it on under a name that fla's models do not know.
    """
    usual: dict[str, Any] = {"returns": returns, "prepare": run_on_cpu, "restore": run_as_before, "own_cache": False}
    return LayerKind(**(usual | fields))


def zero_window(layer: Any, names: Sequence[str], rows: int, device: torch.device, dtype: torch.dtype) -> LayerState:
    """The window before the first token of the layer's convolutions of these names; nothing where it has none."""
    convolutions = [getattr(layer, name) for name in names if hasattr(layer, name)]
    if not convolutions:
        return {}
    channels, width = sum(c.hidden_size for c in convolutions), convolutions[0].kernel_size[0]
    return {"window": torch.zeros(rows, channels, width - 1, device=device, dtype=dtype)}


def convolved(
    layer: Any, names: Sequence[str], inputs: Sequence[Tensor], state: LayerState, marks: Marks
) -> tuple[list[Tensor], LayerState]:
    """The inputs [B, T, D] after the layer's convolutions of these names, and their common window [B, sum D, W - 1].

    A layer without convolutions gives back its inputs and no window.
    """
    if not hasattr(layer, names[0]):
        return list(inputs), {}
    convolutions = [getattr(layer, name) for name in names]
    bias = None if convolutions[0].bias is None else torch.cat([c.bias for c in convolutions])
    silu = convolutions[0].activation is not None
    alike = all((c.activation is not None) == silu for c in convolutions)
    mixed, window = short_conv(
        torch.cat(list(inputs), -1),
        torch.cat([c.weight.squeeze(1) for c in convolutions]),
        bias,
        window=state.get("window"),
        reset=marks.reset,
        lengths=marks.lengths,
        activation="silu" if silu and alike else None,
    )
    outputs = list(mixed.split([c.hidden_size for c in convolutions], -1))
    if not alike:
        outputs = [y if c.activation is None else torch.nn.functional.silu(y) for y, c in zip(outputs, convolutions)]
    return outputs, {"window": window}


def heads(x: Tensor, size: int, sharing: int = 1) -> Tensor:
    """[B, T, heads * size] as [B, T, H, size], every head of x standing for `sharing` heads."""
    split = x.unflatten(-1, (-1, size))
    return split if sharing == 1 else split.repeat_interleave(sharing, -2)


def precise(x: Tensor) -> Tensor:
    """x in at least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def unit(x: Tensor) -> Tensor:
    """x [..., K] with unit norm, as fla's kernels have it, in at least float32."""
    wide = precise(x)
    return wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + _SMALLEST_SQUARE)


def normed_and_gated(layer: Any, y: Tensor, x: Tensor) -> Tensor:
    """The recurrence's output [B, T, H, V] through the layer's norm and gate of its input x: [B, T, H * V]."""
    if getattr(layer, "fuse_norm_and_gate", False):
        return layer.g_norm_swish_gate(y, heads(layer.g_proj(x), y.shape[-1])).flatten(-2)
    normed = layer.g_norm(y).flatten(-2)
    return normed * activation(layer.gate_fn)(layer.g_proj(x)) if getattr(layer, "use_output_gate", True) else normed
