"""The forward of a wrapped language model: the library's, with initial_state and reset in and final_state out.

B batch, T positions.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from lengthen.errors import InputError
from lengthen.models.attention import AttentionCache, SequenceState, attention_arguments, has_attention
from lengthen.models.binding import library_model, sequence_start, wrapped_layers
from lengthen.models.families import KINDS
from lengthen.models.forward_pass import ForwardPass
from lengthen.models.generation import StateCache
from lengthen.models.head import head_logits, head_loss, masked, router_loss, shifted
from lengthen.models.hooked_layers import require_no_chunks
from lengthen.models.outputs import output_class, with_final_state
from lengthen.state import RecurrentState

_CACHE_NAMES = ("cache", "cache_params", "past_key_values", "state")
_LIBRARY_KEYWORDS = frozenset(
    {"shift_labels", "num_items_in_batch", "logits_to_keep", "position_ids", "return_dict", "use_cache"}
    | {"attention_mask"}
)
"""What a library's forward may take without naming it, and what lengthen's always takes."""


def language_model_forward(cls: Any) -> Callable[..., Any]:
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
            return _run_from_cache(self, arguments) if _goes_by_states(self) else cls.forward(self, **arguments)
        for name in _CACHE_NAMES:
            arguments.pop(name, None)
        arguments.pop("use_cache", None)
        return _run(self, arguments, initial_state, reset)

    forward.__dict__["__signature__"] = library.replace(parameters=[*names, *extra, *rest])
    forward.__qualname__ = f"{cls.__qualname__}.forward"
    return forward


def _named(cls: type, library: inspect.Signature, model: nn.Module, args: tuple, kwargs: dict) -> dict[str, Any]:
    """Arguments by name; a keyword that the library would swallow without a word is a TypeError."""
    recorded = {f"output_{name}" for name in getattr(model, "_can_record_outputs", None) or ()} - {"output_attentions"}
    known = _LIBRARY_KEYWORDS | recorded | set(_CACHE_NAMES if _goes_by_states(model) else ())
    unknown = [n for n in kwargs if n not in library.parameters and n not in known]
    if unknown:
        hint = next((n for n in _CACHE_NAMES if n in library.parameters), "initial_state")
        raise TypeError(
            f"{cls.__name__} does not know the argument {unknown[0]!r}, which the library would ignore without a word; "
            f"its cache is called {hint!r}, lengthen's state 'initial_state'."
        )
    bound = library.bind_partial(model, *args)
    bound.arguments.pop("self")
    return {**bound.arguments, **kwargs}


def _goes_by_states(model: nn.Module) -> bool:
    """Whether generate() carries lengthen's states: where the library's cache is not carried, or a hook would not act."""
    return any(b.hook is not None or not KINDS[b.kind].own_cache for b, _ in wrapped_layers(model))


def _run_from_cache(model: Any, arguments: dict[str, Any]) -> Any:
    """One step of generate(): from the state that the step before handed out as its cache to the next."""
    given = [arguments.pop(name) for name in _CACHE_NAMES if arguments.get(name) is not None]
    before = StateCache.of(given[0] if given else None)
    ids = arguments.get("input_ids")
    inputs = arguments["inputs_embeds"] if ids is None else ids
    rows, positions = inputs.shape[:2]
    if arguments.get("attention_mask") is not None:  # of the whole sequence so far
        arguments["attention_mask"] = arguments["attention_mask"][:, -positions:]
    for name in ("use_cache", "position_ids"):
        arguments.pop(name, None)
    wants_dict = arguments.pop("return_dict", None)
    if before is None:
        require_no_chunks(model)
    state = sequence_start(model, rows, inputs.device) if before is None else before.state
    output = _run(model, arguments | {"return_dict": True}, state, None)
    output["cache"] = StateCache(output.final_state, positions + (0 if before is None else before.positions))
    return output.to_tuple() if wants_dict is False else output


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
    limit = getattr(target.config, "max_inference_chunksize", positions)
    if positions > limit and not target.training:
        raise InputError(
            f"{type(target).__name__} would cut these {positions} positions into pieces of {limit} (its configuration's "
            "max_inference_chunksize) and lose the state between; give no more a call (lengthen.stream does)."
        )
    step = ForwardPass.begin(target, inputs, initial_state, reset, attention_mask)
    arguments = {n: v for n, v in arguments.items() if v is not None}
    for name in ("input_ids", "inputs_embeds", "position_ids"):
        if name in arguments:
            arguments[name] = step.pack(arguments[name])
    cache = None
    if has_attention(target):
        before = _attention_before(target, initial_state, rows, inputs.device) if carry else None
        arguments = attention_arguments(target, before, step.call.marks, rows, positions, inputs.device) | arguments
        cache = arguments.get("cache")
    headless = target.get_output_embeddings() is None
    with step.running():
        if headless:
            output = type(target).forward(target, **arguments, use_cache=False, return_dict=True)
        else:
            base = getattr(target, target.base_model_prefix)
            output = base(**arguments, use_cache=False, return_dict=True)
    final = step.final_state()
    if cache is not None:
        final = SequenceState(final, cache.after(positions, step.call.marks, step.compaction.trailing_reset))
    for name in ("last_hidden_state", "hidden_states"):
        if output.get(name) is not None:
            output[name] = step.unpack(output[name])
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
