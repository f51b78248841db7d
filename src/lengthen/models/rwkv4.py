"""RWKV-4 (Peng et al., arXiv 2305.13048) with a state that goes in and comes out: time mix and channel mix.

B batch, T positions, D hidden size, A channels of the time mix. State of a time mix: recurrent [B, A] (the numerator of
an average), denominator [B, A], maximum [B, A] and window [B, D, 1]; of a channel mix: window [B, D, 1]. A window is
the input before the next position.

In evaluation mode the library divides weights by powers of two, in place, and hidden states with them, to keep float16
in range; what is saved or fingerprinted afterwards is another model. A wrapped model's weights stay as they are, in
both modes; its final norm is given hidden states of their full size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lengthen.kernels import Wkv4State, token_shift, wkv4
from lengthen.models.call import Marks
from lengthen.models.family import Family, LayerKind
from lengthen.state import LayerState, TensorSpec

SPECS = {
    "recurrent": TensorSpec("recurrent"),
    "denominator": TensorSpec("recurrent", noise=False),
    "maximum": TensorSpec("recurrent", noise=False),
    "window": TensorSpec("window"),
}
_AVERAGE = ("recurrent", "denominator", "maximum")


# -- time mix -----------------------------------------------------------------------------------------------------


def time_mix_zero_state(layer: Any, rows: int, device: torch.device, dtype: torch.dtype) -> LayerState:
    """The state before the first token: zeros."""
    average = {name: torch.zeros(rows, layer.attention_hidden_size, device=device, dtype=dtype) for name in _AVERAGE}
    return {**average, **zero_window(layer, rows, device, dtype)}


def time_mix(layer: Any, x: Tensor, state: LayerState | None, marks: Marks) -> tuple[Tensor, LayerState]:
    """One layer over one segment: x [B, T, D] -> (y [B, T, D], final state)."""
    previous, window = _previous(x, state, marks)
    key = layer.key(_mixed(x, previous, layer.time_mix_key))
    value = layer.value(_mixed(x, previous, layer.time_mix_value))
    gate = torch.sigmoid(layer.receptance(_mixed(x, previous, layer.time_mix_receptance)))

    precise = torch.promote_types(layer.time_decay.dtype, torch.float32)
    (log_decay,) = marks.hooked(-torch.exp(layer.time_decay.to(precise)).expand(key.shape))
    real = marks.real(x.shape[1])
    y, final = wkv4(
        key if real is None else key.masked_fill(~real[..., None], float("-inf")),
        value,
        marks.decay(log_decay),
        layer.time_first,
        initial_state=None if state is None else Wkv4State(*(state[name] for name in _AVERAGE)),
    )
    return layer.output(gate * y), {**dict(zip(_AVERAGE, final)), "window": window}


# -- channel mix --------------------------------------------------------------------------------------------------


def zero_window(layer: Any, rows: int, device: torch.device, dtype: torch.dtype) -> LayerState:
    """The window before the first token: zeros."""
    return {"window": torch.zeros(rows, layer.time_mix_key.shape[-1], 1, device=device, dtype=dtype)}


def channel_mix(layer: Any, x: Tensor, state: LayerState | None, marks: Marks) -> tuple[Tensor, LayerState]:
    """One layer over one segment: x [B, T, D] -> (y [B, T, D], final state)."""
    previous, window = _previous(x, state, marks)
    value = layer.value(torch.relu(layer.key(_mixed(x, previous, layer.time_mix_key))).square())
    gate = torch.sigmoid(layer.receptance(_mixed(x, previous, layer.time_mix_receptance)))
    return gate * value, {"window": window}


# -- what both share ----------------------------------------------------------------------------------------------


def _previous(x: Tensor, state: LayerState | None, marks: Marks) -> tuple[Tensor, Tensor]:
    """The input before each position [B, T, D] and the final window."""
    window = None if state is None else state["window"]
    return token_shift(x, window=window, reset=marks.reset, lengths=marks.lengths)


def _mixed(x: Tensor, previous: Tensor, share: Tensor) -> Tensor:
    return x * share + previous * (1 - share)


def keep_weights(model: nn.Module) -> None:
    """Undoes the library's rescaling and switches it off: a mode that is neither is never the wrong one."""
    base = _base(model)
    if base.layers_are_rescaled:
        training, base.training = base.training, True
        base._rescale_layers()
        base.training = training
    base.layers_are_rescaled = None


def let_rescale(model: nn.Module) -> None:
    """Hands the weights, which are not rescaled, back to the library's rescaling."""
    _base(model).layers_are_rescaled = False


def _base(model: nn.Module) -> Any:
    return next(module for module in model.modules() if hasattr(module, "layers_are_rescaled"))


_MODULE = "transformers.models.rwkv.modeling_rwkv"

FAMILY = Family(
    "rwkv4",
    (
        LayerKind(
            name="rwkv4",
            kernel="wkv4",
            quantities=frozenset({"decay", "offset"}),  # what a key writes its own position reads
            layers=(f"{_MODULE}.RwkvSelfAttention",),
            forward=time_mix,
            zero_state=time_mix_zero_state,
            specs=SPECS,
            returns=lambda layer, y: (y, None),
            prepare=keep_weights,
            restore=let_rescale,
        ),
        LayerKind(
            name="rwkv4_channel_mix",
            kernel="token_shift",
            layers=(f"{_MODULE}.RwkvFeedForward",),
            forward=channel_mix,
            zero_state=zero_window,
            specs={"window": SPECS["window"]},
            returns=lambda layer, y: (y, None),
        ),
    ),
)
