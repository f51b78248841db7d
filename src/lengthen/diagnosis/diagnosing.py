"""diagnose(): how far a model generalises, where it stops, why, and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from torch import nn

from lengthen.data import Corpus, HeldOutSequences
from lengthen.data.loading import Source
from lengthen.diagnosis.checkpoint import Checkpoint, Found
from lengthen.diagnosis.drift import WINDOWS, enough_windows, training_states
from lengthen.diagnosis.forgetting import forgetting_times
from lengthen.diagnosis.judged_data import judged_sequences
from lengthen.diagnosis.loss_summary import intervals_of, loss_summary
from lengthen.diagnosis.passes import carried_pass, reset_pass
from lengthen.diagnosis.patching import state_patching
from lengthen.diagnosis.recommendation import recommend
from lengthen.diagnosis.remembrance import effective_remembrance
from lengthen.diagnosis.sequence_losses import fingerprint
from lengthen.diagnosis.stages import Stages
from lengthen.errors import InputError
from lengthen.models import load, tokenizer_for, vocabulary_size, weights_fingerprint, wrap
from lengthen.results import Diagnosis, Drift, Patching, Remembrance, versions
from lengthen.streaming import Progress

UNLEARNT_FIRST = "The model has learnt nothing from its context on this text, so that the rest says little."
"""Said before the verdict on such a model, whose loss past T means nothing."""
FIELD_POSITIONS = (2048, 8192, 32768, 131072)


def diagnose(
    model: str | Path | nn.Module,
    data: Source | Corpus | HeldOutSequences | NDArray[Any],
    *,
    train_context: int,
    max_length: int | None = None,
    n: int = 16,
    positions: Sequence[int] = FIELD_POSITIONS,
    remembrance: bool = True,
    drift: bool = True,
    patching: bool = True,
    tokenizer: Any = None,
    join: bool = False,
    segment: int | None = None,
    seed: int = 0,
    name: str | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Diagnosis:
    """Position-wise loss to any length against the model's own reset baseline, with causes, a verdict and an advice.

    model: a directory, a hub name, or a (wrapped) model. data: what load_corpus takes, a Corpus, or tokens [n, L + 1]
    (for a module that is no language model: what it reads, frames [n, L + 1, ...] or a corpus with its targets).
    train_context: T. max_length: L (64 T unless said). n: held-out sequences, at least 16 for a verdict.
    positions: where perplexity is told (over the eighth before each). remembrance: measure effective remembrance at
    64 T (or L), for a model with a vocabulary. drift: compare the states with what training shows, where L >= 2 T and
    the sequences hold 64 windows. patching: where the model fails, find the layer that it comes from.
    tokenizer: the model's own unless said. join: lay documents end to end where none is long enough.
    segment: positions a call (chosen by device and n).
    checkpoint: a folder to keep what is done so far in, until all is. resume: go on with what it holds.
    Raises InputError for T < 1, L < T, text that is too short, tokens the model does not have, or a checkpoint of
    another diagnosis.
    """
    if train_context < 1:
        raise InputError(f"The training context is {train_context}; give at least 1 position.")
    length = 64 * train_context if max_length is None else max_length
    if length < train_context:
        raise InputError(
            f"The maximum length {length} is below the training context {train_context}; give at least that."
        )
    if segment is not None and segment < 1:
        raise InputError(f"A segment has {segment} positions; give at least 1.")
    if any(p < 1 for p in positions):
        raise InputError(f"There is no perplexity at position {min(positions)}; give positions of at least 1.")
    if isinstance(model, str | Path):
        name = name or str(model)
        tokenizer = tokenizer if tokenizer is not None else tokenizer_for(model)
        model = load(model)
    wrap(model)
    tokens = judged_sequences(model, data, length, n, tokenizer if tokenizer is not None else "bytes", join, seed)

    n, asked = tokens.shape[0], min(length, 64 * train_context)
    cuts = sorted({*(train_context << k for k in range(32) if train_context << k < length), length})
    patched_at = max((cut for cut in cuts if cut + train_context <= length), default=None) if patching else None
    remembrance = remembrance and vocabulary_size(model) is not None and asked > 1
    drift = drift and length >= 2 * train_context and enough_windows(tokens, train_context)
    configuration = {"segment": segment, "join": join, "positions": list(positions)}
    saved = None
    if checkpoint is not None:
        of = {"model": weights_fingerprint(model), "data": fingerprint(tokens), "train_context": train_context}
        saved = Checkpoint(checkpoint, {**of, **configuration, "seed": seed, "versions": versions()}, resume=resume)
    sizes = {"carried": n * length, "reset": n * length}
    sizes |= {"drift": WINDOWS * train_context} if drift else {}
    sizes |= {"remembrance": 3 * n * asked} if remembrance else {}
    sizes |= {"patching": 8 * n * train_context} if patched_at is not None else {}
    stages = Stages(progress, sizes)

    intervals = intervals_of(train_context, length, positions)
    carried = carried_pass(
        model,
        tokens,
        intervals,
        cuts=cuts,
        keep=patched_at,
        segment=segment,
        checkpoint=saved,
        progress=stages.of("carried"),
    )
    reset = reset_pass(
        model, tokens, intervals, train_context, segment=segment, checkpoint=saved, progress=stages.of("reset")
    )
    found = loss_summary(
        model,
        tokens,
        train_context,
        carried,
        reset,
        positions=positions,
        seed=seed,
        name=name,
        configuration=configuration,
    )

    def drifted() -> Drift:
        shown = training_states(model, tokens, train_context, seed=seed, segment=segment, progress=stages.of("drift"))
        return shown.drift(
            carried.statistics, forgetting_times(model, tokens, train_context, seed=seed, segment=segment)
        )

    def remembered() -> Remembrance:
        starts = [asked - (1 << k) for k in range(32) if 1 << k < asked]
        return effective_remembrance(
            model, tokens, ends=[asked], starts=starts, segment=segment, progress=stages.of("remembrance")
        )

    def patched() -> Patching:
        assert patched_at is not None and carried.kept is not None
        return state_patching(
            model, tokens, train_context, patched_at, carried.kept, segment=segment, progress=stages.of("patching")
        )

    decided = found.fails and math.isfinite(found.buckets[-1].loss)
    found = replace(
        found,
        drift=_part(saved, "drift", Drift, drifted) if drift else None,
        remembrance=_part(saved, "remembrance", Remembrance, remembered) if remembrance else None,
        patching=_part(saved, "patching", Patching, patched) if decided and patched_at is not None else None,
    )
    stages.finish()
    if saved is not None:
        saved.remove()
    recommendation = recommend(found)
    if recommendation.rule == "learnt_nothing":
        found = replace(found, verdict=f"{UNLEARNT_FIRST} {found.verdict}")
    return replace(found, recommendation=recommendation)


def _part(saved: Checkpoint | None, name: str, kind: type[Found], compute: Callable[[], Found]) -> Found:
    return compute() if saved is None else saved.result(name, kind, compute)
