"""States kept to the norms that they have within the training context, after every token or now and then.

B rows, T positions, H heads, T0 the training context.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lengthen.errors import InputError
from lengthen.models.families import KINDS
from lengthen.models.hooked_layers import hookable_layers, hooked
from lengthen.models.hooks import Hook, LayerView, is_recurrent
from lengthen.state import LayerState, TensorSpec, heads_of
from lengthen.training_free.fitting import Calibration, HookMethod
from lengthen.training_free.resets import MAXIMUM

POINTS = 16
"""Into how many parts calibration windows are divided, at whose ends norms are taken."""


@dataclass(frozen=True)
class _Normalising(HookMethod):
    """A head's state S becomes S min(1, p / |S|), |S| its Euclidean norm over all that the head keeps.

    p is a quantile, head by head, of the norms in windows of calibration text of T0 tokens from the zero state; or
    `limit` for all heads, where it is given.
    Source: Chen et al., Stuffed Mamba, arXiv 2410.07145, first version; how to choose p is ours, for none is published.
    """

    quantile: float = 0.99
    limit: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.quantile <= 1:
            raise InputError(f"The quantile of {self.name} is {self.quantile}; give a number above 0, at most 1.")
        if self.limit is not None and not self.limit > 0:
            raise InputError(f"The limit of {self.name} is {self.limit}; give a norm above 0.")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"calibration", "train-context"} if self.limit is None else ())

    def require_model(self, model: nn.Module) -> None:
        super().require_model(model)
        for binding, layer in hookable_layers(model):
            kind = KINDS[binding.kind]
            zero, specs = kind.zero_state(layer, 1, torch.device("meta"), torch.float32), kind.specs_of(layer)
            if MAXIMUM in zero or len({heads_of(t, specs[name]).shape[1] for name, t in _kept(zero, specs)}) > 1:
                raise InputError(
                    f"{self.name} needs the norm of each head's state, but {binding.name} ({type(layer).__name__}) keeps "
                    "parts that have no common measure; choose another method for this model."
                )

    def measured(self, model: nn.Module, calibration: Calibration) -> dict[str, Tensor]:
        if self.limit is not None:
            return {binding.name: torch.tensor(float(self.limit)) for binding, _ in hookable_layers(model)}
        assert calibration.train_context is not None
        watching = _Watching(self.name, max(1, calibration.train_context // POINTS))
        with hooked(model, watching), torch.no_grad():
            calibration.losses(model)
        return {name: torch.cat(norms).quantile(self.quantile, dim=0) for name, norms in watching.norms.items()}


@dataclass(frozen=True)
class StateNormalisation(_Normalising):
    """After every token, before it is read; the recurrence is then no longer linear and runs one token at a time."""

    name = "state-normalisation"
    uses = frozenset({"read"})

    def hook(self, tensors: Mapping[str, Tensor]) -> Hook:
        return _EachToken(self.name, tensors)


@dataclass(frozen=True)
class SegmentNormalisation(_Normalising):
    """Before every multiple of `period` tokens, T0 unless given; between them a state grows as it does."""

    name = "segment-normalisation"

    period: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_whole("period")

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | frozenset({"train-context"} if self.period is None else ())

    def measured(self, model: nn.Module, calibration: Calibration) -> dict[str, Tensor]:
        period = calibration.train_context if self.period is None else self.period
        return super().measured(model, calibration) | {"period": torch.tensor(period)}

    def hook(self, tensors: Mapping[str, Tensor]) -> Hook:
        limits = {name: t for name, t in tensors.items() if name != "period"}
        return _EachSegment(self.name, limits, int(tensors["period"]))


def shrinking(norms: Tensor, limits: Tensor) -> Tensor:
    """min(1, p / |S|) for norms [B, H] and p of [H] or one number."""
    limits = limits.to(norms.dtype)
    return torch.where(norms > limits, limits / norms, 1)


def head_norms(state: LayerState, specs: Mapping[str, TensorSpec]) -> Tensor:
    """[B, H]: the norm of what each head keeps, over all recurrent tensors."""
    parts = [heads_of(t, specs[name]).norm(dim=-1) for name, t in _kept(state, specs)]
    return torch.stack(parts).norm(dim=0)


def _kept(state: LayerState, specs: Mapping[str, TensorSpec]) -> list[tuple[str, Tensor]]:
    return [(name, t) for name, t in state.items() if specs[name].kind == "recurrent"]


class _Watching(Hook):
    """Changes nothing and keeps each layer's norms [B, H] at every multiple of a period."""

    def __init__(self, name: str, period: int) -> None:
        self.name, self.period = name, period
        self.norms: dict[str, list[Tensor]] = {}

    def between(self, view: LayerView, state: LayerState) -> LayerState:
        if is_recurrent(state, view.specs):
            self.norms.setdefault(view.layer, []).append(head_norms(state, view.specs))
        return state


class _EachSegment(Hook):
    """Norms kept to limits at every multiple of a period."""

    def __init__(self, name: str, limits: Mapping[str, Tensor], period: int) -> None:
        self.name, self.limits, self.period = name, limits, period

    def between(self, view: LayerView, state: LayerState) -> LayerState:
        if not is_recurrent(state, view.specs):
            return state
        shrink = shrinking(head_norms(state, view.specs), self.limits[view.layer])
        kept = {name: _by_head(t, view.specs[name], shrink) for name, t in _kept(state, view.specs)}
        return state | kept


def _by_head(t: Tensor, spec: TensorSpec, factor: Tensor) -> Tensor:
    """t [B, ...] times a factor [B, H] for each of its heads."""
    axis = 1 if spec.head_axis is None else spec.head_axis
    shape = [len(t)] + [1] * (t.dim() - 1)
    shape[axis] = factor.shape[1]
    return t * factor.view(shape)


class _EachToken(Hook):
    """Norms kept to limits after every token."""

    uses = StateNormalisation.uses

    def __init__(self, name: str, limits: Mapping[str, Tensor]) -> None:
        self.name, self.limits = name, limits
        self.unbounded = {layer for layer, limit in limits.items() if bool((limit == math.inf).all())}

    def read(
        self, view: LayerView, kernel: Callable[..., tuple[Tensor, Tensor]], *inputs: Any, **options: Any
    ) -> tuple[Tensor, Tensor]:
        if view.layer in self.unbounded:
            return kernel(*inputs, **options)
        state, skip = options.pop("initial_state"), options.pop("skip", None)
        value, before = inputs[2], options.get("bonus") is not None
        outputs = []
        for t in range(value.shape[1]):
            here = (None if x is None else x[:, t : t + 1] for x in inputs)
            y, state = kernel(*here, initial_state=state, **options)
            shrink = shrinking(state.flatten(2).norm(dim=-1), self.limits[view.layer])
            if view.real is not None:
                shrink = shrink.masked_fill(~view.real[:, t : t + 1], 1)
            state = state * shrink[..., None, None]
            # With a bonus an output reads the state before its token; without one it is linear in the state after it.
            outputs.append(y if before else y * shrink[:, None, :, None])
        y = torch.cat(outputs, 1)
        return (y if skip is None else y + skip[:, None] * value).to(value.dtype), state
