"""What the figures of long-context tasks draw: a row of plain values for each cell."""

from __future__ import annotations

from lengthen.reporting.numbers import NONE, compact
from lengthen.reporting.points import Row
from lengthen.reporting.run_folder import Findings
from lengthen.results import Cell

ACCURACIES = (
    (0.85, "85 % and more"),
    (0.7, "70 to 85 %"),
    (0.5, "50 to 70 %"),
    (0.3, "30 to 50 %"),
    (0.1, "10 to 30 %"),
)
"""From which accuracy a cell belongs to which step, the first being that of the effective length."""
LEAST = "less than 10 %"
ANY = "any"


def task_points(findings: Findings) -> list[Row]:
    """A row for each task and length, over all depths; `reached` marks the effective length."""
    return [
        {
            "panel": name,
            **_row(cell, cell.task, result.effective_lengths.get(cell.task)),
            "reached": 0 < cell.length == result.effective_lengths.get(cell.task),
        }
        for name, result in findings.evaluations.items()
        for cell in [*result.over_depths, *(c for c in result.cells if c.depth is None)]
    ]


def depth_points(findings: Findings) -> list[Row]:
    """A row for each depth and length of the tasks at several depths, a panel for each of those."""
    several = len(findings.evaluations) > 1
    rows = []
    for name, result in findings.evaluations.items():
        by_task: dict[str, list[Cell]] = {}
        for cell in result.cells:
            if cell.depth is not None:
                by_task.setdefault(cell.task, []).append(cell)
        for task, cells in by_task.items():
            if len({cell.depth for cell in cells}) > 1:
                panel = f"{task}, {name}" if several else task
                reached = result.effective_lengths.get(task)
                rows += [{"panel": panel, **_row(c, f"{100 * (c.depth or 0):g} %", reached)} for c in cells]
    return rows


def step(accuracy: float) -> str:
    """The step that an accuracy belongs to."""
    return next((name for edge, name in ACCURACIES if accuracy >= edge), LEAST)


def _row(cell: Cell, row: str, reached: int | None) -> Row:
    low, high = cell.interval
    return {
        "row": row,
        "task": cell.task,
        "depth": ANY if cell.depth is None else f"{100 * cell.depth:g} %",
        "length": cell.length,
        "across": compact(cell.length) if cell.length else "as given",
        "step": step(cell.accuracy),
        "percent": f"{100 * cell.accuracy:.0f}",
        "told": f"{100 * cell.accuracy:.0f} %",
        "interval": f"{100 * low:.0f} to {100 * high:.0f} %",
        "haystacks": cell.n,
        "tokens": f"{cell.tokens:,.0f}",
        "effective": NONE if not reached else f"{reached:,}",
    }
