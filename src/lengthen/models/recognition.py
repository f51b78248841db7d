"""Which modules of a model have a state: the layers that lengthen runs, and those it does not know."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from torch import nn

from lengthen.errors import InputError
from lengthen.models import stateful_layer
from lengthen.models.families import kind_of
from lengthen.models.family import LayerKind

_STATE_ARGUMENTS = frozenset(
    {"cache", "cache_params", "past_key_value", "past_key_values", "inference_params"}
    | {"state", "states", "initial_state", "hidden", "hx"}
)
"""What libraries call the argument that brings a layer its past."""
_RECURRENCE_PARAMETERS = frozenset({"A_log", "dt_bias", "time_decay", "recurrent_param", "slope_rate"})
Layers = Sequence[tuple[str, nn.Module, LayerKind]]


def recurrent_layers(model: nn.Module) -> Layers:
    """The layers that a family runs, (name, layer, kind) in the model's order; what lies inside one is its own matter."""
    found: list[tuple[str, nn.Module, LayerKind]] = []
    inside: set[nn.Module] = set()
    for name, module in model.named_modules():
        kind = None if module in inside else kind_of(module)
        if kind is not None:
            found.append((name, module, kind))
            inside.update(module.modules())
    return found


def require_no_unknown_layer(model: nn.Module, known: Layers) -> None:
    """Raises InputError, naming layer and reason, where a layer looks recurrent and is not among the known ones.

    A state dropped there would show only past the first segment; also raised where the model has no known layer.
    """
    ours = {module for _, layer, _ in known for module in layer.modules()}
    attention = [m for m in model.modules() if m not in ours and _is_attention(m)]
    past = ours | {part for module in attention for part in module.modules()}
    suspects = {module: (name, _reason(module)) for name, module in model.named_modules() if module not in past}
    holders = {
        type(module)
        for module in suspects
        if any(m in past or suspects[m][1] for m in module.modules() if m is not module)
    }
    for module, (name, reason) in suspects.items():
        if reason and type(module) not in holders:  # a block that takes the cache takes it for what it holds
            if not known and type(module).__name__.endswith("ShortConv"):
                raise InputError(
                    f"{type(model).__name__} has no recurrent state: the short convolution {name} sees its last few "
                    "inputs and attention the rest, so that nothing could be passed on; give a recurrent model."
                )
            raise InputError(
                f"{type(model).__name__} has the recurrent layer {name or 'itself'} ({type(module).__name__}), which "
                f"lengthen cannot run ({reason}), so that its state would be dropped without a word; give it the two "
                "methods of StatefulLayer, or write its family (docs/new-family.md)."
            )
    if not known:
        raise InputError(
            f"{type(model).__name__} has no recurrent layer that lengthen knows; give a model of a family listed by "
            "`lengthen families`."
        )
    if known[0][1] is model:
        raise InputError(
            f"A bare {type(model).__name__} has no forward around it to take a state; put it into a module, such as "
            "nn.Sequential, and wrap that."
        )
    if attention and not hasattr(type(model), "get_output_embeddings"):
        raise InputError(
            f"{type(model).__name__} has the attention layer {type(attention[0]).__name__}, whose past lengthen can "
            "carry in language models only; wrap a module without attention."
        )
    for name, layer, kind in known:
        bound = layer.__dict__.get("_lengthen")
        if bound is not None and bound.name != name:
            raise InputError(
                f"The layer {name} ({type(layer).__name__}) is wrapped already, as {bound.name} of another module; wrap "
                "the outermost module alone, and unwrap the other first."
            )
        if kind in stateful_layer.FAMILY.kinds:
            stateful_layer.require_one_input(name, layer)
        if getattr(layer, "bidirectional", False):
            raise InputError(
                f"The layer {name} ({type(layer).__name__}) is bidirectional: its backward half needs the whole "
                "sequence and has no state to carry; use one with bidirectional=False."
            )


def _is_attention(module: nn.Module) -> bool:
    """Whether a layer's past is keys and values: so called by its library, and without a recurrence's parameters.

    fla calls recurrences attention too.
    """
    cls = type(module)
    recurrent = cls.__module__.startswith("fla.layers.") and cls.__module__ != "fla.layers.attn"
    return cls.__name__.endswith("Attention") and not recurrent and not _recurrence_parameters(module)


def _recurrence_parameters(module: nn.Module) -> list[str]:
    return sorted(_RECURRENCE_PARAMETERS & {*module._parameters, *module._buffers})


def _reason(module: nn.Module) -> str:
    """Why a module looks recurrent; empty where it does not."""
    if isinstance(module, nn.RNNCellBase):
        return "a cell, whose state its caller keeps"
    weights = _recurrence_parameters(module)
    if weights:
        return f"it has the parameter {weights[0]}"
    further = list(inspect.signature(type(module).forward).parameters)[2:]
    taken = sorted(_STATE_ARGUMENTS & set(further))
    return f"its forward takes {taken[0]}" if taken else ""
