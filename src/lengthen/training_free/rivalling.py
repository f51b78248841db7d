"""rivals(): what post-training buys that methods without training do not, on one model and one page."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from lengthen.data import Corpus, load_corpus
from lengthen.data.loading import Source
from lengthen.errors import InputError
from lengthen.interventions import StatePassing, Zero
from lengthen.models import load, tokenizer_for, vocabulary_size, wrap
from lengthen.results import Rivals, TrainingRecord
from lengthen.training import post_train
from lengthen.training_free.contest import CONTROL, GIVEN, PASSED, Contestant, Course, contest, entries
from lengthen.training_free.splits import Splits

Stage = Callable[[str, int, int], None]
"""Called with a stage's name, what is done of it and what there is to do."""
SAVE_STEPS = 100


def rivals(
    model: str | Path | nn.Module,
    data: Source | Corpus,
    *,
    train_context: int,
    max_length: int | None = None,
    methods: Sequence[str] = (),
    n: int = 16,
    train_data: Source | Corpus | None = None,
    post_trained: str | Path | None = None,
    control: str | Path | None = None,
    steps: int = 500,
    rows: int = 16,
    learning_rate: float = 3e-4,
    tokenizer: Any = None,
    join: bool = False,
    seed: int = 0,
    name: str | None = None,
    out: str | Path | None = None,
    progress: Stage | None = None,
) -> Rivals:
    """A model as it is, under methods that train nothing, post-trained by state passing, and that under each method too.

    data: text that the model has not seen: a quarter to calibrate and train on, a quarter to choose settings by, half to
    report on. train_data: other text to calibrate and train on; then a quarter of `data` to choose by, the rest to report.
    train_context: T0. max_length: L (64 T0 unless said). methods: names, as NAME:setting=value,setting=value; several of
    one name are candidates, of which the text to choose by decides; all that there are unless said.
    n: sequences to report on, at least 16 for intervals.
    post_trained, control: run folders of post_train by state passing and from the zero state, as long. What is not given is
    trained in `out` for so many steps, rows and at this rate.
    out: a run folder: cells/ (a file a row, a folder a fit), state-passing/, control/, results/rivals.json, figures/,
    report.html; the same call goes on in it. Raises InputError for bad input, RunError where training fails.
    """
    if isinstance(model, str | Path):
        name = name or str(model)
        tokenizer = tokenizer if tokenizer is not None else tokenizer_for(model)
        model = load(model)
    wrap(model)
    entries(methods)
    corpora = [
        source if source is None or isinstance(source, Corpus) else load_corpus(source, tokenizer or "bytes")
        for source in (data, train_data)
    ]
    size = vocabulary_size(model)
    for corpus in corpora:
        if corpus is not None and size is not None:
            corpus.require_vocabulary(size)
    assert corpora[0] is not None
    length = 64 * train_context if max_length is None else max_length
    course = Course(Splits.of(corpora[0], corpora[1]), train_context, length, n, seed, join)
    course.report()  # what is too short is told before any training
    course.splits.calibrate.require_context(train_context)
    for given in (post_trained, control):
        if given is not None and not _trained(Path(given)):
            raise InputError(
                f"{given} holds no finished run of post-train; give the run folder of one, or leave it out."
            )
    with tempfile.TemporaryDirectory(prefix="lengthen-") as temporary:
        folder = Path(out if out is not None else temporary)
        cells = folder / "cells"
        cells.mkdir(parents=True, exist_ok=True)
        arms = {CONTROL: Path(control or folder / "control"), PASSED: Path(post_trained or folder / "state-passing")}
        records = {}
        for (label, place), intervention in zip(arms.items(), (Zero(), StatePassing(seed=seed))):
            if not _trained(place):
                post_train(
                    copy.deepcopy(model),
                    course.splits.calibrate,
                    train_context=train_context,
                    steps=steps,
                    intervention=intervention,
                    rows=rows,
                    learning_rate=learning_rate,
                    tokenizer=tokenizer,
                    seed=seed,
                    out=place,
                    save_steps=SAVE_STEPS,
                    resume=True,
                    progress=_of(progress, f"post-train {label}"),
                )
            records[label] = TrainingRecord.load(place / "results" / "training.json")
        _require_alike(records, arms, train_context)
        parameter = next(model.parameters())
        contestants = [Contestant(GIVEN, model)]
        for label, record in records.items():
            trained = load(arms[label] / "model", dtype=parameter.dtype, device=parameter.device)
            tokens = record.steps * record.rows * record.train_context
            contestants.append(Contestant(label, trained, tokens, record.steps, record.seconds))
        found = contest(contestants, methods, course, name=name or "", cells=cells, progress=_of(progress, "judge"))
    if out is not None:
        from lengthen.reporting import write_report

        found.save(Path(out) / "results" / "rivals.json")
        write_report(out)
    return found


def _trained(folder: Path) -> bool:
    """Whether a run folder of post_train has come to its end."""
    return (folder / "results" / "training.json").exists() and (folder / "model").exists()


def _require_alike(records: dict[str, TrainingRecord], arms: dict[str, Path], train_context: int) -> None:
    """Raises InputError where the control arm is none, or was trained longer or shorter than the other, or both at another T."""
    control, passed = records[CONTROL], records[PASSED]
    if control.intervention != Zero.name or passed.intervention == Zero.name:
        raise InputError(
            f"{arms[CONTROL]} was trained from {control.intervention} and {arms[PASSED]} from {passed.intervention}; the "
            "control arm starts from zero, the other does not."
        )
    for what in ("steps", "rows", "train_context"):
        one, other = getattr(control, what), getattr(passed, what)
        if one != other:
            raise InputError(
                f"The control arm was trained with {what} {one} and {arms[PASSED]} with {other}; train both alike."
            )
    if control.train_context != train_context:
        raise InputError(
            f"{arms[CONTROL]} and {arms[PASSED]} were trained at a context of {control.train_context}, but are to be held "
            f"against one of {train_context}; give the context that they were trained at."
        )


def _of(progress: Stage | None, stage: str) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, todo: progress(stage, done, todo)
