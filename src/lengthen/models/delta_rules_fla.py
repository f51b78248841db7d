"""fla's layers of the delta rule with a state that goes in and comes out: Gated DeltaNet, DeltaNet, Kimi's attention.

B batch, T positions, H heads, G groups of heads sharing query and key, K key dim, V value dim, D = 2 G K + H V channels
of the convolutions, W their width. State: recurrent [B, H, K, V]; window [B, D, W - 1] (inputs of the convolutions)
where the layer has them.

fla projects query, key and value apart and lets its kernels make decays, rates and unit norms of raw projections;
transformers' layers of the family are in delta_rules.py.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthen.kernels import gated_delta_rule
from lengthen.models.call import Marks
from lengthen.models.fla_parts import convolved, fla_kind, heads, precise, unit, zero_window
from lengthen.state import LayerState, TensorSpec

SPECS = {"recurrent": TensorSpec("recurrent", head_axis=1), "window": TensorSpec("window")}
QUANTITIES = frozenset({"decay", "offset", "gain"})  # the gain is on beta, which erases as it writes
CONVOLUTIONS = ("q_conv1d", "k_conv1d", "v_conv1d")


def zero_state(layer: Any, rows: int, device: torch.device, dtype: torch.dtype) -> LayerState:
    """The state before the first token: zeros."""
    number = getattr(layer, "num_v_heads", layer.num_heads)
    recurrent = torch.zeros(rows, number, layer.head_k_dim, layer.head_v_dim, device=device, dtype=dtype)
    return {"recurrent": recurrent, **zero_window(layer, CONVOLUTIONS, rows, device, dtype)}


def gated_delta_net(layer: Any, x: Tensor, state: LayerState | None, marks: Marks) -> tuple[Tensor, LayerState]:
    """One Gated DeltaNet layer (arXiv 2412.06464): x [B, T, hidden] -> (y [B, T, hidden], final state)."""
    query, key, value, window = _projected(layer, x, state or {}, marks)
    step = F.softplus(precise(layer.a_proj(x)) + precise(layer.dt_bias))
    log_decay = -torch.exp(precise(layer.A_log)) * step
    y, recurrent = _rule(layer, x, unit(query), unit(key), value, log_decay, state, marks)
    return _output(layer, y, x), {"recurrent": recurrent, **window}


def delta_attention(layer: Any, x: Tensor, state: LayerState | None, marks: Marks) -> tuple[Tensor, LayerState]:
    """One Kimi delta attention layer (arXiv 2510.26692): x [B, T, hidden] -> (y [B, T, hidden], final state)."""
    query, key, value, window = _projected(layer, x, state or {}, marks)
    gate = heads(precise(layer.f_proj(x)) + precise(layer.dt_bias), layer.head_k_dim)
    rate = torch.exp(precise(layer.A_log))[:, None]
    if layer.lower_bound is None:
        log_decay = -rate * F.softplus(gate)
    else:
        log_decay = layer.lower_bound * torch.sigmoid(rate * gate)
    y, recurrent = _rule(layer, x, unit(query), unit(key), value, log_decay, state, marks)
    return _output(layer, y, x), {"recurrent": recurrent, **window}


def delta_net(layer: Any, x: Tensor, state: LayerState | None, marks: Marks) -> tuple[Tensor, LayerState]:
    """One DeltaNet layer (arXiv 2406.06484), which decays nothing: x [B, T, hidden] -> (y, final state)."""
    query, key, value, window = _projected(layer, x, state or {}, marks)
    if layer.qk_norm == "l2":
        query, key = unit(query), unit(key)
    else:
        query, key = F.normalize(query, p=1, dim=-1, eps=1e-6), F.normalize(key, p=1, dim=-1, eps=1e-6)
    kept = None
    if marks.reset is not None or marks.hook is not None:
        kept = torch.zeros(*x.shape[:2], layer.num_heads, device=x.device)
    y, recurrent = _rule(layer, x, query, key, value, kept, state, marks)
    return _output(layer, y, x), {"recurrent": recurrent, **window}


def _projected(layer: Any, x: Tensor, state: LayerState, marks: Marks) -> tuple[Tensor, Tensor, Tensor, LayerState]:
    """Query and key [B, T, G, K] and value [B, T, H, V], past convolutions and activations, and the window."""
    projected = [layer.q_proj(x), layer.k_proj(x), layer.v_proj(x)]
    (query, key, value), window = convolved(layer, CONVOLUTIONS, projected, state, marks)
    name = getattr(layer, "qk_activation", "silu")
    if not window:
        value = F.silu(value)
    if name == "relu" or (name == "silu" and not window):
        query, key = getattr(F, name)(query), getattr(F, name)(key)
    elif name == "elu":
        query, key = F.elu(query) + 1, F.elu(key) + 1
    return heads(query, layer.head_k_dim), heads(key, layer.head_k_dim), heads(value, layer.head_v_dim), window


def _rule(
    layer: Any,
    x: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    state: LayerState | None,
    marks: Marks,
) -> tuple[Tensor, Tensor]:
    """Output [B, T, H, V] and final state [B, H, K, V]."""
    beta = (
        torch.sigmoid(precise(layer.b_proj(x)))
        if getattr(layer, "use_beta", True)
        else precise(torch.ones_like(value[..., 0]))
    )
    beta = 2 * beta if layer.allow_neg_eigval else beta
    if log_decay is not None:
        log_decay, beta = marks.hooked(log_decay, beta)
    return gated_delta_rule(
        query * layer.head_k_dim**-0.5,
        key,
        value,
        None if log_decay is None else marks.decay(log_decay),
        marks.gain(beta),
        initial_state=(state or {}).get("recurrent"),
    )


def _output(layer: Any, y: Tensor, x: Tensor) -> Tensor:
    gated = hasattr(layer, "g_proj")
    return layer.o_proj(
        (layer.o_norm(y, heads(layer.g_proj(x), layer.head_v_dim)) if gated else layer.o_norm(y)).flatten(-2)
    )


KINDS = tuple(
    fla_kind(
        name=name,
        kernel="gated_delta_rule",
        layers=(layer,),
        forward=forward,
        zero_state=zero_state,
        specs=SPECS,
        quantities=QUANTITIES,
    )
    for name, layer, forward in (
        ("fla_gated_delta_net", "fla.layers.gated_deltanet.GatedDeltaNet", gated_delta_net),
        ("fla_delta_attention", "fla.layers.kda.KimiDeltaAttention", delta_attention),
        ("fla_delta_net", "fla.layers.delta_net.DeltaNet", delta_net),
    )
)
