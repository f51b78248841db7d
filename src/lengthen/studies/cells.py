"""One cell of a study: a setting under one seed, trained, judged to 64 T, and written to a file of its own."""

from __future__ import annotations

import functools
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_model, save_model
from torch import nn

from lengthen.data import Corpus, HeldOutSequences, bundled_plays, load_corpus
from lengthen.diagnosis import diagnose
from lengthen.errors import RunError
from lengthen.results import Result, versions
from lengthen.studies.settings import Base, Setting
from lengthen.studies.study_interventions import intervention_of
from lengthen.training import Optimisation, pretrain, run_training
from lengthen.training.running import wants_lanes

CONTEXTS = 64
JUDGED_TOKENS = 1 << 17
SEQUENCES = 16
"""At least; more where JUDGED_TOKENS allow."""


@dataclass(frozen=True)
class StudyCell(Result):
    """What one cell found: perplexities as Diagnosis tells them, NaN where the run failed, and then why."""

    seed: int
    setting: dict[str, Any]
    in_context: float
    far: float
    far_stderr: float
    own_reset: float
    n: int
    seconds: float
    failed: str | None = None
    versions: dict[str, str] = field(default_factory=dict)


def train_base(base: Base, seed: int, folder: Path) -> None:
    """Pre-trains a base and writes its weights into the folder, whole or not at all."""
    path = folder / f"{base.key(seed)}.safetensors"
    model, _ = pretrain(
        corpora()[0],
        train_context=base.train_context,
        steps=base.steps,
        recipe=base.recipe,
        rows=base.rows,
        learning_rate=base.learning_rate,
        seed=seed,
    )
    keep_weights(model, path)


def keep_weights(model: nn.Module, path: Path) -> None:
    """Writes a model's weights, whole or not at all."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    save_model(model, str(unfinished))
    os.replace(unfinished, path)


def run_cell(setting: Setting, seed: int, folder: Path) -> None:
    """Post-trains a copy of the base that lies in the folder, judges it, and writes its cell."""
    began = time.process_time()
    model = setting.base.recipe.build(seed)
    load_model(model, str(folder / f"{setting.base.key(seed)}.safetensors"))
    failed = post_trained(model, setting, seed) if setting.steps else None
    figures = {"in_context": float("nan"), "far": float("nan"), "far_stderr": float("nan"), "own_reset": float("nan")}
    context = setting.base.train_context
    count = max(SEQUENCES, JUDGED_TOKENS // (CONTEXTS * context))
    if failed is None:
        tokens = HeldOutSequences(corpora()[1], length=CONTEXTS * context, count=count, seed=seed)
        off = {"remembrance": False, "drift": False, "patching": False}
        found = diagnose(model, tokens, train_context=context, positions=(), seed=seed, **off)  # type: ignore[arg-type]
        figures = {name: getattr(found, name) for name in figures}
    cell = StudyCell(
        seed=seed,
        setting=setting.describe(),
        **figures,
        n=count,
        seconds=time.process_time() - began,
        failed=failed,
        versions=versions(),
    )
    cell.save(folder / f"{setting.key(seed)}.json")


def post_trained(model: nn.Module, setting: Setting, seed: int) -> str | None:
    """Post-trains the model in place; returns why that failed, if the loss was no longer a number."""
    intervention = intervention_of(setting.intervention, seed)
    corpus, context = corpora()[0], setting.base.train_context
    if wants_lanes(intervention):  # lanes that move on, rather than stay in as many plays
        corpus = corpus.sections(CONTEXTS * context + 1)
    optimisation = Optimisation(steps=setting.steps, rows=setting.base.rows, learning_rate=setting.learning_rate)
    try:
        run_training(model, corpus, intervention, optimisation, train_context=context, seed=seed + 1)
    except RunError as error:
        return str(error)
    return None


@functools.cache
def corpora() -> tuple[Corpus, Corpus]:
    """The bundled plays to train on and to judge by."""
    training, held_out = bundled_plays()
    return load_corpus(training), load_corpus(held_out)
