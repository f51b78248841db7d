"""The mLSTM layer of xLSTM (Beck et al., arXiv 2405.04517; the 7B model: 2503.13427) with a state that goes in and out.

B batch, T positions, H heads, K key dim, V value dim. State: recurrent [B, H, K, V], normaliser [B, H, K] and maximum
[B, H], relative to whose exponential the others are kept.

Layers with one projection for all, or one for each, are told apart by their configuration.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthen.kernels import MlstmState, mlstm
from lengthen.models.call import Marks
from lengthen.models.family import Family, LayerKind
from lengthen.state import LayerState, TensorSpec

SPECS = {
    "recurrent": TensorSpec("recurrent", head_axis=1),
    "normaliser": TensorSpec("recurrent", head_axis=1, noise=False),
    "maximum": TensorSpec("recurrent", head_axis=1, noise=False),
}


def zero_state(layer: Any, rows: int, device: torch.device, dtype: torch.dtype) -> LayerState:
    """The state before the first token: zeros."""
    heads = layer.config.num_heads
    shapes = ((layer.qk_dim // heads, layer.v_dim // heads), (layer.qk_dim // heads,), ())
    return {name: torch.zeros(rows, heads, *shape, device=device, dtype=dtype) for name, shape in zip(SPECS, shapes)}


def forward(layer: Any, x: Tensor, state: LayerState | None, marks: Marks) -> tuple[Tensor, LayerState]:
    """One layer over one segment: x [B, T, hidden] -> (y [B, T, hidden], final state)."""
    query, key, value, output_gate, input_gate, forget_gate = _projected(layer, x)
    query, key, value = (t.unflatten(-1, (layer.config.num_heads, -1)) for t in (query, key, value))
    input_gate, log_forget, gain = _gates(input_gate, forget_gate, layer.config.gate_soft_cap, marks)
    read, final = mlstm(
        query * query.shape[-1] ** -0.5,
        key,
        value,
        input_gate,
        log_forget,
        gain,
        initial_state=None if state is None else MlstmState(*(state[name] for name in SPECS)),
        epsilon=layer.mlstm_backend.config.eps,
    )
    y = layer.ogate_act_fn(output_gate) * layer.multihead_norm(read).reshape(output_gate.shape)
    return layer.out_proj(y), dict(zip(SPECS, final))


def _projected(layer: Any, x: Tensor) -> tuple[Tensor, ...]:
    """Query and key [B, T, H K], value and output gate [B, T, H V], input and forget gate [B, T, H]."""
    if layer.config.weight_mode == "single":
        names = ("q", "k", "v", "ogate_preact", "igate_preact", "fgate_preact")
        return tuple(getattr(layer, name)(x) for name in names)
    sizes = [layer.qk_dim, layer.qk_dim, layer.v_dim, layer.v_dim]
    return *layer.qkv_opreact(x).split(sizes, -1), *layer.ifgate_preact(x).chunk(2, -1)


def _gates(input_gate: Tensor, forget_gate: Tensor, cap: float | None, marks: Marks) -> tuple[Tensor, Tensor, Tensor]:
    """Log of the input gate, of the forget gate and a gain of the write, [B, T, H] in at least float32.

    Padding neither forgets nor writes. After a reset the maximum is that of a zero state, 0, as at the start.
    """
    precise = torch.promote_types(input_gate.dtype, torch.float32)
    input_gate, forget_gate = (_capped(gate.to(precise), cap) for gate in (input_gate, forget_gate))
    log_forget = F.logsigmoid(forget_gate)
    if marks.hook is not None:
        log_forget, scale = marks.hooked(log_forget, torch.ones_like(log_forget))
        input_gate = input_gate + scale.log()
    if marks.reset is not None:
        first = torch.where(marks.reset[..., None], torch.maximum(log_forget, input_gate), input_gate)
        gain = (input_gate - first).exp()
        input_gate = first
    else:
        gain = torch.ones_like(input_gate)
    real = marks.real(input_gate.shape[1])
    if real is not None:
        input_gate = input_gate.masked_fill(~real[..., None], float("-inf"))
    return input_gate, marks.decay(log_forget), gain


def _capped(gate: Tensor, cap: float | None) -> Tensor:
    return gate if cap is None else cap * torch.tanh(gate / cap)


FAMILY = Family(
    "xlstm",
    (
        LayerKind(
            name="xlstm",
            kernel="mlstm",
            layers=(
                "transformers.models.xlstm.modeling_xlstm.xLSTMLayer",
                "xlstm.xlstm_large.model.mLSTMLayer",
            ),
            forward=forward,
            zero_state=zero_state,
            specs=SPECS,
            quantities=frozenset({"decay", "offset", "gain"}),
            returns=lambda layer, y: (y, None),
        ),
    ),
)
