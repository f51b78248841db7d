"""MiniMax's lightning attention (MiniMax-01, arXiv 2501.08313) with a state that goes in and comes out.

B batch, T positions, H heads, K head dim, of keys and values alike. State: recurrent [B, H, K, K].

The decay is a constant of each head, so the recurrence is `ssd` with the same log-decay at every position.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lengthen.kernels import ssd
from lengthen.models.call import Marks
from lengthen.models.family import Family, LayerKind
from lengthen.state import LayerState, TensorSpec

SPECS = {"recurrent": TensorSpec("recurrent", head_axis=1)}


def zero_state(layer: Any, rows: int, device: torch.device, dtype: torch.dtype) -> LayerState:
    """The state before the first token: zeros."""
    shape = (rows, layer.num_attention_heads, layer.head_dim, layer.head_dim)
    return {"recurrent": torch.zeros(shape, device=device, dtype=dtype)}


def forward(layer: Any, x: Tensor, state: LayerState | None, marks: Marks) -> tuple[Tensor, LayerState]:
    """One layer over one segment: x [B, T, hidden] -> (y [B, T, hidden], final state)."""
    rows, positions, _ = x.shape
    mixed = layer.act_fn(layer.qkv_proj(x)).view(rows, positions, layer.num_attention_heads, 3 * layer.head_dim)
    query, key, value = mixed.chunk(3, dim=-1)
    slope = layer.slope_rate.to(torch.promote_types(mixed.dtype, torch.float32)).flatten()
    log_decay, gain = marks.hooked(*(t.expand(rows, positions, -1) for t in (-slope, torch.ones_like(slope))))
    y, recurrent = marks.reading(ssd)(
        query,
        key,
        value,
        marks.decay(log_decay),
        None if marks.lengths is None and marks.hook is None else marks.gain(gain),
        initial_state=None if state is None else state["recurrent"],
    )
    y = torch.sigmoid(layer.output_gate(x)) * layer.norm(y.flatten(2))
    return layer.out_proj(y.to(x.dtype)), {"recurrent": recurrent}


def _with_no_weights(_: Any, y: Tensor) -> tuple[Tensor, None]:
    return y, None


FAMILY = Family(
    "lightning",
    (
        LayerKind(
            name="lightning",
            kernel="ssd",
            layers=("transformers.models.minimax.modeling_minimax.MiniMaxLightningAttention",),
            forward=forward,
            zero_state=zero_state,
            specs=SPECS,
            quantities=frozenset({"decay", "offset", "gain", "read"}),
            returns=_with_no_weights,
        ),
    ),
)
