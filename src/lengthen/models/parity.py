"""The parity gate: is the recurrent state really carried? One run = segments = token by token, with gradients.

Every check runs the wrapped model itself, on random tokens, against one run of the same tokens: `state_parity` has those
of what a run carries, `training_parity` those of what training adds. A failure has a name and a sentence that says what
it would do to the user.

Where the weights are in half precision, errors are measured on a float32 copy of the model, to float32's tolerance:
half precision would hide small faults behind its rounding, and may rightly send a token to another expert when it is
computed in another order. The model itself is asked for what needs no tolerance (what is bit-equal, the state's type,
unknown keywords), and for one loose agreement with its copy.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from lengthen.models import state_parity, training_parity
from lengthen.models.binding import family_name, library_model
from lengthen.models.modes import mode
from lengthen.models.parity_probe import Probe
from lengthen.models.wrapping import is_wrapped, unwrap, wrap
from lengthen.results import CheckResult


def check(model: nn.Module, *, inputs: Tensor | None = None, seed: int = 0, name: str | None = None) -> CheckResult:
    """Every parity check on a wrapped model (or a library model, which is wrapped for the time of the check).

    inputs: for a module that is no language model, an example [B, T, ...] of what it reads: the checks draw their own,
    ids below its largest or frames of its mean and spread.
    """
    wrapped_here = not is_wrapped(model)
    wrap(model)
    try:
        half = next(model.parameters()).dtype in (torch.bfloat16, torch.float16)
        probe = Probe(copy.deepcopy(model).float() if half else model, seed, inputs)
        given = Probe(model, seed, inputs) if half else probe
        with mode(probe.model, training=False), mode(model, training=False):
            checks = [
                state_parity.segments(probe),
                state_parity.token_by_token(probe),
                state_parity.random_state(probe),
                state_parity.rows(probe),
                state_parity.padding(probe, "left"),
                state_parity.padding(probe, "right"),
                state_parity.padding_identity(given),
                state_parity.packing(probe),
                state_parity.packing(probe, pad=5),
                state_parity.reset_at_start(probe),
                state_parity.state_dtype(given),
                state_parity.state_unchanged(given),
                state_parity.causal(probe),
            ]
            if half:
                checks.append(state_parity.half_precision(given, probe))
        checks += [
            training_parity.gradient_into_state(probe),
            training_parity.gradient_through_state(probe),
            training_parity.train_mode(probe),
        ]
        if getattr(library_model(model), "supports_gradient_checkpointing", False):
            checks.append(training_parity.gradient_checkpointing(probe))
        checks.append(state_parity.unknown_keyword(given))
        library = library_model(model)
        title = name or getattr(getattr(library, "config", None), "_name_or_path", "") or type(library).__name__
        return CheckResult(title, family_name(model), all(c.passed for c in checks), checks)
    finally:
        if wrapped_here:
            unwrap(model)
