"""Modes a model is put into for a while, and out of again: training, checkpointing, no dropout, choices that are held."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint


@contextmanager
def mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Training or evaluation mode, and back to what it was."""
    before = model.training
    model.train(training)
    try:
        yield
    finally:
        model.train(before)


@contextmanager
def checkpointing(library: Any) -> Iterator[None]:
    """The library's gradient checkpointing switched on as its own method does, and back to what it was."""
    names = ("gradient_checkpointing", "_gradient_checkpointing_func")
    before = [(m, {n: m.__dict__[n] for n in names if n in m.__dict__}) for m in library.modules()]
    library._set_gradient_checkpointing(True, functools.partial(checkpoint, use_reentrant=False))
    try:
        yield
    finally:
        for module, found in before:
            for name in names:
                module.__dict__.pop(name, None)
            module.__dict__.update(found)


@contextmanager
def no_dropout(model: nn.Module) -> Iterator[None]:
    """No dropout in layers or attention, and back to what it was."""
    rates: list[tuple[nn.Module, str]] = [(m, "p") for m in model.modules() if isinstance(m, nn.Dropout)]
    rates += [(m, "dropout") for m in model.modules() if isinstance(m, nn.RNNBase)]
    rates += [(m, "attention_dropout") for m in model.modules() if "attention_dropout" in m.__dict__]
    before = [(module, name, getattr(module, name)) for module, name in rates]
    for module, name, _ in before:
        setattr(module, name, 0.0)
    try:
        yield
    finally:
        for module, name, rate in before:
            setattr(module, name, rate)


class HeldChoices(TorchFunctionMode):
    """What topk chooses under the mode's first use, it chooses again under every later one.

    A router that chooses another expert makes a model jump; with its choices held, a mixture of experts is smooth.
    """

    def __init__(self) -> None:
        super().__init__()
        self._chosen: list[Tensor] = []
        self._next = 0

    def __enter__(self) -> HeldChoices:
        self._next = 0
        super().__enter__()
        return self

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        if function not in (torch.topk, Tensor.topk):
            return found
        if self._next == len(self._chosen):
            self._chosen.append(found.indices)
        held = self._chosen[self._next]
        self._next += 1
        dim = (kwargs or {}).get("dim", args[2] if len(args) > 2 else -1)
        return type(found)((args[0].gather(dim, held), held))
