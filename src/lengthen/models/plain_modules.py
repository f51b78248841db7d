"""Any module with recurrent layers, wrapped: its own forward, with a state in and out, and losses of its predictions.

B batch, T positions, V values to choose from.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from lengthen.errors import InputError
from lengthen.models.binding import library_model
from lengthen.models.forward_pass import ForwardPass
from lengthen.models.head import IGNORED
from lengthen.state import RecurrentState

_OPTIONS = ("initial_state", "reset", "attention_mask", "shift_labels", "targets", "num_items_in_batch")
"""What the forward takes beside the module's own arguments."""
_INPUTS = ("input_ids", "inputs")
"""What windows call the first argument."""


@dataclass(frozen=True)
class ModuleOutput:
    """What a wrapped module's forward gives.

    predictions: the tensor [B, T, ...] that its own forward returned: alone, first in a tuple, or as `predictions` or
    `logits` in a mapping or object; None where there is no such tensor. returned: what it returned, as it was.
    final_state: the state after the last position. loss: the mean over positions, where targets were given.
    """

    predictions: Tensor | None
    returned: Any
    final_state: RecurrentState
    loss: Tensor | None = None


def module_forward(cls: Any) -> Callable[..., ModuleOutput]:
    """The forward for modules of this class: its own signature plus a state, marks and targets."""
    own = inspect.signature(cls.forward)
    names = list(own.parameters)
    takes = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    if len(names) < 2 or own.parameters[names[1]].kind not in takes:
        raise InputError(
            f"{cls.__name__}.forward takes no first argument by position, which lengthen gives the inputs to; let it be "
            "forward(self, inputs, ...)."
        )
    first = names[1]
    taken = {"initial_state", "reset"} & set(names)
    if taken:
        raise InputError(
            f"{cls.__name__}.forward has an argument {min(taken)} of its own, which lengthen gives a meaning to; rename it."
        )

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> ModuleOutput:
        given = {n: kwargs.pop(n, None) for n in _OPTIONS if n not in names}
        mask = given.get("attention_mask", kwargs.get("attention_mask"))
        for name in _INPUTS:
            if name in kwargs and name not in names:
                kwargs[first] = kwargs.pop(name)
        bound = own.bind(self, *args, **kwargs)
        predictions, returned, final_state = run_module(self, bound, given["initial_state"], given["reset"], mask)
        labels, loss = given.get("shift_labels"), None
        targets = labels if given.get("targets") is None else given["targets"]
        if targets is not None:
            losses = prediction_losses(self, predictions, targets)
            loss = _mean(losses, labels, mask, given.get("num_items_in_batch"))
        return ModuleOutput(predictions, returned, final_state, loss)

    extra = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=None) for n in _OPTIONS if n not in names]
    parameters = list(own.parameters.values())
    rest = [p for p in parameters if p.kind == inspect.Parameter.VAR_KEYWORD]
    parameters = [p for p in parameters if p not in rest] + extra + rest
    forward.__dict__["__signature__"] = own.replace(parameters=parameters, return_annotation=ModuleOutput)
    forward.__qualname__ = f"{cls.__qualname__}.forward"
    return forward


def run_module(
    module: nn.Module,
    arguments: inspect.BoundArguments,
    initial_state: RecurrentState | None = None,
    reset: Tensor | None = None,
    attention_mask: Tensor | None = None,
) -> tuple[Tensor | None, Any, RecurrentState]:
    """(predictions, what the module's own forward returned, final state) from an initial state (None: zero).

    arguments: of the module's own forward, its inputs [B, T, ...] first. reset: bool [B, T]. attention_mask: [B, T],
    0 marks padding anywhere; every tensor [B, T, ...] among the arguments is then put in order, and back after it.
    """
    _, inputs, *_ = arguments.args
    if not isinstance(inputs, Tensor) or inputs.dim() < 2:
        raise InputError(
            f"{type(module).__name__} was given {_described(inputs)}; the first argument of a wrapped module is its "
            "inputs, a tensor [rows, positions, ...]."
        )
    step = ForwardPass.begin(module, inputs, initial_state, reset, attention_mask)
    shape = inputs.shape[:2]

    def rearranged(value: Any, function: Callable[[Tensor], Tensor], rows: int) -> Any:
        return tree_map_only(Tensor, lambda t: function(t) if t.shape[:2] == (rows, shape[1]) else t, value)

    _, *args = rearranged(arguments.args, step.pack, shape[0])
    with step.running():
        returned = type(module).forward(module, *args, **rearranged(arguments.kwargs, step.pack, shape[0]))
    returned = rearranged(returned, step.unpack, step.rows)
    final_state = step.final_state()
    if final_state.rows != shape[0]:
        raise InputError(
            f"The recurrent layers of {type(module).__name__} were given {final_state.rows} rows, the module {shape[0]}; "
            "let the module's inputs be [rows, positions, ...] and keep the rows up to each layer."
        )
    predictions = _predictions(returned)
    fits = predictions is not None and predictions.shape[:2] == shape
    return predictions if fits else None, returned, final_state


def prediction_losses(module: nn.Module, predictions: Tensor | None, targets: Tensor) -> Tensor:
    """The loss of every position [B, T]: the module's own, cross-entropy, or mean squared error.

    A module with a method position_losses(predictions, targets) -> [B, T] decides for itself. Otherwise integer targets
    [B, T] (-100: none) mean cross-entropy of predictions [B, T, V], and float ones [B, T, ...] the squared error of
    predictions of the same shape, the mean over features. Raises InputError where shapes do not fit.
    """
    predictions = require_predictions(module, predictions)
    own = getattr(library_model(module), "position_losses", None)
    precise = torch.promote_types(predictions.dtype, torch.float32)
    if own is not None:
        losses = own(predictions, targets)
    elif not targets.is_floating_point():
        if predictions.shape[:-1] != targets.shape:
            raise _unfit(predictions, targets)
        flat = predictions.to(precise).flatten(0, 1)
        losses = F.cross_entropy(flat, targets.flatten(), ignore_index=IGNORED, reduction="none").view(targets.shape)
    else:
        if predictions.shape != targets.shape:
            raise _unfit(predictions, targets)
        squared = (predictions.to(precise) - targets.to(precise)).square()
        losses = squared if squared.dim() == 2 else squared.flatten(2).mean(2)
    if losses.shape != targets.shape[:2]:
        raise InputError(
            f"{type(module).__name__}.position_losses gave {tuple(losses.shape)} for {targets.shape[0]} rows of "
            f"{targets.shape[1]} positions; let it give the loss of each."
        )
    return losses


def require_predictions(module: nn.Module, predictions: Tensor | None) -> Tensor:
    """The predictions; an InputError where a module's forward returned none."""
    if predictions is None:
        raise InputError(
            f"The forward of {type(module).__name__} returned no predictions that could be judged; let it return a tensor "
            "[rows, positions, ...], first in a tuple, or as `predictions` or `logits`."
        )
    return predictions


def prediction_loss_name(module: nn.Module, targets: Tensor) -> str:
    """What prediction_losses takes for such targets, in words."""
    own = getattr(library_model(module), "position_losses", None)
    return (
        "model's own loss"
        if own is not None
        else "mean squared error"
        if targets.is_floating_point()
        else "cross-entropy"
    )


def _mean(losses: Tensor, labels: Tensor | None, mask: Tensor | None, items: Tensor | int | None) -> Tensor:
    """The mean over real positions with a target, or their sum over `items`."""
    counted = torch.ones_like(losses, dtype=torch.bool) if mask is None else mask != 0
    if labels is not None and not labels.is_floating_point():
        counted = counted & (labels != IGNORED)
    total = torch.where(counted, losses, 0).sum()
    return total / (counted.sum() if items is None else items)


def _predictions(returned: Any) -> Tensor | None:
    found = returned
    if isinstance(returned, Mapping):
        found = next((returned[name] for name in ("predictions", "logits") if name in returned), None)
    elif isinstance(returned, tuple | list):
        found = returned[0] if returned else None
    elif not isinstance(returned, Tensor):
        found = next((getattr(returned, name) for name in ("predictions", "logits") if hasattr(returned, name)), None)
    return found if isinstance(found, Tensor) else None


def _unfit(predictions: Tensor, targets: Tensor) -> InputError:
    wanted = "the same shape" if targets.is_floating_point() else "predictions [rows, positions, values]"
    return InputError(
        f"Predictions of shape {tuple(predictions.shape)} do not fit targets of shape {tuple(targets.shape)} "
        f"({targets.dtype}), which need {wanted}."
    )


def _described(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
