"""post_train(): some hundred steps from initial states that cover what is attainable."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from lengthen.data import Corpus, load_corpus
from lengthen.data.loading import Source
from lengthen.interventions import Intervention, intervention_named
from lengthen.models import load, tokenizer_for, wrap
from lengthen.results import TrainingRecord
from lengthen.streaming import Progress
from lengthen.training.processes import process_share
from lengthen.training.running import Optimisation, run_training


def post_train(
    model: str | Path | nn.Module,
    data: Source | Corpus,
    *,
    train_context: int,
    steps: int = 500,
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
) -> TrainingRecord:
    """Post-trains a model (in place) from an intervention's initial states.

    model: a directory, a hub name, or a model. data: what load_corpus takes, or a Corpus. train_context: T, the window.
    steps: optimiser steps. intervention: a name (state-passing, tbptt, fitted-noise, random-noise, zero) or an object.
    rows: windows a step. learning_rate: the peak, reached after `warmup` steps, then a cosine to 0; a tenth of
    pre-training's is the paper's choice. out: the run folder (model/, metrics.jsonl, results/training.json).
    config: further transformers.TrainingArguments. save_steps: steps between two checkpoints in `out`, of which the last
    two are kept. resume: go on exactly from the last of them, from the beginning where there is none.
    Raises InputError for bad input, RunError for a run that fails.
    """
    name = ""
    if isinstance(model, str | Path):
        name = str(model)
        tokenizer = tokenizer if tokenizer is not None else tokenizer_for(model)
        model = load(model)
    corpus = data if isinstance(data, Corpus) else load_corpus(data, tokenizer if tokenizer is not None else "bytes")
    optimisation = Optimisation(
        steps=steps,
        rows=rows,
        learning_rate=learning_rate,
        warmup=warmup,
        accumulation=accumulation,
        config=config or {},
        save_steps=save_steps,
    )
    chosen = intervention if isinstance(intervention, Intervention) else intervention_named(intervention, seed)
    record = run_training(
        wrap(model),
        corpus,
        chosen,
        optimisation,
        train_context=train_context,
        seed=seed,
        out=out,
        name=name,
        progress=progress,
        resume=resume,
    )
    if out is not None and process_share()[0] == 0:
        _save_tokenizer(tokenizer, Path(out) / "model")
    return record


def _save_tokenizer(tokenizer: Any, folder: Path) -> None:
    """Puts the tokenizer beside the model it was trained with, so that what reads the model reads text alike."""
    if tokenizer is None or tokenizer == "bytes":
        return
    if isinstance(tokenizer, str | Path):
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(tokenizer), trust_remote_code=False)
    tokenizer.save_pretrained(folder)
