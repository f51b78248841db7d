"""evaluate(): tasks at lengths and depths, cell by cell, in memory that does not grow with the length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from lengthen.errors import InputError
from lengthen.models import (
    family_name,
    is_language_model,
    library_model,
    load,
    tokenizer_for,
    vocabulary_size,
    weights_fingerprint,
    wrap,
)
from lengthen.results import Cell, Evaluation, versions
from lengthen.streaming import Progress
from lengthen.tasks.answering import scores
from lengthen.tasks.catalogue import Task, task_named
from lengthen.tasks.cells import CellFile
from lengthen.tasks.codec import Codec
from lengthen.tasks.harness import PREFIX, harness_cell, task_folder
from lengthen.tasks.prompts import Group, Wanted
from lengthen.tasks.scoring import effective_length, wilson
from lengthen.tasks.shared_prefixes import Cost, rows_together

LENGTHS = (1024, 2048, 4096, 8192)
DEPTHS = tuple(i / 8 for i in range(9))


def evaluate(
    model: str | Path | nn.Module,
    tasks: Sequence[str],
    *,
    lengths: Sequence[int] = LENGTHS,
    depths: Sequence[float] = DEPTHS,
    n: int = 100,
    tokenizer: Any = None,
    haystack: str | None = None,
    max_new_tokens: int | None = None,
    seed: int = 0,
    cells: str | Path | None = None,
    resume: bool = False,
    name: str = "",
    progress: Progress | None = None,
) -> Evaluation:
    """Evaluates a language model on tasks by name (those of tasks.TASKS, file:PATH, lm-eval:TASK).

    model: a directory, a hub name, or a model. lengths: tokens of a prompt; 0 for the facts without a haystack. depths:
    of the fact in tasks that have one (passkey, niah-single), 0 at the start to 1 at the end. n: haystacks a cell.
    tokenizer: the model's own unless said ("bytes" where a model is given). haystack: noise, plays or a path (each
    task's own unless said). max_new_tokens: what a model may say (see tasks.answering.scores). cells: a file that keeps
    finished cells, so that an interrupted evaluation goes on at the next with `resume`.

    What the prompts of a cell share is run once, and a haystack's depths and questions fork from it. Raises InputError for
    an unknown task, a length that is too short, or a tokenizer or model that does not fit.
    """
    if isinstance(model, str | Path):
        name = name or str(model)
        tokenizer = tokenizer if tokenizer is not None else tokenizer_for(model)
        model = load(model)
    wrap(model)
    found = [task if task.startswith(PREFIX) else task_named(task) for task in dict.fromkeys(tasks)]
    generated = [task for task in found if not isinstance(task, str)]
    codec = Codec(tokenizer if tokenizer is not None else "bytes")
    _require(model, codec, found, lengths, depths, n, max_new_tokens)
    # A model under a method has its own name, and the weights that it had without.
    settings = {"model": name, "weights": weights_fingerprint(model), "tokenizer": codec.identity, "n": n, "seed": seed}
    settings |= {"haystack": haystack, "max_new_tokens": max_new_tokens}
    ascending = sorted(dict.fromkeys(lengths))
    for of_harness in (task for task in found if isinstance(task, str)):
        task_folder(of_harness)
    for made_here in generated:  # what is too short is told before the first cell takes its time
        for length in {ascending[0], min(filter(None, ascending), default=0)}:
            for index in range(n if made_here.count is None else 0):
                wanted_first = Wanted(length, codec, seed=seed, index=index, depths=depths[:1], haystack=haystack)
                try:
                    made_here.group(wanted_first)
                except InputError as error:
                    raise InputError(f"{made_here.name}: {error}") from None
    kept = CellFile(cells, settings, resume=resume)
    grid = [(task, length) for task in found for length in (ascending if _by_length(task) else [0])]
    result: dict[tuple[str, int, float | None], Cell] = {}
    for done, (task, length) in enumerate(grid):
        cost = Cost()
        if isinstance(task, str):
            known = kept.get(task, length, None) or kept.get(task, 0, None)
            here = [known or harness_cell(model, task, length, codec, tokenizer, n=n, seed=seed, cost=cost)]
            made = here if known is None else []
        else:
            wanted: list[float | None] = [*dict.fromkeys(depths)] if task.by_depth else [None]
            finished = {depth: kept.get(task.name, length, depth) for depth in wanted}
            missing = [depth for depth, cell in finished.items() if cell is None]
            made = _cells(model, task, length, missing, codec, settings, cost) if missing else []
            finished |= {cell.depth: cell for cell in made}
            here = [cell for cell in finished.values() if cell is not None]
        if made:
            kept.add(made, cost)
        result |= {(cell.task, cell.length, cell.depth): cell for cell in here}
        if progress is not None:
            progress(done + 1, len(grid))
    all_cells = [*result.values()]
    cost = kept.cost(all_cells)
    return Evaluation(
        model=name or type(library_model(model)).__name__,
        family=family_name(model),
        seed=seed,
        cells=all_cells,
        effective_lengths=effective_lengths(all_cells),
        tokens=cost.tokens,
        tokens_processed=cost.processed,
        over_depths=over_depths(all_cells),
        configuration={**settings, "lengths": list(lengths), "depths": list(depths)},
        versions=versions(),
    )


def effective_lengths(cells: Sequence[Cell]) -> dict[str, int | None]:
    """Task -> effective length (see scoring.effective_length)."""
    found: dict[str, dict[int, list[float]]] = {}
    for cell in cells:
        found.setdefault(cell.task, {}).setdefault(cell.length, []).append(cell.accuracy)
    return {task: effective_length(accuracies) for task, accuracies in found.items()}


def over_depths(cells: Sequence[Cell]) -> list[Cell]:
    """For each task by depth and each length the mean over its depths; they share haystacks, which the interval counts."""
    groups: dict[tuple[str, int], list[Cell]] = {}
    for cell in cells:
        if cell.depth is not None:
            groups.setdefault((cell.task, cell.length), []).append(cell)
    return [_mean(group) for group in groups.values()]


def _mean(cells: list[Cell]) -> Cell:
    accuracy, tokens = (float(np.mean([getattr(c, name) for c in cells])) for name in ("accuracy", "tokens"))
    shares = [c.token_accuracy for c in cells if c.token_accuracy is not None]
    return replace(
        cells[0],
        depth=None,
        accuracy=accuracy,
        interval=list(wilson(accuracy, cells[0].n)),
        tokens=tokens,
        token_accuracy=float(np.mean(shares)) if shares else None,
    )


def _by_length(task: Task | str) -> bool:
    return isinstance(task, str) or task.count is None


def _cells(
    model: nn.Module,
    task: Task,
    length: int,
    depths: Sequence[float | None],
    codec: Codec,
    settings: dict[str, Any],
    cost: Cost,
) -> list[Cell]:
    """The cells of one task and length: n haystacks, each with all depths and questions, some of them side by side."""
    n = settings["n"] if task.count is None else min(settings["n"], task.count)
    given = [d for d in depths if d is not None] or [0.5]
    made: dict[float | None, list[tuple[float, float, float]]] = {depth: [] for depth in depths}

    def group(index: int) -> Group:
        return task.group(
            Wanted(length, codec, seed=settings["seed"], index=index, depths=given, haystack=settings["haystack"])
        )

    index = 0
    while index < n:
        first = group(index)
        together = max(1, rows_together(model, length) // sum(map(len, first.values())))
        groups = [first, *(group(i) for i in range(index + 1, min(n, index + together)))]
        index += len(groups)
        prompts = [p for g in groups for asked in g.values() for p in asked]
        found, shares = scores(
            model, prompts, codec, task.scoring, max_new_tokens=settings["max_new_tokens"], cost=cost
        )
        answers = iter(zip(found, shares or [float("nan")] * len(found), (len(p.ids) for p in prompts)))
        for g in groups:
            for depth, asked in g.items():
                means = np.mean([next(answers) for _ in asked], axis=0)
                made[depth].append((float(means[0]), float(means[1]), float(means[2])))
    cells = []
    for depth, of_haystacks in made.items():
        accuracy, share, tokens = np.mean(of_haystacks, axis=0).tolist()
        interval = list(wilson(accuracy, n))
        of_tokens = share if task.scoring == "exact" else None
        cells.append(Cell(task.name, length, depth, n, accuracy, interval, task.scoring, tokens, of_tokens))
    return cells


def _require(
    model: nn.Module,
    codec: Codec,
    tasks: Sequence[Task | str],
    lengths: Sequence[int],
    depths: Sequence[float],
    n: int,
    max_new_tokens: int | None,
) -> None:
    if not is_language_model(model):
        raise InputError(
            f"{type(library_model(model)).__name__} predicts no vocabulary, and tasks are answered in tokens; evaluate a "
            "language model."
        )
    if not tasks:
        raise InputError("No task was given; name at least one.")
    if n < 1 or (max_new_tokens is not None and max_new_tokens < 1):
        raise InputError(f"The number of haystacks is {n} and of new tokens {max_new_tokens}; give at least 1.")
    if not lengths or min(lengths) < 0:
        raise InputError(f"The lengths are {list(lengths)}; give tokens from 0 up.")
    if not depths or not all(0 <= depth <= 1 for depth in depths):
        raise InputError(f"The depths are {list(depths)}; give shares from 0 to 1.")
    size = vocabulary_size(model)
    if size is not None and codec.vocabulary_size > size:
        raise InputError(
            f"The tokenizer has {codec.vocabulary_size} ids, but the model's vocabulary {size}; use the tokenizer that "
            "belongs to the model."
        )
