"""wrap(): the user's own model, with initial_state and reset going in and final_state coming out.

B batch, T positions. Nothing of the library is replaced but the forward of the instances at hand: each recurrent
layer's, by its family's pure function, and the model's own. unwrap() takes both off again.
"""

from __future__ import annotations

import copyreg
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lengthen.errors import InputError
from lengthen.models import fla_on_cpu
from lengthen.models.attention import AttentionCache, SequenceState, attention_arguments, has_attention
from lengthen.models.call import Call, Marks, current_call, keep_call_in_checkpoints, running
from lengthen.models.families import FAMILY_OF, KINDS, kind_of
from lengthen.models.head import head_logits, head_loss, masked, router_loss, shifted
from lengthen.models.outputs import output_class, with_final_state
from lengthen.models.padding import Compaction
from lengthen.state import LayerState, RecurrentState

_cache: Any = functools.cache
_OURS = "_lengthen_forward"
_CACHE_NAMES = ("cache", "cache_params", "past_key_values")
_LIBRARY_KEYWORDS = frozenset(
    {"shift_labels", "num_items_in_batch", "logits_to_keep", "position_ids", "return_dict", "use_cache"}
)
"""What a library's forward may take without naming it."""


@dataclass(frozen=True)
class LayerBinding:
    """What a wrapped layer knows of itself: its name in the model that was wrapped, and its kind's name."""

    name: str
    kind: str


# -- wrap, unwrap, is_wrapped -------------------------------------------------------------------------------------


def wrap(model: nn.Module) -> nn.Module:
    """Gives the model's forward `initial_state` and `reset`, and its output `final_state`; returns the same object.

    model: a library's recurrent or hybrid model whose recurrent layers belong to a known family.
    Wrapping twice changes nothing. generate(), save_pretrained and training go on as before.
    Raises InputError if no recurrent layer of a known family is found, or an unknown one is.
    """
    if is_wrapped(model):
        return model
    target = library_model(model)
    layers = [(name, layer, kind_of(layer)) for name, layer in target.named_modules()]
    known = [(name, layer, kind) for name, layer, kind in layers if kind is not None]
    if not known:
        raise InputError(
            f"{type(target).__name__} has no recurrent layer that lengthen knows; give a model of a family listed by "
            "`lengthen families`."
        )
    for name, layer, kind in known:
        layer._lengthen = LayerBinding(name, kind.name)
        layer.forward = types.MethodType(_layer_forward, layer)
    fla_on_cpu.run_on_cpu(target)
    target.forward = types.MethodType(_model_forward_of(type(target)), target)
    return model


def unwrap(model: nn.Module) -> nn.Module:
    """Takes off what wrap() put on; returns the same object, which is again the library's own."""
    target = library_model(model)
    for _, layer in wrapped_layers(target):
        del layer.forward, layer._lengthen
    fla_on_cpu.run_as_before(target)
    target.__dict__.pop("forward", None)
    return model


def is_wrapped(model: nn.Module) -> bool:
    """Whether every recurrent layer and the model itself still run lengthen's forward."""
    target = library_model(model)
    layers = [layer for layer in target.modules() if kind_of(layer) is not None]
    return bool(layers) and all(_runs_ours(module) for module in [target, *layers])


def require_wrapped(model: nn.Module) -> None:
    """Raises InputError if something took lengthen's forward off, so that the state would be dropped silently."""
    if not is_wrapped(model):
        raise InputError(f"{type(library_model(model)).__name__} is not wrapped (any more); call lengthen.wrap(model).")


def wrapped_layers(model: nn.Module) -> Iterator[tuple[LayerBinding, nn.Module]]:
    """The wrapped layers, in the model's order."""
    for layer in model.modules():
        binding = layer.__dict__.get("_lengthen")
        if isinstance(binding, LayerBinding):
            yield binding, layer


def library_model(model: nn.Module) -> Any:
    """The library's model inside DistributedDataParallel, torch.compile and peft."""
    inner: Any = model
    while True:
        if isinstance(inner, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inner = inner.module
        elif hasattr(inner, "_orig_mod"):
            inner = inner._orig_mod
        elif hasattr(inner, "get_base_model"):
            inner = inner.get_base_model()
        else:
            return inner


def _runs_ours(module: nn.Module) -> bool:
    forward = module.__dict__.get("forward")
    while forward is not None:
        if getattr(forward, _OURS, False):
            return True
        forward = getattr(forward, "__wrapped__", None)
    return False


# -- a layer's forward --------------------------------------------------------------------------------------------


def _layer_forward(self: Any, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
    call = current_call()
    if call is None:  # the library's own path: its cache, its generate(), its base model called directly
        return type(self).forward(self, hidden_states, *args, **kwargs)
    binding: LayerBinding = self._lengthen
    kind = KINDS[binding.kind]
    further = {name: kwargs[name] for name in kind.arguments if name in kwargs}
    y, state = kind.forward(self, hidden_states, call.initial(binding.name), call.marks, **further)
    call.collect(binding.name, state)
    return kind.returns(self, y)


setattr(_layer_forward, _OURS, True)


# -- the model's forward ------------------------------------------------------------------------------------------


@_cache
def _model_forward_of(cls: Any) -> Callable[..., Any]:
    """The forward for models of this class, with the library's signature plus initial_state and reset."""
    library = inspect.signature(cls.forward)
    names = [p for p in library.parameters.values() if p.kind != inspect.Parameter.VAR_KEYWORD]
    rest = [p for p in library.parameters.values() if p.kind == inspect.Parameter.VAR_KEYWORD]
    extra = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None) for n in ("initial_state", "reset")]

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        initial_state, reset = kwargs.pop("initial_state", None), kwargs.pop("reset", None)
        arguments = _named(cls, library, self, args, kwargs)
        cache = next((n for n in _CACHE_NAMES if arguments.get(n) is not None), None)
        if cache is not None or arguments.get("use_cache"):
            if initial_state is not None or reset is not None:
                raise TypeError(
                    f"{cls.__name__} was given both {cache or 'use_cache=True'} and an initial state or reset; "
                    "give one: the library's cache, or initial_state and reset."
                )
            return cls.forward(self, **arguments)
        for name in _CACHE_NAMES:
            arguments.pop(name, None)
        arguments.pop("use_cache", None)
        return _run(self, arguments, initial_state, reset)

    forward.__dict__["__signature__"] = library.replace(parameters=[*names, *extra, *rest])
    forward.__qualname__ = f"{cls.__qualname__}.forward"
    setattr(forward, _OURS, cls)
    return forward


def _named(cls: type, library: inspect.Signature, model: nn.Module, args: tuple, kwargs: dict) -> dict[str, Any]:
    """Arguments by name; a keyword that the library would swallow without a word is a TypeError."""
    recorded = {f"output_{name}" for name in getattr(model, "_can_record_outputs", None) or ()} - {"output_attentions"}
    unknown = [n for n in kwargs if n not in library.parameters and n not in _LIBRARY_KEYWORDS | recorded]
    if unknown:
        hint = next((n for n in _CACHE_NAMES if n in library.parameters), "initial_state")
        raise TypeError(
            f"{cls.__name__} does not know the argument {unknown[0]!r}, which the library would ignore without a word; "
            f"its cache is called {hint!r}, lengthen's state 'initial_state'."
        )
    bound = library.bind_partial(model, *args)
    bound.arguments.pop("self")
    return {**bound.arguments, **kwargs}


def _run(model: Any, arguments: dict[str, Any], initial_state: RecurrentState | None, reset: Tensor | None) -> Any:
    labels, shift_labels = arguments.pop("labels", None), arguments.pop("shift_labels", None)
    items, keep = arguments.pop("num_items_in_batch", None), arguments.pop("logits_to_keep", 0)
    return_dict = arguments.pop("return_dict", None)
    attention_mask = arguments.pop("attention_mask", None)
    routers = hasattr(model, "router_aux_loss_coef")
    if routers and arguments.get("output_router_logits") is None:
        arguments["output_router_logits"] = model.config.output_router_logits

    carry = isinstance(initial_state, SequenceState)
    base, final_state = run_base(model, arguments, initial_state, reset, attention_mask, carry=carry)
    hidden = base[0]
    if model.get_output_embeddings() is None:
        output = with_final_state(type(base))(**base, final_state=final_state)
    else:
        found: dict[str, Any] = {"hidden_states": base.get("hidden_states")}
        if labels is not None or shift_labels is not None:
            targets = shifted(labels, attention_mask) if shift_labels is None else masked(shift_labels, attention_mask)
            found["loss"] = head_loss(model, hidden, targets, items, attention_mask)
        else:
            found["logits"] = head_logits(model, hidden, keep)
        if base.get("router_logits") is not None:
            found["router_logits"] = base["router_logits"]
            if routers:
                found["aux_loss"] = router_loss(model, base["router_logits"], attention_mask)
                if "loss" in found:
                    found["loss"] = found["loss"] + model.router_aux_loss_coef * found["aux_loss"]
        output = with_final_state(output_class(type(model), type(base)))(**found, final_state=final_state)
    wants_dict = return_dict if return_dict is not None else getattr(model.config, "return_dict", True)
    return output if wants_dict else output.to_tuple()


def run_base(
    model: nn.Module,
    arguments: dict[str, Any],
    initial_state: RecurrentState | None = None,
    reset: Tensor | None = None,
    attention_mask: Tensor | None = None,
    *,
    carry: bool = True,
) -> tuple[Any, RecurrentState]:
    """Runs the model up to its head from an initial state.

    arguments: input_ids [B, T] or inputs_embeds [B, T, hidden] and what else the base model takes.
    initial_state: B rows, or None for zero. reset: bool [B, T]. attention_mask: [B, T], 0 marks padding anywhere.
    carry: whether attention goes on from the initial state's cache (an empty one where it has none) and the final
    state is a SequenceState; a model without attention has no cache.
    Returns the library's base output (last hidden state first, in the order of the input) and the final state.
    """
    target = library_model(model)
    inputs = arguments.get("input_ids") if arguments.get("input_ids") is not None else arguments.get("inputs_embeds")
    if inputs is None:
        raise InputError("Neither input_ids nor inputs_embeds was given; give one of them.")
    rows, positions = inputs.shape[:2]
    if positions == 0:
        raise InputError("The input has no positions; give at least one token.")
    for name, mark in (("reset", reset), ("attention_mask", attention_mask)):
        if mark is not None and tuple(mark.shape) != (rows, positions):
            raise InputError(f"{name} has shape {tuple(mark.shape)}, the input {rows} rows of {positions} positions.")
    if initial_state is not None:
        initial_state.require_layout(layout(target))
        if initial_state.rows != rows:
            raise InputError(f"initial_state has {initial_state.rows} rows, the input {rows}; use initial_state.index.")
        if initial_state.device != inputs.device:
            initial_state = initial_state.to(inputs.device)

    compaction = Compaction.of(attention_mask, reset)
    arguments = {n: v for n, v in arguments.items() if v is not None}
    for name in ("input_ids", "inputs_embeds", "position_ids"):
        if name in arguments:
            arguments[name] = compaction.pack(arguments[name])
    marks = Marks(compaction.reset, compaction.lengths)
    call = Call(initial_state, marks)
    keep_call_in_checkpoints(target)
    cache = None
    if has_attention(target):
        before = _attention_before(target, initial_state, rows, inputs.device) if carry else None
        arguments = attention_arguments(target, before, marks, rows, positions, inputs.device) | arguments
        cache = arguments.get("cache")
    headless = target.get_output_embeddings() is None
    with running(call):
        if headless:
            output = type(target).forward(target, **arguments, use_cache=False, return_dict=True)
        else:
            base = getattr(target, target.base_model_prefix)
            output = base(**arguments, use_cache=False, return_dict=True)
    call.finished = True
    final = _state(target, call.final)
    if compaction.trailing_reset is not None:
        final = final.zero_rows(compaction.trailing_reset)
    if cache is not None:
        final = SequenceState(final, cache.after(positions, marks, compaction.trailing_reset))
    for name in ("last_hidden_state", "hidden_states"):
        if output.get(name) is not None:
            output[name] = compaction.unpack(output[name])
    return type(output)(**{n: v for n, v in output.items() if n not in _CACHE_NAMES}), final


def _attention_before(
    target: Any, initial_state: RecurrentState | None, rows: int, device: torch.device
) -> AttentionCache:
    """The cache that a call carries on."""
    checkpointing = any(getattr(module, "gradient_checkpointing", False) for module in target.modules())
    if checkpointing and target.training and torch.is_grad_enabled():
        raise InputError(
            f"{type(target).__name__} cannot carry its attention cache through gradient checkpointing, which drops it; "
            "switch checkpointing off, or give the state alone (SequenceState.alone)."
        )
    if isinstance(initial_state, SequenceState):
        return initial_state.attention
    return AttentionCache.empty(rows, device)


# -- the model's state --------------------------------------------------------------------------------------------


def zero_state(model: nn.Module, rows: int, device: torch.device | str | None = None) -> RecurrentState:
    """The zero state of a wrapped model for so many rows, on its device (or the one given)."""
    target = library_model(model)
    parameter = next(target.parameters())
    device = torch.device(device) if device is not None else parameter.device
    dtype = torch.float64 if parameter.dtype == torch.float64 else torch.float32
    layers = list(wrapped_layers(target))
    if not layers:
        raise InputError(f"{type(target).__name__} is not wrapped; call lengthen.wrap(model) first.")
    return _state(target, {b.name: KINDS[b.kind].zero_state(layer, rows, device, dtype) for b, layer in layers})


def _state(target: nn.Module, tensors: dict[str, LayerState]) -> RecurrentState:
    kinds = {binding.name: KINDS[binding.kind] for binding, _ in wrapped_layers(target)}
    specs = {layer: {name: kinds[layer].specs[name] for name in named} for layer, named in tensors.items()}
    return RecurrentState(tensors, specs, family_name(target))


def sequence_start(model: nn.Module, rows: int, device: torch.device | str | None = None) -> RecurrentState:
    """The state before a sequence's first token, from which calls carry what attention has seen too.

    A SequenceState of zeros for a hybrid, the zero state for a model without attention.
    """
    zero = zero_state(model, rows, device)
    return SequenceState(zero, AttentionCache.empty(rows, zero.device)) if has_attention(library_model(model)) else zero


def family_name(model: nn.Module) -> str:
    """The family of a wrapped model's recurrent layers; several are joined by "+"."""
    return "+".join(dict.fromkeys(FAMILY_OF[binding.kind] for binding, _ in wrapped_layers(library_model(model))))


def layout(model: nn.Module) -> str:
    """The layout fingerprint of a wrapped model's states."""
    return zero_state(model, 1, "meta").layout


def weights_fingerprint(model: nn.Module) -> str:
    """Fingerprint of the model's parameters and buffers: by value, each storage once, wrapper prefixes stripped."""
    import hashlib

    digest, seen = hashlib.sha256(), set()
    for name, tensor in sorted(library_model(model).state_dict().items()):
        if tensor.data_ptr() not in seen or tensor.numel() == 0:
            seen.add(tensor.data_ptr())
            digest.update(name.encode())
            digest.update(tensor.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


# -- pickling -----------------------------------------------------------------------------------------------------


def _reduce_method(method: types.MethodType) -> tuple:
    """Bound methods pickle by name, which for lengthen's forward would be the library's: rebind it instead."""
    if method.__func__ is fla_on_cpu.forward:
        return types.MethodType, (fla_on_cpu.forward, method.__self__)
    ours = getattr(method.__func__, _OURS, None)
    if ours is None or method.__func__.__dict__.get("__wrapped__") is not None:
        return getattr, (method.__self__, method.__func__.__name__)
    return _rebind, (ours, method.__self__)


def _rebind(ours: Any, module: nn.Module) -> types.MethodType:
    return types.MethodType(_layer_forward if ours is True else _model_forward_of(ours), module)


copyreg.pickle(types.MethodType, _reduce_method)
