"""Gated linear attention (Yang et al., arXiv 2312.06635) with a state that goes in and comes out.

B batch, T positions, H heads, K key dim, V value dim, D = channels of query, key and value together, W convolution
width. State: recurrent [B, H, K, V]; window [B, D, W - 1] (inputs of the convolutions) where the layer has them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthen.kernels import gated_linear_attention
from lengthen.models.call import Marks
from lengthen.models.family import Family
from lengthen.models.fla_on_cpu import activation
from lengthen.models.fla_parts import convolved, fla_kind, heads, normed_and_gated, precise, zero_window
from lengthen.state import LayerState, TensorSpec

SPECS = {"recurrent": TensorSpec("recurrent", head_axis=1), "window": TensorSpec("window")}
CONVOLUTIONS = ("q_conv1d", "k_conv1d", "v_conv1d")


def zero_state(layer: Any, rows: int, device: torch.device, dtype: torch.dtype) -> LayerState:
    """The state before the first token: zeros."""
    recurrent = torch.zeros(rows, layer.num_heads, layer.head_k_dim, layer.head_v_dim, device=device, dtype=dtype)
    return {"recurrent": recurrent, **zero_window(layer, CONVOLUTIONS, rows, device, dtype)}


def forward(layer: Any, x: Tensor, state: LayerState | None, marks: Marks) -> tuple[Tensor, LayerState]:
    """One layer over one segment: x [B, T, hidden] -> (y [B, T, hidden], final state)."""
    state = state or {}
    projected = [layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)]
    (query, key, value), window = convolved(layer, CONVOLUTIONS, projected, state, marks)
    gate = layer.gk_proj(x)

    sharing = layer.num_kv_groups
    query = heads(query, layer.head_k_dim)
    key, gate = heads(key, layer.head_k_dim, sharing), heads(gate, layer.head_k_dim, sharing)
    value = heads(value, layer.head_v_dim, sharing)
    if layer.feature_map_fn is not None:
        feature_map = activation(layer.feature_map_fn)
        query, key = feature_map(query), feature_map(key)

    log_decay = F.logsigmoid(precise(gate)) / layer.gate_logit_normalizer
    if layer.clamp_min is not None:
        log_decay = log_decay.clamp_min(layer.clamp_min)
    log_decay, key = marks.hooked(log_decay, key)
    y, recurrent = marks.reading(gated_linear_attention)(
        query * layer.head_k_dim**-0.5,
        marks.gain(key),
        value,
        marks.decay(log_decay),
        initial_state=state.get("recurrent"),
    )
    return layer.o_proj(normed_and_gated(layer, y, x)), {"recurrent": recurrent, **window}


FAMILY = Family(
    "gla",
    (
        fla_kind(
            name="gla",
            kernel="gated_linear_attention",
            layers=("fla.layers.gla.GatedLinearAttention",),
            forward=forward,
            zero_state=zero_state,
            specs=SPECS,
            quantities=frozenset({"decay", "offset", "gain", "read"}),
        ),
    ),
)
