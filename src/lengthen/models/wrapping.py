"""wrap(): the user's own model, with initial_state and reset going in and final_state coming out.

B batch, T positions. Nothing of the library is replaced but the forward of the instances at hand: each recurrent
layer's, by its family's pure function, and the model's own. unwrap() takes both off again.
"""

from __future__ import annotations

import copyreg
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

from torch import nn

from lengthen.errors import InputError
from lengthen.models import fla_on_cpu
from lengthen.models.binding import LayerBinding, library_model, wrapped_layers
from lengthen.models.call import current_call
from lengthen.models.families import KINDS
from lengthen.models.hooked_layers import run_hooked
from lengthen.models.language_models import language_model_forward
from lengthen.models.plain_modules import module_forward
from lengthen.models.recognition import recurrent_layers, require_no_unknown_layer

_cache: Any = functools.cache
_OURS = "_lengthen_forward"

# -- wrap, unwrap, is_wrapped -------------------------------------------------------------------------------------


def wrap(model: nn.Module) -> nn.Module:
    """Gives the model's forward `initial_state` and `reset`, and its output `final_state`; returns the same object.

    model: a library's recurrent or hybrid language model, or any module that holds recurrent layers. Layers are known
    where they belong to a family (nn.LSTM, nn.GRU and nn.RNN are one) or have the two methods of StatefulLayer.
    Wrapping twice changes nothing. generate(), save_pretrained and training go on as before.

    A language model's output is its library's with one more field, final_state. Any other module keeps its own
    signature, whose first argument [B, T, ...] is then also called input_ids or inputs, as windows call it; its output
    is a ModuleOutput: `predictions`, what its forward returned (as it was in `returned`), `final_state`, and `loss`
    where targets [B, T, ...] are given as shift_labels (or as targets, with shift_labels -100 where none counts).
    attention_mask [B, T] marks padding in both.

    Raises InputError if no recurrent layer is known, or one is found that is not.
    """
    if is_wrapped(model):
        return model
    target = library_model(model)
    known = recurrent_layers(target)
    require_no_unknown_layer(target, known)
    forward = _model_forward(type(target))
    for kind in {kind.name: kind for _, _, kind in known}.values():
        kind.prepare(target)
    layer: Any
    for name, layer, kind in known:
        layer._lengthen = LayerBinding(name, kind.name)
        layer.forward = types.MethodType(_layer_forward, layer)
    target.forward = types.MethodType(forward, target)
    return model


def unwrap(model: nn.Module) -> nn.Module:
    """Takes off what wrap() put on; returns the same object, which is again the library's own."""
    target = library_model(model)
    wrapped = list(wrapped_layers(target))
    for _, layer in wrapped:
        del layer.forward, layer._lengthen
    for kind in dict.fromkeys(binding.kind for binding, _ in wrapped):
        KINDS[kind].restore(target)
    target.__dict__.pop("forward", None)
    return model


def is_wrapped(model: nn.Module) -> bool:
    """Whether every recurrent layer and the model itself still run lengthen's forward."""
    target = library_model(model)
    layers = [layer for _, layer, _ in recurrent_layers(target)]
    return bool(layers) and all(_runs_ours(module) for module in [target, *layers])


def require_wrapped(model: nn.Module) -> None:
    """Raises InputError if something took lengthen's forward off, so that the state would be dropped silently."""
    if not is_wrapped(model):
        raise InputError(f"{type(library_model(model)).__name__} is not wrapped (any more); call lengthen.wrap(model).")


def _runs_ours(module: nn.Module) -> bool:
    forward = module.__dict__.get("forward")
    while forward is not None:
        if getattr(forward, _OURS, False):
            return True
        forward = getattr(forward, "__wrapped__", None)
    return False


# -- a layer's forward --------------------------------------------------------------------------------------------


def _layer_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
    call = current_call()
    binding: LayerBinding = self._lengthen
    if call is None:  # the library's own path: its cache, its generate(), its base model called directly
        if binding.hook is not None:
            raise InputError(
                f"The layer {binding.name} was called outside the wrapped model's forward, where {binding.hook.name} would "
                "not act; call the model itself, or take the method off."
            )
        return type(self).forward(self, *args, **kwargs)
    kind = KINDS[binding.kind]
    names = _parameters(type(self))
    named = dict(zip(names, args), **kwargs)
    if binding.name in call.final and not call.finished:
        raise InputError(
            f"The layer {binding.name} was called twice in one forward, so that it has no one state; use a layer of its "
            "own in each place."
        )
    further = {name: named[name] for name in kind.arguments if name in named}
    x = named[names[0]]
    if binding.hook is None:
        y, state = kind.forward(self, x, call.initial(binding.name), call.marks, **further)
    else:
        y, state = run_hooked(self, binding, binding.hook, x, call, further)
    call.collect(binding.name, state)
    return kind.returns(self, y)


@_cache
def _parameters(cls: Any) -> tuple[str, ...]:
    """The names of what the library's forward of this layer takes."""
    return tuple(inspect.signature(cls.forward).parameters)[1:]


setattr(_layer_forward, _OURS, True)


# -- the model's forward ------------------------------------------------------------------------------------------


@_cache
def _model_forward(cls: Any) -> Callable[..., Any]:
    """The forward for models of this class: its own signature plus initial_state and reset."""
    forward = language_model_forward(cls) if hasattr(cls, "get_output_embeddings") else module_forward(cls)
    setattr(forward, _OURS, cls)
    return forward


# -- pickling -----------------------------------------------------------------------------------------------------


def _reduce_method(method: types.MethodType) -> tuple:
    """Bound methods pickle by name, which for lengthen's forward would be the library's: rebind it instead."""
    if method.__func__ is fla_on_cpu.forward:
        return fla_on_cpu.bound, (method.__self__,)
    ours = getattr(method.__func__, _OURS, None)
    if ours is None or method.__func__.__dict__.get("__wrapped__") is not None:
        return getattr, (method.__self__, method.__func__.__name__)
    return _rebind, (ours, method.__self__)


def _rebind(ours: Any, module: nn.Module) -> types.MethodType:
    return types.MethodType(_layer_forward if ours is True else _model_forward(ours), module)


copyreg.pickle(types.MethodType, _reduce_method)
