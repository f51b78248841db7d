"""Long-context tasks as a table: a row for each task and depth, a column for each length."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lengthen.reporting.numbers import NONE, span
from lengthen.reporting.tabulation import Table
from lengthen.results import Cell, Evaluation, TaskStudy

ALL = "all"
"""Stands for the mean over a task's depths."""
SCORINGS = {
    "exact": "exact: the answer token by token",
    "strict": "strict: the target is the only candidate in the answer (BABILong's rule)",
    "substring": "substring: the share of targets that stand in the answer (RULER's rule)",
}


def evaluation_table(result: Evaluation) -> Table:
    """Accuracy with its interval by task, depth and length."""
    lengths = sorted({cell.length for cell in result.cells})
    tasks = list(result.effective_lengths)
    by_depth = {cell.task for cell in result.over_depths}
    rows: dict[tuple[str, str], dict[int, Cell]] = {}
    for cell in sorted([*result.cells, *result.over_depths], key=lambda c: tasks.index(c.task)):
        depth = f"{cell.depth:g}" if cell.depth is not None else ALL if cell.task in by_depth else "any"
        rows.setdefault((cell.task, depth), {})[cell.length] = cell
    told = [
        [
            task,
            depth,
            next(iter(cells.values())).scoring,
            span(cell.n for cell in cells.values()),
            *(_accuracy(cells.get(length)) for length in lengths),
            _effective_length(result, task) if depth == ALL or task not in by_depth else "",
        ]
        for (task, depth), cells in rows.items()
    ]
    scorings = [SCORINGS.get(s, s) for s in dict.fromkeys(cell.scoring for cell in result.cells)]
    note = (
        "Percent of questions answered right, with Wilson's 95 % interval over n haystacks, by tokens of the prompt (as given: "
        f"prompts as long as they are). {'; '.join(scorings)}. Effective length: the largest up to which the accuracy over all "
        f"depths is at least 85 % at every length. Of {result.tokens:,} tokens of prompts {result.tokens_processed:,} were "
        "processed, what prompts share once."
    )
    columns = [
        "task",
        "depth",
        "scoring",
        "n",
        *(f"{n:,}" if n else "as given" for n in lengths),
        "effective length",
    ]
    return Table(f"Tasks: {result.model}", columns, told, frozenset({0}), note)


def task_study_table(result: TaskStudy) -> Table:
    """What is right of the answers, over seeds, by arm and length."""
    T, cells = result.train_context, [c for found in result.arms.values() for e in found for c in e.cells]
    lengths = sorted({cell.length for cell in cells})
    rows = [
        [arm, *(_over_seeds([_at(e.cells, length, result.measured) for e in found]) for length in lengths)]
        for arm, found in result.arms.items()
    ]
    what = "answers" if result.measured == "accuracy" else "an answer's tokens, those before given,"
    depths = sorted({cell.depth for cell in cells if cell.depth is not None})
    over = f", over facts at depths {', '.join(f'{d:g}' for d in depths)}" if depths else ""
    note = (
        f"Percent of {what} that are right{over}, by tokens of the prompt: means over seeds "
        f"{', '.join(map(str, result.seeds))} [the least, the greatest], from {cells[0].n} haystacks a seed. Uncertain by the haystacks drawn "
        f"alone: one seed's figure by ± {_half(cells[0].n)} points at most, 95 %. T = {T:,}."
    )
    return Table(f"{result.name}: {result.question}", ["arm", *(_length(n, T) for n in lengths)], rows, note=note)


def _at(cells: Sequence[Cell], length: int, measured: str) -> float:
    """A figure at a length, in percent, over all depths."""
    found = [getattr(cell, measured) for cell in cells if cell.length == length]
    return 100 * sum(found) / len(found)


def _over_seeds(values: Sequence[float]) -> str:
    return f"{sum(values) / len(values):.0f} [{min(values):.0f}, {max(values):.0f}]"


def _half(n: int) -> str:
    """Half the 95 % interval of a share near a half, in points."""
    return f"{98 / math.sqrt(n):.0f}"


def _length(length: int, T: int) -> str:
    if length == 0:
        return "0k"
    times = f" ({length // T} T)" if length > T else " (T)"
    return f"{length:,}{'' if length % T else times}"


def _effective_length(result: Evaluation, task: str) -> str:
    reached = result.effective_lengths[task]
    return f"{reached:,}" if reached else NONE


def _accuracy(cell: Cell | None) -> str:
    if cell is None:
        return NONE
    low, high = (100 * edge for edge in cell.interval)
    return f"{100 * cell.accuracy:.0f} ({low:.0f} to {high:.0f})"
