"""RWKV-7 (Peng et al., arXiv 2503.14456) with a state that goes in and comes out: time mix and channel mix.

B batch, T positions, D hidden size, H heads, K key dim, V value dim. State of a time mix: recurrent [B, H, K, V],
window [B, D, 1]; of a channel mix: window [B, D, 1]. A window is the input before the next position.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthen.kernels import rwkv7
from lengthen.models.call import Marks
from lengthen.models.family import Family
from lengthen.models.fla_on_cpu import activation
from lengthen.models.fla_parts import fla_kind, heads, precise, unit
from lengthen.models.rwkv6 import SPECS, change_of_input, channel_mix_returns, zero_window
from lengthen.state import LayerState

_FASTEST = -0.6065306597126334  # -exp(-1/2), the log-decay at a gate of 1


# -- time mix -----------------------------------------------------------------------------------------------------


def time_mix_zero_state(layer: Any, rows: int, device: torch.device, dtype: torch.dtype) -> LayerState:
    """The state before the first token: zeros."""
    recurrent = torch.zeros(rows, layer.num_heads, layer.head_dim, layer.head_v_dim, device=device, dtype=dtype)
    return {"recurrent": recurrent, **zero_window(layer, rows, device, dtype)}


def time_mix(
    layer: Any, x: Tensor, state: LayerState | None, marks: Marks, v_first: Tensor
) -> tuple[tuple[Tensor, Tensor], LayerState]:
    """One layer over one segment: x [B, T, D] -> ((y [B, T, D], the first layer's values [B, T, H V]), final state).

    v_first: the first layer's values, towards which the values of later layers are drawn; the first layer makes them.
    """
    state = state or {}
    change, window = change_of_input(x, state, marks)
    mixtures = (x + change * share for share in (layer.x_r, layer.x_w, layer.x_k, layer.x_v, layer.x_a, layer.x_g))
    for_receptance, for_decay, for_key, for_value, for_rate, for_gate = mixtures

    receptance, key, value = layer.r_proj(for_receptance), layer.k_proj(for_key), layer.v_proj(for_value)
    if layer.layer_idx == 0:
        v_first = value
    else:
        value = torch.lerp(value, v_first, layer.v_lora(for_value).sigmoid())
    decay, rate, gate = layer.w_lora(for_decay), layer.a_lora(for_rate).sigmoid(), layer.g_lora(for_gate)

    removed = heads(key * layer.k_k, layer.head_dim)
    removed = unit(removed).to(x.dtype) if layer.fuse_norm else F.normalize(removed, dim=-1)
    key = key.addcmul(key * (rate - 1), layer.k_a)
    receptance, key, rate = (heads(t, layer.head_dim) for t in (receptance, key, rate))
    value = heads(value, layer.head_v_dim)
    log_decay = _FASTEST * precise(heads(decay, layer.head_dim)).sigmoid()
    log_decay, written, taken = marks.hooked(log_decay, key, -removed)
    y, recurrent = rwkv7(
        receptance,
        marks.decay(log_decay),
        marks.gain(written),
        value,
        marks.gain(taken),
        removed * rate,
        reset=marks.reset,
        initial_state=state.get("recurrent"),
    )

    y = layer.g_norm(y.flatten(-2).flatten(0, 1)).view(*x.shape[:2], -1)
    y = y + ((receptance * key * layer.r_k).sum(-1, keepdim=True) * value).flatten(-2)
    return (layer.o_proj(y * gate), v_first), {"recurrent": recurrent, "window": window}


def time_mix_returns(layer: Any, y: tuple[Tensor, Tensor]) -> tuple[Tensor, None, None, Tensor]:
    """What fla's time mixes return: the output, no attention weights, no cache, the first layer's values."""
    return y[0], None, None, y[1]


# -- channel mix --------------------------------------------------------------------------------------------------


def channel_mix(layer: Any, x: Tensor, state: LayerState | None, marks: Marks) -> tuple[Tensor, LayerState]:
    """One layer over one segment: x [B, T, D] -> (y [B, T, D], final state)."""
    change, window = change_of_input(x, state or {}, marks)
    return layer.value(activation(layer.act_fn)(layer.key(x + change * layer.x_k))), {"window": window}


FAMILY = Family(
    "rwkv7",
    (
        fla_kind(
            name="rwkv7_time_mix",
            kernel="rwkv7",
            layers=("fla.layers.rwkv7.RWKV7Attention",),
            forward=time_mix,
            zero_state=time_mix_zero_state,
            specs=SPECS,
            quantities=frozenset({"decay", "offset", "gain"}),
            returns=time_mix_returns,
            arguments=("v_first",),
        ),
        fla_kind(
            name="rwkv7_channel_mix",
            kernel="token_shift",
            layers=("fla.models.rwkv7.modeling_rwkv7.RWKV7FeedForward",),
            forward=channel_mix,
            zero_state=zero_window,
            specs=SPECS,
            returns=channel_mix_returns,
        ),
    ),
)
