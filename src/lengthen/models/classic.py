"""torch's own LSTM, GRU and RNN with a state that goes in and comes out.

B batch, T positions, D input features, L stacked layers, H hidden size, P projected size (H without a projection).
State: hidden [B, L, P] and, of an LSTM, cell [B, L, H]; the stacked layers count as heads.

torch's fused layer runs as it is, from the state it is given, so that its dropout, projection and cuDNN kernels stay.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from lengthen.errors import InputError
from lengthen.models.call import Marks
from lengthen.models.family import Family, LayerKind
from lengthen.models.pieces import run_in_pieces
from lengthen.state import LayerState, TensorSpec

SPECS = {"hidden": TensorSpec("recurrent", head_axis=1), "cell": TensorSpec("recurrent", head_axis=1)}


def zero_state(layer: Any, rows: int, device: torch.device, dtype: torch.dtype) -> LayerState:
    """The state before the first position: zeros."""
    sizes = {"hidden": layer.proj_size or layer.hidden_size}
    if layer.mode == "LSTM":
        sizes["cell"] = layer.hidden_size
    return {name: torch.zeros(rows, layer.num_layers, n, device=device, dtype=dtype) for name, n in sizes.items()}


def forward(layer: Any, x: Tensor, state: LayerState | None, marks: Marks, hx: Any = None) -> tuple[Any, LayerState]:
    """One module over one segment: x [B, T, D] (or [T, B, D], as the module takes it) -> ((output, hx), final state).

    Output and hx are as torch gives them. Raises InputError where the caller keeps a state of its own (hx), and for an
    input that is packed or has no batch.
    """
    if hx is not None:
        raise InputError(
            f"The {layer.mode} was given hx by its module, but its state is carried by lengthen; call it without hx "
            "and give the model's forward initial_state."
        )
    if isinstance(x, PackedSequence) or x.dim() != 3:
        given = "a PackedSequence" if isinstance(x, PackedSequence) else f"an input of shape {tuple(x.shape)}"
        raise InputError(
            f"The {layer.mode} was given {given}; give it the padded batch [rows, positions, features] and tell the "
            "model's forward by attention_mask which positions are real."
        )
    batch_first = x if layer.batch_first else x.transpose(0, 1)
    weights = layer.all_weights[0][0]
    precise = torch.promote_types(weights.dtype, torch.float32)
    if state is None:
        state = zero_state(layer, batch_first.shape[0], x.device, precise)

    def run(part: Tensor, before: LayerState) -> tuple[Tensor, LayerState]:
        given = _as_torch_s(before, part.dtype)
        y, after = type(layer).forward(layer, part if layer.batch_first else part.transpose(0, 1), given)
        named = zip(before, after if isinstance(after, tuple) else (after,))
        return y if layer.batch_first else y.transpose(0, 1), {n: t.transpose(0, 1).to(precise) for n, t in named}

    y, final = run_in_pieces(run, batch_first, state, marks)
    return (y if layer.batch_first else y.transpose(0, 1), _as_torch_s(final, y.dtype)), final


def _as_torch_s(state: LayerState, dtype: torch.dtype) -> Any:
    """(hidden, cell), each [L, B, ...], or hidden alone."""
    found = tuple(state[name].to(dtype).transpose(0, 1).contiguous() for name in SPECS if name in state)
    return found if len(found) > 1 else found[0]


FAMILY = Family(
    "classic",
    (
        LayerKind(
            name="classic",
            kernel="torch",
            layers=("torch.nn.modules.rnn.LSTM", "torch.nn.modules.rnn.GRU", "torch.nn.modules.rnn.RNN"),
            forward=forward,
            zero_state=zero_state,
            specs=SPECS,
            arguments=("hx",),
        ),
    ),
)
