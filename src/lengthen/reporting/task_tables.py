"""Long-context tasks as a table: a row for each task and depth, a column for each length."""

from __future__ import annotations

from lengthen.reporting.numbers import NONE
from lengthen.reporting.tabulation import Table
from lengthen.results import Cell, Evaluation

SCORINGS = {
    "exact": "exact: the answer token by token",
    "strict": "strict: the target is the only candidate in the answer (BABILong's rule)",
    "substring": "substring: the share of targets that stand in the answer (RULER's rule)",
}


def evaluation_table(result: Evaluation) -> Table:
    """Accuracy with its interval by task, depth and length."""
    lengths = sorted({cell.length for cell in result.cells})
    rows: dict[tuple[str, float | None], dict[int, Cell]] = {}
    for cell in result.cells:
        rows.setdefault((cell.task, cell.depth), {})[cell.length] = cell
    told = [
        [
            task,
            "any" if depth is None else f"{depth:g}",
            next(iter(cells.values())).scoring,
            *(_accuracy(cells.get(length)) for length in lengths),
            NONE if (reached := result.effective_lengths[task]) is None else f"{reached:,}",
        ]
        for (task, depth), cells in rows.items()
    ]
    scorings = [SCORINGS.get(s, s) for s in dict.fromkeys(cell.scoring for cell in result.cells)]
    note = (
        "Percent of questions answered right, with Wilson's 95 % interval over haystacks, by tokens of the prompt (as given: "
        f"prompts as long as they are). {'; '.join(scorings)}. Effective length: the largest up to which the accuracy over all "
        f"depths is at least 85 % at every length. Of {result.tokens:,} tokens of prompts {result.tokens_processed:,} were "
        "processed, what prompts share once."
    )
    columns = ["task", "depth", "scoring", *(f"{n:,}" if n else "as given" for n in lengths), "effective length"]
    return Table(f"Tasks: {result.model}", columns, told, frozenset({0, 2}), note)


def _accuracy(cell: Cell | None) -> str:
    if cell is None:
        return NONE
    low, high = (100 * edge for edge in cell.interval)
    return f"{100 * cell.accuracy:.0f} ({low:.0f} to {high:.0f})"
