"""RWKV-6 (Peng et al., arXiv 2404.05892) with a state that goes in and comes out: time mix and channel mix.

B batch, T positions, D hidden size, H heads, K key dim, V value dim. State of a time mix: recurrent [B, H, K, V],
window [B, D, 1]; of a channel mix: window [B, D, 1]. A window is the input before the next position.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthen.kernels import gated_linear_attention, token_shift
from lengthen.models.call import Marks
from lengthen.models.family import Family
from lengthen.models.fla_on_cpu import activation
from lengthen.models.fla_parts import fla_kind, heads, precise
from lengthen.models.plain import is_plain_linear
from lengthen.state import LayerState, TensorSpec

SPECS = {"recurrent": TensorSpec("recurrent", head_axis=1), "window": TensorSpec("window")}


# -- time mix -----------------------------------------------------------------------------------------------------


def time_mix_zero_state(layer: Any, rows: int, device: torch.device, dtype: torch.dtype) -> LayerState:
    """The state before the first token: zeros."""
    recurrent = torch.zeros(rows, layer.num_heads, layer.head_k_dim, layer.head_v_dim, device=device, dtype=dtype)
    return {"recurrent": recurrent, **zero_window(layer, rows, device, dtype)}


def time_mix(layer: Any, x: Tensor, state: LayerState | None, marks: Marks) -> tuple[Tensor, LayerState]:
    """One layer over one segment: x [B, T, D] -> (y [B, T, D], final state)."""
    state = state or {}
    change, window = change_of_input(x, state, marks)

    # Five mixtures of an input and the one before it, each from its own block of one low-rank projection.
    narrow, squash, widen = layer.x_proj
    low = squash(narrow(x, change).unflatten(-1, (5, -1)))
    shares = _widened(widen, low) + layer.x_bias
    projections = (layer.r_proj, layer.w_proj, layer.k_proj, layer.v_proj, layer.g_proj)
    receptance, decay, key, value, gate = (
        projection(x, share, change) for projection, share in zip(projections, shares.unbind(-2))
    )

    log_decay = -torch.exp(precise(heads(decay, layer.head_k_dim)))
    log_decay, gain = marks.hooked(log_decay, torch.ones_like(log_decay[..., 0]))
    log_decay, gain, initial = marks.decay(log_decay), marks.gain(gain), state.get("recurrent")
    if marks.reset is not None:  # an output reads the state before its position: what precedes a reset leaves none
        last = F.pad(marks.reset[:, 1:], (0, 1))[..., None]
        log_decay, gain = log_decay.masked_fill(last[..., None], float("-inf")), gain.masked_fill(last, 0)
        initial = None if initial is None else initial.masked_fill(marks.reset[:, :1, None, None], 0)
    y, recurrent = marks.reading(gated_linear_attention)(
        heads(receptance, layer.head_k_dim),
        heads(key, layer.head_k_dim),
        heads(value, layer.head_v_dim),
        log_decay,
        gain,
        bonus=layer.bonus,
        initial_state=initial,
    )
    y = layer.g_norm(y.flatten(-2)) * activation(layer.gate_fn)(gate)
    return layer.o_proj(y), {"recurrent": recurrent, "window": window}


def _widened(projection: Any, low: Tensor) -> Tensor:
    """low [B, T, 5, R] through a projection of 5 R numbers, each of the five alone: [B, T, 5, D]."""
    if is_plain_linear(projection):
        return torch.einsum("btnr,dnr->btnd", low, projection.weight.unflatten(-1, (5, -1)))
    alone = low.unsqueeze(-2) * torch.eye(5, dtype=low.dtype, device=low.device)[..., None]
    return projection(alone.flatten(-2))


# -- channel mix --------------------------------------------------------------------------------------------------


def zero_window(layer: Any, rows: int, device: torch.device, dtype: torch.dtype) -> LayerState:
    """The window before the first token: zeros."""
    return {"window": torch.zeros(rows, layer.hidden_size, 1, device=device, dtype=dtype)}


def channel_mix(layer: Any, x: Tensor, state: LayerState | None, marks: Marks) -> tuple[Tensor, LayerState]:
    """One layer over one segment: x [B, T, D] -> (y [B, T, D], final state)."""
    change, window = change_of_input(x, state or {}, marks)
    value = layer.value(activation(layer.act_fn)(layer.key(x, change)))
    return layer.receptance(x, change).sigmoid() * value, {"window": window}


def change_of_input(x: Tensor, state: LayerState, marks: Marks) -> tuple[Tensor, Tensor]:
    """What the input before each position differs from its own by [B, T, D], and the window after the segment."""
    before, window = token_shift(x, window=state.get("window"), reset=marks.reset, lengths=marks.lengths)
    return before - x, window


def channel_mix_returns(layer: Any, y: Tensor) -> tuple[Tensor, None]:
    """What fla's channel mixes return: the output, no cache."""
    return y, None


FAMILY = Family(
    "rwkv6",
    (
        fla_kind(
            name="rwkv6_time_mix",
            kernel="gated_linear_attention",
            layers=("fla.layers.rwkv6.RWKV6Attention",),
            forward=time_mix,
            zero_state=time_mix_zero_state,
            specs=SPECS,
            quantities=frozenset({"decay", "offset", "gain", "read"}),
        ),
        fla_kind(
            name="rwkv6_channel_mix",
            kernel="token_shift",
            layers=("fla.models.rwkv6.modeling_rwkv6.RWKV6FeedForward",),
            forward=channel_mix,
            zero_state=zero_window,
            specs=SPECS,
            returns=channel_mix_returns,
        ),
    ),
)
