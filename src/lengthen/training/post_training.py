"""post_train(): some hundred steps from initial states that cover what is attainable."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from torch import nn

from lengthen.data import Corpus, load_corpus
from lengthen.data.loading import Source
from lengthen.errors import InputError
from lengthen.interventions import Intervention, intervention_named
from lengthen.models import load, tokenizer_for, wrap
from lengthen.results import TrainingRecord
from lengthen.streaming import Progress
from lengthen.training.running import Optimisation, run_training
from lengthen.training.watching import StreamedLoss, Watch, reached

AUTO_STEPS = 2000
"""The most steps that `auto` takes."""


def post_train(
    model: str | Path | nn.Module,
    data: Source | Corpus,
    *,
    train_context: int,
    steps: int | Literal["auto"] = 500,
    intervention: str | Intervention = "state-passing",
    rows: int = 16,
    learning_rate: float = 3e-4,
    warmup: int = 0,
    accumulation: int = 1,
    tokenizer: Any = None,
    seed: int = 0,
    out: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    save_steps: int | None = None,
    resume: bool = False,
    watch: Source | Corpus | None = None,
    watch_steps: int = 25,
) -> TrainingRecord:
    """Post-trains a model (in place) from an intervention's initial states.

    model: a directory, a hub name, or a model. data: what load_corpus takes, or a Corpus. train_context: T, the window.
    steps: optimiser steps, or "auto": as many as it takes (at most 2000, at a constant learning rate) until the far loss
    on the watched text is no higher than that of the weights before with the state reset every T.
    intervention: a name (state-passing, tbptt, fitted-noise, random-noise, zero) or an object. rows: windows a step.
    learning_rate: the peak, reached after `warmup` steps, then a cosine to 0; a tenth of pre-training's is the paper's
    choice. out: the run folder (model/, metrics.jsonl, results/training.json).
    config: further transformers.TrainingArguments. save_steps: steps between two checkpoints in `out`, of which the last
    two are kept. resume: go on exactly from the last of them, from the beginning where there is none.
    watch: held-out text whose loss in context and far is logged every `watch_steps` steps (see StreamedLoss).
    Raises InputError for bad input, RunError for a run that fails.
    """
    name = ""
    if isinstance(model, str | Path):
        name = str(model)
        tokenizer = tokenizer if tokenizer is not None else tokenizer_for(model)
        model = load(model)
    corpus = data if isinstance(data, Corpus) else load_corpus(data, tokenizer if tokenizer is not None else "bytes")
    if steps == "auto" and watch is None:
        raise InputError("Steps `auto` end where a held-out text's far loss is repaired; name one to watch.")
    optimisation = Optimisation(
        steps=AUTO_STEPS if steps == "auto" else steps,
        final_share=1.0 if steps == "auto" else 0.0,
        rows=rows,
        learning_rate=learning_rate,
        warmup=warmup,
        accumulation=accumulation,
        config=config or {},
        save_steps=save_steps,
    )
    chosen = intervention if isinstance(intervention, Intervention) else intervention_named(intervention, seed)
    wrap(model)
    watching = None
    if watch is not None:
        held_out = watch if isinstance(watch, Corpus) else load_corpus(watch, tokenizer or "bytes")
        probe = StreamedLoss(held_out, train_context, seed=seed)
        watching = Watch([probe], watch_steps, reached(probe.reset_loss(model)) if steps == "auto" else None)
    return run_training(
        model,
        corpus,
        chosen,
        optimisation,
        train_context=train_context,
        seed=seed,
        out=out,
        name=name,
        tokenizer=tokenizer,
        progress=progress,
        resume=resume,
        watch=watching,
    )
