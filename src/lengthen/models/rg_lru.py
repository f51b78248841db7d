"""The RG-LRU layer (De et al., "Griffin", arXiv 2402.19427) with a state that goes in and comes out.

B batch, T positions, D channels, H blocks of the gates' matrices, W convolution width. State: recurrent [B, D],
window [B, D, W - 1] (inputs of the convolution).

The first input of a sequence enters whole; later ones are scaled by sqrt(1 - decay^2). A row whose recurrent state is
zero has read nothing yet, so that its next position is such a first one, as is every reset. A state of any other value
is one that a sequence left, and nothing is special after it.

The model's attention reaches back a fixed number of positions; its cache is that of every hybrid.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthen.kernels import linear_scan, short_conv
from lengthen.models.call import Marks
from lengthen.models.family import Family, LayerKind
from lengthen.state import LayerState, TensorSpec

SPECS = {"recurrent": TensorSpec("recurrent"), "window": TensorSpec("window")}

_SHARPNESS = 8.0  # the paper's c
_STEEPEST = 1000.0  # where the slope of the square root is cut, as in the library: it is infinite at a decay of 1


def zero_state(layer: Any, rows: int, device: torch.device, dtype: torch.dtype) -> LayerState:
    """The state before the first token: zeros."""
    recurrent = torch.zeros(rows, layer.lru_width, device=device, dtype=dtype)
    window = torch.zeros(rows, layer.lru_width, layer.conv1d_width - 1, device=device, dtype=dtype)
    return {"recurrent": recurrent, "window": window}


def forward(layer: Any, x: Tensor, state: LayerState | None, marks: Marks) -> tuple[Tensor, LayerState]:
    """One layer over one segment: x [B, T, hidden] -> (y [B, T, hidden], final state)."""
    state = state or zero_state(layer, x.shape[0], x.device, torch.promote_types(x.dtype, torch.float32))
    mixed, window = short_conv(
        layer.linear_x(x),
        layer.conv_1d.weight.squeeze(1),
        layer.conv_1d.bias,
        window=state["window"],
        reset=marks.reset,
        lengths=marks.lengths,
    )
    log_decay, write = _decay_and_write(layer.rg_lru, mixed, _first(state["recurrent"], marks, x.shape[1]))
    log_decay, write = marks.hooked(log_decay, write)
    states, recurrent = linear_scan(marks.decay(log_decay), marks.gain(write), initial_state=state["recurrent"])
    y = layer.linear_out(states.to(x.dtype) * layer.act_fn(layer.linear_y(x)))
    return y, {"recurrent": recurrent, "window": window}


def _first(recurrent: Tensor, marks: Marks, positions: int) -> Tensor:
    """bool [B, T]: the positions before which a row has read nothing."""
    first = (recurrent == 0).all(1, keepdim=True) & (torch.arange(positions, device=recurrent.device) == 0)
    return first if marks.reset is None else first | marks.reset


def _decay_and_write(unit: Any, x: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """log-decay and what is written [B, T, D] in at least float32, for inputs [B, T, D]."""
    precise = torch.promote_types(x.dtype, torch.float32)
    write_gate = torch.sigmoid(_by_block(x, unit.input_gate_weight, unit.input_gate_bias))
    decay_gate = torch.sigmoid(_by_block(x, unit.recurrent_gate_weight, unit.recurrent_gate_bias))
    log_decay = -_SHARPNESS * decay_gate.to(precise) * F.softplus(unit.recurrent_param.to(precise))
    scale = _bounded_sqrt(-torch.expm1(2 * log_decay)).masked_fill(first[..., None], 1)
    return log_decay, (x * write_gate).to(precise) * scale


def _by_block(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x [B, T, D] times a block-diagonal matrix, weight [H, D / H, D / H], plus bias [H, D / H]."""
    blocks = x.unflatten(-1, bias.shape)
    return (torch.einsum("bthi,hio->btho", blocks, weight.to(x.dtype)) + bias.to(x.dtype)).flatten(-2)


def _bounded_sqrt(x: Tensor) -> Tensor:
    """The square root, with a slope of at most _STEEPEST."""
    root = x.detach().sqrt()
    return root + (x - x.detach()) / (2 * root).clamp(min=1 / _STEEPEST)


FAMILY = Family(
    "rg_lru",
    (
        LayerKind(
            name="rg_lru",
            kernel="linear_scan",
            layers=("transformers.models.recurrent_gemma.modeling_recurrent_gemma.RecurrentGemmaRecurrentBlock",),
            forward=forward,
            zero_state=zero_state,
            specs=SPECS,
            quantities=frozenset({"decay", "offset", "gain"}),
            returns=lambda layer, y: (y, None),
        ),
    ),
)
