"""Layers of the gated delta rule with a state that goes in and comes out: Gated DeltaNet, and Kimi's delta attention.

B batch, T positions, H heads, G groups of heads sharing query and key, K key dim, V value dim, D = 2 G K + H V channels
of the convolution, W its width. State: recurrent [B, H, K, V], window [B, D, W - 1] (inputs of the convolution).

Two kinds of layers: Gated DeltaNet (Yang et al., arXiv 2412.06464) has one decay a head, Kimi's delta attention (Kimi
Linear, arXiv 2510.26692) one a key channel. What sets the library's classes of a kind apart is how they cut their
projections, which is read from the layer.
"""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthen.kernels import gated_delta_rule
from lengthen.models import delta_rules_fla
from lengthen.models.call import Marks
from lengthen.models.convolution import convolved
from lengthen.models.family import Family, LayerKind
from lengthen.state import LayerState, TensorSpec

SPECS = {"recurrent": TensorSpec("recurrent", head_axis=1), "window": TensorSpec("window")}
_OWN_CACHE = torch.cuda.is_available() or importlib.util.find_spec("fla") is None
"""Where fla is installed transformers calls its kernels, which need a GPU."""
_SMALLEST_SQUARE = 1e-6  # added to the squared norm of keys and queries by every class


class _Projected(NamedTuple):
    """What a layer's projections make of its input."""

    mixed: Tensor  # [B, T, D]: query, key and value before the convolution
    gate: Tensor  # [B, T, H V]: of the output
    step: Tensor  # [B, T, H]: beta before its sigmoid
    log_decay: Tensor  # [B, T, H], or [B, T, H, K], in at least float32


class _Sizes(NamedTuple):
    groups: int  # G
    heads: int  # H
    key: int  # K
    value: int  # V


# -- Gated DeltaNet ----------------------------------------------------------------------------------------------------


def _net_sizes(layer: Any) -> _Sizes:
    return _Sizes(layer.num_k_heads, layer.num_v_heads, layer.head_k_dim, layer.head_v_dim)


def net_zero_state(layer: Any, rows: int, device: torch.device, dtype: torch.dtype) -> LayerState:
    """The state of a Gated DeltaNet layer before the first token: zeros."""
    return _zero_state(layer, _net_sizes(layer), rows, device, dtype)


def net_forward(layer: Any, x: Tensor, state: LayerState | None, marks: Marks) -> tuple[Tensor, LayerState]:
    """One Gated DeltaNet layer over one segment: x [B, T, hidden] -> (y [B, T, hidden], final state)."""
    if hasattr(layer, "in_proj_qkvz"):  # fused, ordered by group
        *parts, gate, step, rate = layer.fix_query_key_value_ordering(layer.in_proj_qkvz(x), layer.in_proj_ba(x))
        mixed, gate = torch.cat([part.flatten(2) for part in parts], -1), gate.flatten(2)
    elif hasattr(layer, "in_proj_qkv"):
        mixed, gate = layer.in_proj_qkv(x), layer.in_proj_z(x)
        step, rate = layer.in_proj_b(x), layer.in_proj_a(x)
    else:
        mixed, gate = torch.cat([layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)], -1), layer.g_proj(x)
        step, rate = layer.b_proj(x), layer.a_proj(x)
    precise = torch.promote_types(rate.dtype, torch.float32)
    log_decay = -torch.exp(layer.A_log.to(precise)) * F.softplus(rate.to(precise) + layer.dt_bias.to(precise))
    return _forward(layer, _net_sizes(layer), _Projected(mixed, gate, step, log_decay), state, marks)


# -- Kimi's delta attention --------------------------------------------------------------------------------------------


def _attention_sizes(layer: Any) -> _Sizes:
    return _Sizes(layer.num_heads, layer.num_heads, layer.head_dim, layer.head_dim)


def attention_zero_state(layer: Any, rows: int, device: torch.device, dtype: torch.dtype) -> LayerState:
    """The state of a delta attention layer before the first token: zeros."""
    return _zero_state(layer, _attention_sizes(layer), rows, device, dtype)


def attention_forward(layer: Any, x: Tensor, state: LayerState | None, marks: Marks) -> tuple[Tensor, LayerState]:
    """One delta attention layer over one segment: x [B, T, hidden] -> (y [B, T, hidden], final state)."""
    mixed = torch.cat([layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)], -1)
    gate = layer.g_b_proj(layer.g_a_proj(x)) if hasattr(layer, "g_a_proj") else layer.g_proj(x)
    projected = _Projected(mixed, gate, layer.b_proj(x), layer.forget_gate(x))
    return _forward(layer, _attention_sizes(layer), projected, state, marks)


# -- both --------------------------------------------------------------------------------------------------------------


def _zero_state(layer: Any, sizes: _Sizes, rows: int, device: torch.device, dtype: torch.dtype) -> LayerState:
    recurrent = torch.zeros(rows, sizes.heads, sizes.key, sizes.value, device=device, dtype=dtype)
    window = torch.zeros(rows, layer.conv_dim, layer.conv_kernel_size - 1, device=device, dtype=dtype)
    return {"recurrent": recurrent, "window": window}


def _forward(
    layer: Any, sizes: _Sizes, projected: _Projected, state: LayerState | None, marks: Marks
) -> tuple[Tensor, LayerState]:
    rows, positions, _ = projected.mixed.shape
    state = state or {}
    mixed, window = convolved(layer, projected.mixed, state, marks)
    keys = sizes.groups * sizes.key
    query, key, value = mixed.split([keys, keys, sizes.heads * sizes.value], dim=-1)

    precise = torch.promote_types(mixed.dtype, torch.float32)
    beta = projected.step.to(precise).sigmoid()
    if getattr(layer, "allow_neg_eigval", False):
        beta = 2 * beta
    log_decay, beta = marks.hooked(projected.log_decay.to(precise), beta)
    y, recurrent = gated_delta_rule(
        _unit(query.reshape(rows, positions, sizes.groups, sizes.key).to(precise)) * sizes.key**-0.5,
        _unit(key.reshape(rows, positions, sizes.groups, sizes.key).to(precise)),
        value.reshape(rows, positions, sizes.heads, sizes.value),
        marks.decay(log_decay),
        marks.gain(beta),
        initial_state=state.get("recurrent"),
    )
    norm, out = (layer.o_norm, layer.o_proj) if hasattr(layer, "o_norm") else (layer.norm, layer.out_proj)
    y = norm(y, projected.gate.view(y.shape)).flatten(2)
    return out(y.to(projected.mixed.dtype)), {"recurrent": recurrent, "window": window}


def _unit(x: Tensor) -> Tensor:
    """x [..., K] with unit norm."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _SMALLEST_SQUARE)


FAMILY = Family(
    "delta_rule",
    (
        LayerKind(
            name="gated_delta_net",
            kernel="gated_delta_rule",
            layers=(
                "transformers.models.lara_mini.modeling_lara_mini.LaraMiniGatedDeltaNet",
                "transformers.models.olmo_hybrid.modeling_olmo_hybrid.OlmoHybridGatedDeltaNet",
                "transformers.models.qwen3_5.modeling_qwen3_5.Qwen3_5GatedDeltaNet",
                "transformers.models.qwen3_5_moe.modeling_qwen3_5_moe.Qwen3_5MoeGatedDeltaNet",
                "transformers.models.qwen3_next.modeling_qwen3_next.Qwen3NextGatedDeltaNet",
                "transformers.models.qwen4_exp.modeling_qwen4_exp.Qwen4ExpTextGatedDeltaNet",
            ),
            forward=net_forward,
            zero_state=net_zero_state,
            specs=SPECS,
            quantities=delta_rules_fla.QUANTITIES,
            own_cache=_OWN_CACHE,
        ),
        LayerKind(
            name="delta_attention",
            kernel="gated_delta_rule",
            layers=(
                "transformers.models.bailing_hybrid.modeling_bailing_hybrid.BailingHybridDeltaAttention",
                "transformers.models.kimi_linear.modeling_kimi_linear.KimiLinearDeltaAttention",
            ),
            forward=attention_forward,
            zero_state=attention_zero_state,
            specs=SPECS,
            quantities=delta_rules_fla.QUANTITIES,
            own_cache=_OWN_CACHE,
        ),
        *delta_rules_fla.KINDS,
    ),
)
