"""Parity where a model trains: gradients into and out of its state, train mode, gradient checkpointing.

Each check has the name of its function and runs a probe's model on its tokens; its sentence says what a failure would
do to the user.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from lengthen.models.agreement import gradient_error, relative_error, state_error
from lengthen.models.modes import HeldChoices, checkpointing, mode, no_dropout
from lengthen.models.parity_probe import Probe, spread
from lengthen.results import Check
from lengthen.state import RecurrentState

# Of a central difference, in the state's size: below the last the libraries' float32 norms drown the difference.
STEPS = (1e-2, 1e-3, 3e-4)


def gradient_into_state(probe: Probe) -> Check:
    """The directional derivative of a loss along the initial state, against a central difference."""
    tolerance = 2e-2
    with mode(probe.model, training=False):
        error, slope = _slope_error(probe, tolerance)
    return Check(
        "gradient-into-state",
        error <= tolerance and slope != 0,
        error,
        tolerance,
        "If gradients into the initial state are wrong or missing, learned initial states and long gradients are wrong.",
    )


def gradient_through_state(probe: Probe) -> Check:
    cut = 77

    def grads(two: bool) -> list[Tensor]:
        parameters = [p for p in probe.model.parameters() if p.requires_grad]
        if two:
            first, state = probe.run(probe.tokens[:, :cut])
            second, _ = probe.run(probe.tokens[:, cut:], state)
            logits = torch.cat([first, second], 1)
        else:
            logits, _ = probe.run(probe.tokens)
        loss = logits[:, cut:].double().square().mean()
        return list(torch.autograd.grad(loss, parameters, allow_unused=True))

    with mode(probe.model, training=False):
        error = gradient_error(grads(True), grads(False))
    tolerance = max(50 * probe.tolerance, 1e-6)  # in float64 they pass the libraries' norms, which work in float32
    return Check(
        "gradient-through-state",
        error <= tolerance,
        error,
        tolerance,
        "If gradients do not flow out of a final state, two segments train differently from one.",
    )


def train_mode(probe: Probe) -> Check:
    with mode(probe.model, training=True), no_dropout(probe.model), torch.no_grad():
        logits, final = probe.run(probe.tokens, probe.random)
    error = max(relative_error(logits, probe.from_random), state_error(final, probe.final_from_random))
    return probe.within(
        "train-mode",
        error,
        "If training mode drops or changes the state, post-training starts from zero without a word.",
    )


def gradient_checkpointing(probe: Probe) -> Check:
    state = probe.random.map(lambda t, _: t)  # of a hybrid the state alone: training carries no cache

    def grads() -> tuple[list[Tensor], RecurrentState]:
        output = probe.model(input_ids=probe.tokens, labels=probe.tokens, initial_state=state)
        parameters = [p for p in probe.model.parameters() if p.requires_grad]
        return list(torch.autograd.grad(output.loss, parameters, allow_unused=True)), output.final_state

    with mode(probe.model, training=True), no_dropout(probe.model):
        plain, final = grads()
        with checkpointing(probe.library):
            recomputed, recomputed_final = grads()
    error = max(gradient_error(recomputed, plain), state_error(recomputed_final, final))
    return probe.within(
        "gradient-checkpointing",
        error,
        "If gradient checkpointing drops the state, large models are post-trained from zero.",
    )


def _slope_error(probe: Probe, tolerance: float) -> tuple[float, float]:
    """Relative error of a slope along a random direction, for the first step that is good enough; and the slope.

    Routers keep to the experts they chose: another one within the step would spoil the difference.
    """
    state, held = probe.random.map(lambda t, _: t), HeldChoices()  # of a hybrid the state alone
    leaf = state.requires_grad()
    weights = torch.randn(probe.from_random.shape, generator=probe.generator).to(probe.from_random)
    with held:
        loss = (probe.run(probe.tokens, leaf)[0] * weights).sum()
    leaves = [t for named in leaf.tensors.values() for t in named.values()]
    grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    direction = [torch.randn(t.shape, generator=probe.generator).to(t) * spread(t) for t in leaves]
    slope = float(sum((g * d).double().sum() for g, d in zip(grads, direction)))
    sizes = [float(torch.cat([x.double().flatten() for x in xs]).norm()) for xs in (grads, direction)]
    usual = sizes[0] * sizes[1] / sum(d.numel() for d in direction) ** 0.5
    for step in STEPS:
        with torch.no_grad():
            ends = []
            for sign in (1, -1):
                moved = iter(direction)
                shifted = state.map(functools.partial(_moved, moved, sign * step))
                with held:
                    logits, _ = probe.run(probe.tokens, shifted)
                ends.append(float((logits * weights).double().sum()))
        numeric = (ends[0] - ends[1]) / (2 * step)
        error = abs(slope - numeric) / max(abs(numeric), usual, 1e-30)
        if error <= tolerance:
            break
    return error, slope


def _moved(directions: Iterator[Tensor], step: float, t: Tensor, _: Any) -> Tensor:
    return t + step * next(directions)
