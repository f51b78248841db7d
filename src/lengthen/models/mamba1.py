"""The Mamba-1 layer (Gu and Dao, arXiv 2312.00752) with a state that goes in and comes out.

B batch, T positions, D channels, N state per channel, R rank of the step, W convolution width. State: recurrent
[B, D, N], window [B, D, W - 1] (inputs of the convolution).

One function for every library layer of the family: those with norms on step, write and read have them as attributes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthen.kernels import selective_scan, short_conv
from lengthen.models.call import Marks
from lengthen.models.family import Family, LayerKind
from lengthen.models.plain import is_plain_linear
from lengthen.state import LayerState, TensorSpec

SPECS = {"recurrent": TensorSpec("recurrent"), "window": TensorSpec("window")}


def zero_state(layer: Any, rows: int, device: torch.device, dtype: torch.dtype) -> LayerState:
    """The state before the first token: zeros."""
    recurrent = torch.zeros(rows, layer.intermediate_size, layer.ssm_state_size, device=device, dtype=dtype)
    window = torch.zeros(rows, layer.intermediate_size, layer.conv_kernel_size - 1, device=device, dtype=dtype)
    return {"recurrent": recurrent, "window": window}


def forward(layer: Any, x: Tensor, state: LayerState | None, marks: Marks) -> tuple[Tensor, LayerState]:
    """One layer over one segment: x [B, T, hidden] -> (y [B, T, hidden], final state)."""
    state = state or {}
    mixed, gate = layer.in_proj(x).chunk(2, dim=-1)

    silu = layer.activation in ("silu", "swish")
    mixed, window = short_conv(
        mixed,
        layer.conv1d.weight.squeeze(1),
        layer.conv1d.bias,
        window=state.get("window"),
        reset=marks.reset,
        lengths=marks.lengths,
        activation="silu" if silu else None,
    )
    if not silu:
        mixed = layer.act(mixed)

    sizes = [layer.time_step_rank, layer.ssm_state_size, layer.ssm_state_size]
    step, write, read = layer.x_proj(mixed).split(sizes, dim=-1)
    if hasattr(layer, "dt_layernorm"):
        step, write, read = layer.dt_layernorm(step), layer.b_layernorm(write), layer.c_layernorm(read)
    dt, bias = _step(layer.dt_proj, step)
    real = marks.real(x.shape[1])
    if real is not None:  # a step of softplus(-inf) = 0 keeps the state
        dt = dt.masked_fill(~real[..., None], float("-inf"))

    precise = torch.promote_types(layer.A_log.dtype, torch.float32)
    y, recurrent = selective_scan(
        mixed,
        dt,
        -torch.exp(layer.A_log.to(precise)),
        write,
        read,
        skip=layer.D,
        gate=gate,
        dt_bias=bias,
        dt_softplus=True,
        reset=marks.reset,
        initial_state=state.get("recurrent"),
    )
    return layer.out_proj(y.to(x.dtype)), {"recurrent": recurrent, "window": window}


def _step(projection: Any, step: Tensor) -> tuple[Tensor, Tensor | None]:
    """The step [B, T, D] before softplus, and a bias [D] still to be added: in float32 by the kernel where it can be.

    Half precision would round the sum by several per cent of the step.
    """
    if is_plain_linear(projection):
        return F.linear(step, projection.weight), projection.bias
    return projection(step), None


FAMILY = Family(
    "mamba1",
    (
        LayerKind(
            name="mamba1",
            kernel="selective_scan",
            layers=(
                "transformers.models.mamba.modeling_mamba.MambaMixer",
                "transformers.models.falcon_mamba.modeling_falcon_mamba.FalconMambaMixer",
                "transformers.models.jamba.modeling_jamba.JambaMambaMixer",
            ),
            forward=forward,
            zero_state=zero_state,
            specs=SPECS,
        ),
    ),
)
