"""A lesson's runs: a model that learns the task, its practice in each arm, and one file for each that was evaluated."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.torch import load_model
from torch import nn

from lengthen.data import Corpus
from lengthen.data.arrays import array_corpus
from lengthen.interventions import intervention_named
from lengthen.results import Evaluation, TaskStudy, versions
from lengthen.studies.cells import keep_weights
from lengthen.studies.lessons import BEFORE, Lesson
from lengthen.studies.own_words import own_tokenizer
from lengthen.studies.settings import digest
from lengthen.studies.side_by_side import Stage, run_jobs, workers_for
from lengthen.tasks import evaluate
from lengthen.tasks.codec import Codec
from lengthen.tasks.samples import training_samples
from lengthen.training import Mamba2Recipe, Optimisation, pretrain, run_training

LONGEST_STORY = 4
"""Windows of the longest samples of an arm that has long stories."""


def run_lesson(
    lesson: Lesson, seeds: Sequence[int], cells: Path, processes: int | None = None, progress: Stage | None = None
) -> TaskStudy:
    """Runs what the folder `cells` does not hold yet of a lesson, and puts all of it together."""
    cells.mkdir(parents=True, exist_ok=True)
    arms = [BEFORE, *lesson.arms]
    missing = [(seed, arm) for seed in seeds for arm in arms if not _cell(lesson, arm, seed, cells).exists()]
    unlearnt = [seed for seed in dict.fromkeys(s for s, _ in missing) if not _weights(lesson, seed, cells).exists()]
    workers = workers_for(processes)
    run_jobs([(learn, (lesson, seed, cells)) for seed in unlearnt], workers, "learn", progress)
    run_jobs([(practise, (lesson, arm, seed, cells)) for seed, arm in missing], workers, "practise", progress)
    found = {arm: [Evaluation.load(_cell(lesson, arm, seed, cells)) for seed in seeds] for arm in arms}
    return TaskStudy(
        name=lesson.name,
        question=lesson.question,
        train_context=lesson.train_context,
        measured=lesson.measured,
        seeds=list(seeds),
        arms=found,
        seconds=sum(e.configuration["seconds"] for evaluations in found.values() for e in evaluations),
        configuration={arm: lesson.describe(arm) for arm in arms},
        versions=versions(),
    )


def learn(lesson: Lesson, seed: int, folder: Path) -> None:
    """Trains a small model on the task from zero states, and writes its weights into the folder."""
    model, _ = pretrain(
        _samples(lesson, seed),
        train_context=lesson.train_context,
        steps=lesson.steps,
        recipe=_recipe(lesson),
        rows=lesson.rows,
        learning_rate=lesson.learning_rate,
        seed=seed,
    )
    keep_weights(model, _weights(lesson, seed, folder))


def practise(lesson: Lesson, arm: str, seed: int, folder: Path) -> None:
    """Trains a copy of the model that lies in the folder as an arm says, evaluates it, and writes its cell."""
    began = time.process_time()
    model = _recipe(lesson).build(seed)
    load_model(model, str(_weights(lesson, seed, folder)))
    if arm != BEFORE:
        _practise(model, lesson, arm, seed)
    found = evaluate(
        model,
        [lesson.task],
        lengths=lesson.lengths,
        depths=lesson.depths,
        n=lesson.n,
        tokenizer=own_tokenizer(lesson.task),
        haystack=lesson.haystack,
        max_new_tokens=1,  # a place is one of the task's own tokens, and nothing taught what to say after it
        seed=seed,
        name=arm,
    )
    configuration = {**found.configuration, **lesson.describe(arm), "seconds": time.process_time() - began}
    replace(found, configuration=configuration).save(_cell(lesson, arm, seed, folder))


def _practise(model: nn.Module, lesson: Lesson, arm: str, seed: int) -> None:
    run_training(
        model,
        _samples(lesson, seed, arm in lesson.long_stories),
        intervention_named(lesson.arms[arm], seed),
        Optimisation(steps=lesson.practice, rows=lesson.rows, learning_rate=lesson.practice_rate),
        train_context=lesson.train_context,
        seed=seed + 1,
    )


def _samples(lesson: Lesson, seed: int, long_stories: bool = False) -> Corpus:
    lengths = tuple(lesson.train_context * (i + 1) for i in range(LONGEST_STORY if long_stories else 1))
    return _made(lesson.task, lengths, lesson.samples, lesson.haystack, seed)


@functools.lru_cache(maxsize=2)
def _made(task: str, lengths: tuple[int, ...], count: int, haystack: str | None, seed: int) -> Corpus:
    """`count` samples in equal parts of each length, one corpus."""
    tokenizer, each = own_tokenizer(task), count // len(lengths)
    parts = [
        training_samples(task, train_context=length, count=each, tokenizer=tokenizer, seed=seed, haystack=haystack)
        for length in lengths
    ]
    inputs = [part.document(i) for part in parts for i in range(part.documents)]
    targets = [array for p in parts if p.targets is not None for array in np.split(p.targets, p.boundaries[1:-1])]
    return array_corpus(inputs, targets, parts[0].vocabulary_size, None)


def _recipe(lesson: Lesson) -> Mamba2Recipe:
    return replace(lesson.recipe, vocabulary=Codec(own_tokenizer(lesson.task)).vocabulary_size)


def _weights(lesson: Lesson, seed: int, folder: Path) -> Path:
    return folder / f"{lesson.task}-{digest(lesson.learnt())}-seed{seed}.safetensors"


def _cell(lesson: Lesson, arm: str, seed: int, folder: Path) -> Path:
    label = re.sub(r"[^a-z0-9]+", "-", arm.lower())
    return folder / f"{lesson.task}-{label}-{digest(lesson.describe(arm))}-seed{seed}.json"
