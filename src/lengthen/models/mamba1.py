"""The Mamba-1 layer (Gu and Dao, arXiv 2312.00752) with a state that goes in and comes out.

B batch, T positions, D channels, N state per channel, R rank of the step, W convolution width. State: recurrent
[B, D, N], window [B, D, W - 1] (inputs of the convolution).

One function for every library layer of the kind: those with norms on step, write and read have them as attributes.
A second kind is Zamba's layer (arXiv 2405.16712), whose channels fall into H heads of P, each with its own step, write
and read. Its recurrent state is [B, H, N, P].
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthen.kernels import selective_scan
from lengthen.models.call import Marks
from lengthen.models.convolution import convolved
from lengthen.models.family import Family, LayerKind
from lengthen.models.fla_parts import fla_kind
from lengthen.models.plain import is_plain_linear
from lengthen.state import LayerState, TensorSpec

SPECS = {"recurrent": TensorSpec("recurrent"), "window": TensorSpec("window")}
QUANTITIES = frozenset({"decay", "gain", "step"})  # no offset: each of a channel's states decays at a rate of its own
HEADS_SPECS = {"recurrent": TensorSpec("recurrent", head_axis=1), "window": TensorSpec("window")}


def zero_state(layer: Any, rows: int, device: torch.device, dtype: torch.dtype) -> LayerState:
    """The state before the first token: zeros."""
    recurrent = torch.zeros(rows, layer.intermediate_size, layer.ssm_state_size, device=device, dtype=dtype)
    window = torch.zeros(rows, layer.intermediate_size, layer.conv_kernel_size - 1, device=device, dtype=dtype)
    return {"recurrent": recurrent, "window": window}


def forward(layer: Any, x: Tensor, state: LayerState | None, marks: Marks) -> tuple[Tensor, LayerState]:
    """One layer over one segment: x [B, T, hidden] -> (y [B, T, hidden], final state)."""
    state = state or {}
    mixed, gate = layer.in_proj(x).chunk(2, dim=-1)
    mixed, window = convolved(layer, mixed, state, marks)
    rank = layer.time_step_rank if hasattr(layer, "time_step_rank") else layer.dt_rank
    sizes = [rank, layer.ssm_state_size, layer.ssm_state_size]
    step, write, read = layer.x_proj(mixed).split(sizes, dim=-1)
    if hasattr(layer, "dt_layernorm"):
        step, write, read = layer.dt_layernorm(step), layer.b_layernorm(write), layer.c_layernorm(read)
    dt, bias = _step(layer.dt_proj, step)
    scan = _Scan(mixed, gate, dt, bias, layer.A_log, write, read, layer.D)
    y, recurrent = _scanned(scan, state.get("recurrent"), marks, *_hooked(dt, bias, layer.A_log, marks))
    return layer.out_proj(y.to(x.dtype)), {"recurrent": recurrent, "window": window}


# -- layers with heads -------------------------------------------------------------------------------------------------


def heads_zero_state(layer: Any, rows: int, device: torch.device, dtype: torch.dtype) -> LayerState:
    """The state before the first token of a layer with heads: zeros."""
    shape = (rows, layer.n_mamba_heads, layer.ssm_state_size, layer.mamba_head_dim)
    window = torch.zeros(rows, layer.intermediate_size, layer.conv_kernel_size - 1, device=device, dtype=dtype)
    return {"recurrent": torch.zeros(shape, device=device, dtype=dtype), "window": window}


def heads_forward(layer: Any, x: Tensor, state: LayerState | None, marks: Marks) -> tuple[Tensor, LayerState]:
    """One layer with heads over one segment: x [B, T, hidden] -> (y [B, T, hidden], final state)."""
    state = state or {}
    mixed, gate = layer.in_proj(x).unflatten(-1, (-1, 2)).unbind(-1)
    mixed, window = convolved(layer, mixed, state, marks)
    before = state["recurrent"].mT.unbind(1) if state else [None] * layer.n_mamba_heads
    sizes = [layer.time_step_rank, layer.ssm_state_size, layer.ssm_state_size]
    scans = []
    for head, (part, gates) in enumerate(zip(*(t.chunk(layer.n_mamba_heads, -1) for t in (mixed, gate)), strict=True)):
        step, write, read = F.linear(part, layer.x_proj_weight[head]).split(sizes, dim=-1)
        dt, bias = F.linear(step, layer.dt_proj_weight[head]), layer.dt_proj_bias[head]
        scans.append(_Scan(part, gates, dt, bias, layer.A_log[head], write, read, layer.D[head]))
    dt = torch.cat([scan.dt for scan in scans], -1)
    changed = _hooked(dt, layer.dt_proj_bias.flatten(), layer.A_log.flatten(0, 1), marks)
    decay_dt, gain = ([None] * len(scans) if t is None else t.chunk(len(scans), -1) for t in changed)
    outputs, finals = [], []
    for head, scan in enumerate(scans):
        y, recurrent = _scanned(scan, before[head], marks, decay_dt[head], gain[head])
        outputs.append(y)
        finals.append(recurrent.mT)
    y = torch.cat(outputs, -1)
    return layer.out_proj(y.to(x.dtype)), {"recurrent": torch.stack(finals, 1), "window": window}


# -- both --------------------------------------------------------------------------------------------------------------


class _Scan(NamedTuple):
    """What the recurrence reads; D: of one head, where there are heads."""

    x: Tensor  # [B, T, D]
    gate: Tensor  # [B, T, D]
    dt: Tensor  # [B, T, D], before bias and softplus
    bias: Tensor | None  # [D]
    log_rate: Tensor  # [D, N]
    write: Tensor  # [B, T, N]
    read: Tensor  # [B, T, N]
    skip: Tensor  # [D]


def _hooked(dt: Tensor, bias: Tensor | None, log_rate: Tensor, marks: Marks) -> tuple[Tensor | None, Tensor | None]:
    """The step that the decay uses and the gain, [B, T, D], where a hook changed them; None where it did not.

    What is not changed stays the kernel's own, whose softplus rounds otherwise; but a hook's part in a gradient is kept.
    """
    if marks.hook is None:
        return None, None
    precise = torch.promote_types(log_rate.dtype, torch.float32)
    step = F.softplus(dt.to(precise) if bias is None else dt.to(precise) + bias.to(precise))
    rates = -torch.exp(log_rate.to(precise))
    own = -step
    log_decay, gain = marks.hooked(own, torch.ones_like(step), step=step, rates=rates)
    kept = log_decay is own or (not torch.is_grad_enabled() and torch.equal(log_decay, own))
    return None if kept else marks.gain(-log_decay), gain if gain.requires_grad or bool((gain != 1).any()) else None


def _scanned(
    scan: _Scan,
    initial_state: Tensor | None,
    marks: Marks,
    decay_dt: Tensor | None,
    input_gain: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The gated output [B, T, D] and the final state [B, D, N]."""
    dt, real = scan.dt, marks.real(scan.dt.shape[1])
    if real is not None:  # a step of softplus(-inf) = 0 keeps the state
        dt = dt.masked_fill(~real[..., None], float("-inf"))
    precise = torch.promote_types(scan.log_rate.dtype, torch.float32)
    return selective_scan(
        scan.x,
        dt,
        -torch.exp(scan.log_rate.to(precise)),
        scan.write,
        scan.read,
        skip=scan.skip,
        gate=scan.gate,
        dt_bias=scan.bias,
        dt_softplus=True,
        input_gain=input_gain,
        decay_dt=decay_dt,
        reset=marks.reset,
        initial_state=initial_state,
    )


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
            quantities=QUANTITIES,
        ),
        LayerKind(
            name="mamba1_heads",
            kernel="selective_scan",
            layers=("transformers.models.zamba.modeling_zamba.ZambaMambaMixer",),
            forward=heads_forward,
            zero_state=heads_zero_state,
            specs=HEADS_SPECS,
            quantities=QUANTITIES,
        ),
        fla_kind(
            name="fla_mamba1",
            kernel="selective_scan",
            layers=("fla.layers.mamba.Mamba",),
            forward=forward,
            zero_state=zero_state,
            specs=SPECS,
            quantities=QUANTITIES,
        ),
    ),
)
