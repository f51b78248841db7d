"""The Mamba-2 layer (Dao and Gu, "Transformers are SSMs", 2024) with a state that goes in and comes out.

B batch, T positions, H heads, K state size per head ("key"), V head size ("value"), G groups, D = H V channels,
W convolution width. State: recurrent [B, H, K, V], window [B, D + 2 G K, W - 1] (inputs of the convolution).

One function for every library layer of the family. What sets them apart is read from the layer: the limits of the
step, muP multipliers of the input and of the projection, and whether there is a norm at the gate.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthen.kernels import ssd
from lengthen.models.call import Marks
from lengthen.models.convolution import convolved
from lengthen.models.family import Family, LayerKind
from lengthen.models.fla_parts import fla_kind
from lengthen.state import LayerState, TensorSpec

SPECS = {"recurrent": TensorSpec("recurrent", head_axis=1), "window": TensorSpec("window")}
QUANTITIES = frozenset({"decay", "offset", "gain", "step", "read"})


def zero_state(layer: Any, rows: int, device: torch.device, dtype: torch.dtype) -> LayerState:
    """The state before the first token: zeros."""
    recurrent = torch.zeros(rows, layer.num_heads, layer.ssm_state_size, layer.head_dim, device=device, dtype=dtype)
    window = torch.zeros(rows, layer.conv_dim, layer.conv_kernel_size - 1, device=device, dtype=dtype)
    return {"recurrent": recurrent, "window": window}


def forward(layer: Any, x: Tensor, state: LayerState | None, marks: Marks) -> tuple[Tensor, LayerState]:
    """One layer over one segment: x [B, T, hidden] -> (y [B, T, hidden], final state)."""
    rows, positions, _ = x.shape
    state = state or {}
    keys = layer.n_groups * layer.ssm_state_size
    gate, mixed, dt = _projected(layer, x).split([layer.intermediate_size, layer.conv_dim, layer.num_heads], dim=-1)
    mixed, window = convolved(layer, mixed, state, marks)
    value, key, query = mixed.split([layer.intermediate_size, keys, keys], dim=-1)

    log_decay, input_gain = _decay_and_gain(layer, dt, marks)
    wide_skip = layer.D.shape[0] != layer.num_heads  # one number a channel, not a head
    y, recurrent = marks.reading(ssd)(
        query.reshape(rows, positions, layer.n_groups, layer.ssm_state_size),
        key.reshape(rows, positions, layer.n_groups, layer.ssm_state_size),
        value.reshape(rows, positions, layer.num_heads, layer.head_dim),
        log_decay,
        input_gain,
        skip=None if wide_skip else layer.D,
        initial_state=state.get("recurrent"),
    )
    y = y.reshape(rows, positions, layer.intermediate_size)
    if wide_skip:
        y = y + layer.D * value
    # A layer without a norm has only the gate there.
    normed = getattr(layer, "mamba_rms_norm", True) and getattr(layer, "rmsnorm", True)
    y = layer.norm(y, gate) if normed else y * F.silu(gate)
    return layer.out_proj(y.to(x.dtype)), {"recurrent": recurrent, "window": window}


def _projected(layer: Any, x: Tensor) -> Tensor:
    """Gate, convolution input and step [B, T, D + D + 2 G K + H], with the layer's muP multipliers where it has them."""
    multiplier, vector = getattr(layer, "ssm_in_multiplier", None), getattr(layer, "mup_vector", None)
    projected = layer.in_proj(x if multiplier is None else x * multiplier)
    return projected if vector is None else projected * vector


def _decay_and_gain(layer: Any, dt: Tensor, marks: Marks) -> tuple[Tensor, Tensor]:
    """log-decay dt A and input gain dt, both [B, T, H] in at least float32; the identity where a position is padding."""
    precise = torch.promote_types(dt.dtype, torch.float32)
    low, high = layer.time_step_limit if hasattr(layer, "time_step_limit") else layer.dt_limit
    dt = F.softplus(dt.to(precise) + layer.dt_bias.to(precise)).clamp(low, high)
    log_decay, gain = marks.hooked(dt * -torch.exp(layer.A_log.to(precise)), dt, step=dt)
    return marks.decay(log_decay), marks.gain(gain)


FAMILY = Family(
    "mamba2",
    (
        LayerKind(
            name="mamba2",
            kernel="ssd",
            layers=(
                "transformers.models.mamba2.modeling_mamba2.Mamba2Mixer",
                "transformers.models.bamba.modeling_bamba.BambaMixer",
                "transformers.models.falcon_h1.modeling_falcon_h1.FalconH1Mixer",
                "transformers.models.granitemoehybrid.modeling_granitemoehybrid.GraniteMoeHybridMambaLayer",
                "transformers.models.nemotron_h.modeling_nemotron_h.NemotronHMamba2Mixer",
                "transformers.models.zamba2.modeling_zamba2.Zamba2MambaMixer",
            ),
            forward=forward,
            zero_state=zero_state,
            specs=SPECS,
            quantities=QUANTITIES,
        ),
        fla_kind(
            name="fla_mamba2",
            kernel="ssd",
            layers=("fla.layers.mamba2.Mamba2",),
            forward=forward,
            zero_state=zero_state,
            specs=SPECS,
            quantities=QUANTITIES,
        ),
    ),
)
