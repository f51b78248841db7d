"""RetNet (Sun et al., arXiv 2307.08621) and plain linear attention with a state that goes in and comes out.

B batch, T positions, H heads, K key dim, V value dim, D = channels of query, key and value together, W convolution
width. State of RetNet: recurrent [B, H, K, V]; window [B, D, W - 1] (inputs of the convolutions) where the layer has
them. Of linear attention: recurrent [B, H, K, V]; normaliser [B, H, K] (the sum of keys) where the layer divides by it.

RetNet turns queries and keys by angles that grow with the position. Only differences of positions matter, so a state
needs no position: its keys are kept as seen from the position that comes next, and every segment starts from 0. A
segment of T positions leaves S = sum_s decay^(T-1-s) R(s) k_s v_s^T, with R(s) the turn at position s; seen from its end
that is R(-T) S, since R(-T) R(s) = R(s - T).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthen.kernels import ssd
from lengthen.models.call import Marks
from lengthen.models.family import Family
from lengthen.models.fla_on_cpu import activation
from lengthen.models.fla_parts import convolved, fla_kind, heads, normed_and_gated, precise, zero_window
from lengthen.state import LayerState, TensorSpec

CONVOLUTIONS = ("q_conv1d", "k_conv1d", "v_conv1d")
_NEARLY_ZERO = 1e-4  # what fla adds to the sum of a feature map
_NEVER_ZERO = 1e-10  # and to the normaliser


# -- RetNet -------------------------------------------------------------------------------------------------------


def retention_zero_state(layer: Any, rows: int, device: torch.device, dtype: torch.dtype) -> LayerState:
    """The state of a retention before the first token: zeros."""
    recurrent = torch.zeros(rows, layer.num_heads, layer.head_k_dim, layer.head_v_dim, device=device, dtype=dtype)
    return {"recurrent": recurrent, **zero_window(layer, CONVOLUTIONS, rows, device, dtype)}


def retention(layer: Any, x: Tensor, state: LayerState | None, marks: Marks) -> tuple[Tensor, LayerState]:
    """One retention over one segment: x [B, T, hidden] -> (y [B, T, hidden], final state).

    A token that a hook skips turns the state all the same: its position passes.
    """
    state = state or {}
    projected = [layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)]
    (query, key, value), window = convolved(layer, CONVOLUTIONS, projected, state, marks)
    query, key = heads(query, layer.head_k_dim), heads(key, layer.head_k_dim)
    value = heads(value, layer.head_v_dim, layer.num_kv_groups)
    if layer.feature_map_fn is not None:
        query, key = activation(layer.feature_map_fn)(query), activation(layer.feature_map_fn)(key)
    positions = torch.arange(x.shape[1], device=x.device)[None, :, None]
    query, key = _turned(layer.rotary, query, positions), _turned(layer.rotary, key, positions)
    key = key.repeat_interleave(layer.num_kv_groups, -2)

    decays = torch.log1p(-(2.0 ** (-5 - torch.arange(layer.num_heads, device=x.device, dtype=torch.float64))))
    log_decay = decays.to(precise(query).dtype).expand(*x.shape[:2], -1)
    log_decay, key = marks.hooked(log_decay, key)
    y, recurrent = ssd(
        query * layer.head_k_dim**-0.5,
        marks.gain(key),
        value,
        marks.decay(log_decay),
        initial_state=state.get("recurrent"),
    )
    lengths = torch.full_like(x[:, 0, 0], x.shape[1]) if marks.lengths is None else marks.lengths
    ended = _turned(layer.rotary, recurrent.mT, -lengths[:, None, None]).mT
    return layer.o_proj(normed_and_gated(layer, y, x)), {"recurrent": ended, **window}


def _turned(rotary: Any, x: Tensor, positions: Tensor) -> Tensor:
    """x [..., K] turned as the layer's rotary embedding turns it at these positions, which broadcast against x[..., 0].

    Angles are computed in float64: in float32 they are off by 1e-3 at position 10,000.
    """
    rates = rotary.base ** (-torch.arange(0, rotary.dim, 2, device=x.device, dtype=torch.float64) / rotary.dim)
    angles = positions[..., None] * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


# -- linear attention ---------------------------------------------------------------------------------------------


def linear_attention_zero_state(layer: Any, rows: int, device: torch.device, dtype: torch.dtype) -> LayerState:
    """The state of a linear attention before the first token: zeros."""
    recurrent = torch.zeros(rows, layer.num_heads, _width(layer), layer.head_v_dim, device=device, dtype=dtype)
    return {"recurrent": recurrent} | ({"normaliser": recurrent[..., 0].clone()} if layer.do_feature_map_norm else {})


@torch.no_grad()
def _width(layer: Any) -> int:
    """The key dim that the layer's feature map makes."""
    weight = layer.k_proj.weight
    return layer.feature_map_k(weight.new_zeros(1, 1, 1, layer.head_k_dim)).shape[-1]


def linear_attention(layer: Any, x: Tensor, state: LayerState | None, marks: Marks) -> tuple[Tensor, LayerState]:
    """One linear attention over one segment: x [B, T, hidden] -> (y [B, T, hidden], final state)."""
    state = state or {}
    query = layer.feature_map_q(heads(layer.q_proj(x), layer.head_k_dim))
    key = layer.feature_map_k(heads(layer.k_proj(x), layer.head_k_dim, layer.num_kv_groups))
    value = heads(layer.v_proj(x), layer.head_v_dim, layer.num_kv_groups)
    if layer.norm_q:
        query = query / (query.sum(-1, keepdim=True) + _NEARLY_ZERO)
    if layer.norm_k:
        key = key / (key.sum(-1, keepdim=True) + _NEARLY_ZERO)

    initial = state.get("recurrent")
    if layer.do_feature_map_norm:  # a value of 1 at every position sums the keys
        value = F.pad(value, (0, 1), value=1.0)
        initial = None if initial is None else torch.cat([initial, state["normaliser"][..., None]], -1)
    log_decay, key = marks.hooked(precise(torch.zeros_like(key[..., 0])), key)
    y, recurrent = marks.reading(ssd)(
        query * query.shape[-1] ** -0.5,
        marks.gain(key),
        value,
        marks.decay(log_decay),
        initial_state=initial,
    )
    final = {"recurrent": recurrent}
    if layer.do_feature_map_norm:
        y = y[..., :-1] / (y[..., -1:] + _NEVER_ZERO)
        final = {"recurrent": recurrent[..., :-1].clone(), "normaliser": recurrent[..., -1].clone()}
    return layer.o_proj(layer.norm(y).flatten(-2)), final


FAMILY = Family(
    "retnet",
    (
        fla_kind(
            name="retention",
            kernel="ssd",
            layers=("fla.layers.multiscale_retention.MultiScaleRetention",),
            forward=retention,
            zero_state=retention_zero_state,
            specs={"recurrent": TensorSpec("recurrent", head_axis=1), "window": TensorSpec("window")},
            quantities=frozenset({"decay", "offset", "gain"}),
        ),
        fla_kind(
            name="linear_attention",
            kernel="ssd",
            layers=("fla.layers.linear_attn.LinearAttention",),
            forward=linear_attention,
            zero_state=linear_attention_zero_state,
            specs={
                "recurrent": TensorSpec("recurrent", head_axis=1),
                "normaliser": TensorSpec("recurrent", head_axis=1, noise=False),
            },
            quantities=frozenset({"decay", "offset", "gain", "read"}),
        ),
    ),
)
