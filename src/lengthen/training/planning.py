"""What a run will read and take in memory, by formula, for any model and number of processes; nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lengthen.errors import InputError
from lengthen.interventions import Intervention, Mixture, StatePassing, intervention_named
from lengthen.interventions.passing import TBPTT
from lengthen.models import wrap, zero_state
from lengthen.models.loading import configuration_of, dtype_named
from lengthen.results import TrainingPlan


def plan(
    model: str | Path | nn.Module,
    *,
    train_context: int,
    steps: int = 500,
    intervention: str | Intervention = "state-passing",
    rows: int = 16,
    accumulation: int = 1,
    processes: int = 1,
    dtype: torch.dtype | str | None = None,
    config: Mapping[str, Any] | None = None,
) -> TrainingPlan:
    """The plan of post_train with these arguments on so many processes; neither weights nor data are read.

    model: a directory, a hub name (its configuration is read), or a model, which may be on the meta device. dtype: of the
    weights, as the configuration says unless said. config: transformers.TrainingArguments, of which fsdp, bf16 and activation_checkpointing count here.
    Raises InputError where the processes and micro-batches cannot share the rows.
    """
    if min(rows, processes, accumulation) < 1:
        raise InputError(
            f"There are {rows} rows, {processes} processes and {accumulation} micro-batches; give at least 1 of each."
        )
    if rows % (processes * accumulation):
        raise InputError(
            f"{rows} rows a step cannot be shared by {processes} processes times {accumulation} micro-batches; choose a "
            "multiple."
        )
    name = str(model) if isinstance(model, str | Path) else type(model).__name__
    built = model if isinstance(model, nn.Module) else _without_weights(model)
    weight_size = _dtype_of(dtype, built).itemsize
    wrap(built)
    settings = config or {}
    sharded = bool(settings.get("fsdp"))
    parameters = sum(p.numel() for p in built.parameters())
    weights = parameters * weight_size // (processes if sharded else 1)
    at_hand = rows // (processes * accumulation)
    a_row = zero_state(built, 1, "meta").bytes
    chosen = intervention if isinstance(intervention, Intervention) else intervention_named(intervention)
    size = 2 if settings.get("bf16") else weight_size
    checkpointing = bool(settings.get("activation_checkpointing") or settings.get("gradient_checkpointing"))
    found = {
        "weights": weights,
        "gradients": weights,
        "optimiser": 2 * weights,
        "states": 2 * at_hand * a_row,
        "bank": round(_kept_share(chosen) * (rows // processes)) * a_row,
        "activations": at_hand * train_context * _activations(built, checkpointing) * size,
    }
    return TrainingPlan(
        model=name,
        parameters=parameters,
        processes=processes,
        sharded=sharded,
        steps=steps,
        tokens=steps * rows * train_context,
        tokens_a_step=rows * train_context,
        rows=at_hand,
        state_bytes_a_row=a_row,
        **found,
        memory=sum(found.values()),
    )


def _without_weights(model: str | Path) -> nn.Module:
    from transformers import AutoModelForCausalLM

    config = configuration_of(model)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def _dtype_of(dtype: torch.dtype | str | None, model: nn.Module) -> torch.dtype:
    chosen = dtype_named(dtype)
    if isinstance(chosen, torch.dtype):
        return chosen
    saved = getattr(getattr(model, "config", None), "dtype", None)
    return saved if isinstance(saved, torch.dtype) else torch.float32


def _kept_share(intervention: Intervention) -> float:
    """The share of the lanes whose states an intervention keeps."""
    if isinstance(intervention, Mixture):
        return sum(share * _kept_share(part) for part, share in intervention.parts)
    return 1.0 if isinstance(intervention, StatePassing | TBPTT) else 0.0


def _activations(model: nn.Module, checkpointing: bool) -> int:
    """Entries kept for the backward pass per position, from what each linear layer of each block reads and writes."""
    blocks = max((m for m in model.modules() if isinstance(m, nn.ModuleList)), key=len, default=nn.ModuleList([model]))
    each = [
        2 * sum(m.in_features + m.out_features for m in block.modules() if isinstance(m, nn.Linear)) for block in blocks
    ]
    if not checkpointing:
        return sum(each)
    hidden = min(m.in_features for block in blocks for m in block.modules() if isinstance(m, nn.Linear))
    return len(blocks) * hidden + max(each)
