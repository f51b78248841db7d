"""HGRN (Qin et al., arXiv 2311.04823) and HGRN-2 (arXiv 2404.07904) with a state that goes in and comes out.

B batch, T positions, D channels, H heads, K key dim, V value dim, C channels of all convolutions, W their width.
State: recurrent [B, D] of HGRN, [B, H, K, V] of HGRN-2; window [B, C, W - 1] (inputs of the convolutions) where the
layer has them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthen.kernels import gated_linear_attention, linear_scan
from lengthen.models.call import Marks
from lengthen.models.family import Family
from lengthen.models.fla_parts import convolved, fla_kind, heads, precise, zero_window
from lengthen.state import LayerState, TensorSpec

CONVOLUTIONS = ("i_conv1d", "f_conv1d")
CONVOLUTIONS_2 = ("q_conv1d", "f_conv1d", "i_conv1d")
_EPSILON = 1e-5  # HGRN-2's norm at the output, whatever the configuration says


def zero_state(layer: Any, rows: int, device: torch.device, dtype: torch.dtype) -> LayerState:
    """The state of an HGRN layer before the first token: zeros."""
    recurrent = torch.zeros(rows, layer.input_dim, device=device, dtype=dtype)
    return {"recurrent": recurrent, **zero_window(layer, CONVOLUTIONS, rows, device, dtype)}


def forward(
    layer: Any, x: Tensor, state: LayerState | None, marks: Marks, lower_bound: Tensor | None = None
) -> tuple[Tensor, LayerState]:
    """One HGRN layer over one segment: x [B, T, hidden] -> (y [B, T, hidden], final state).

    lower_bound: [D], what the forget gate is at least; the first layer has none.
    """
    state = state or {}
    (mixed, gate), window = convolved(layer, CONVOLUTIONS, [layer.i_proj(x), layer.f_proj(x)], state, marks)
    log_decay = _log_decay(layer, gate, lower_bound)
    log_decay, written = marks.hooked(log_decay, F.silu(mixed) * -torch.expm1(log_decay))
    y, recurrent = linear_scan(marks.decay(log_decay), marks.gain(written), initial_state=state.get("recurrent"))
    return layer.o_proj(layer.g_norm(y.to(x.dtype), layer.g_proj(x))), {"recurrent": recurrent, **window}


def zero_state_2(layer: Any, rows: int, device: torch.device, dtype: torch.dtype) -> LayerState:
    """The state of an HGRN-2 layer before the first token: zeros."""
    recurrent = torch.zeros(rows, layer.num_heads, layer.head_f_dim, layer.head_i_dim, device=device, dtype=dtype)
    return {"recurrent": recurrent, **zero_window(layer, CONVOLUTIONS_2, rows, device, dtype)}


def forward_2(
    layer: Any, x: Tensor, state: LayerState | None, marks: Marks, lower_bound: Tensor | None = None
) -> tuple[Tensor, LayerState]:
    """One HGRN-2 layer over one segment: x [B, T, hidden] -> (y [B, T, hidden], final state).

    lower_bound: [H K], what the forget gate is at least; the first layer has none.
    """
    state = state or {}
    projected = [layer.q_proj(x), layer.f_proj(x), layer.i_proj(x)]
    (query, gate, value), window = convolved(layer, CONVOLUTIONS_2, projected, state, marks)
    log_decay = heads(_log_decay(layer, gate, lower_bound), layer.head_f_dim)
    log_decay, key = marks.hooked(log_decay, -torch.expm1(log_decay))
    y, recurrent = marks.reading(gated_linear_attention)(
        heads(F.silu(query), layer.head_f_dim) * layer.head_f_dim**-0.5,
        marks.gain(key),
        heads(value, layer.head_i_dim),
        marks.decay(log_decay),
        initial_state=state.get("recurrent"),
    )
    y = F.rms_norm(precise(y.flatten(-2)), (layer.input_dim,), eps=_EPSILON)
    y = y if layer.g_norm.weight is None else y * layer.g_norm.weight.to(y.dtype)
    return layer.o_proj(y.to(x.dtype)), {"recurrent": recurrent, **window}


def _log_decay(layer: Any, gate: Tensor, lower_bound: Tensor | None) -> Tensor:
    """log of the forget gate, between the layer's lower bound and 1, in at least float32."""
    log_decay = F.logsigmoid(precise(gate))
    if lower_bound is None or layer.layer_idx == 0:
        return log_decay
    bound = precise(lower_bound)
    return torch.logaddexp(bound.log(), torch.log1p(-bound) + log_decay).to(log_decay.dtype)


FAMILY = Family(
    "hgrn",
    (
        fla_kind(
            name="hgrn",
            kernel="linear_scan",
            layers=("fla.layers.hgrn.HGRNAttention",),
            forward=forward,
            zero_state=zero_state,
            specs={"recurrent": TensorSpec("recurrent"), "window": TensorSpec("window")},
            quantities=frozenset({"decay", "offset", "gain"}),
            arguments=("lower_bound",),
        ),
        fla_kind(
            name="hgrn2",
            kernel="gated_linear_attention",
            layers=("fla.layers.hgrn2.HGRN2Attention",),
            forward=forward_2,
            zero_state=zero_state_2,
            specs={"recurrent": TensorSpec("recurrent", head_axis=1), "window": TensorSpec("window")},
            quantities=frozenset({"decay", "offset", "gain", "read"}),
            arguments=("lower_bound",),
        ),
    ),
)
