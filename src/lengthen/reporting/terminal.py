"""Results as tables in a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import singledispatch

from rich.console import Console
from rich.table import Table

from lengthen.results import CheckResult, Demonstration, Diagnosis, Result, TrainingRecord


@singledispatch
def show(result: Result) -> None:
    """Prints a result for a person to read."""
    raise TypeError(f"There is no table for {type(result).__name__}.")


@show.register
def _(result: Demonstration) -> None:
    t = result.train_context
    table = Table(title=f"Perplexity per byte, T = {t}, {result.seconds:.0f} s, seed {result.seed}")
    for column in (
        "arm",
        "in context",
        f"far [{32 * t}, {64 * t})",
        "own reset",
        "far / before reset",
        "far / control reset",
    ):
        table.add_column(column, justify="left" if column == "arm" else "right")
    for name, arm in result.arms.items():
        table.add_row(
            name.replace("_", " "),
            number(arm.in_context),
            f"{number(arm.far)} ± {number(arm.stderr)}",
            number(arm.own_reset),
            number(arm.far_over_reset, 3),
            number(arm.far / arm.control_reset, 3),
        )
    _print(table)
    for name, diagnosis in result.diagnoses.items():
        print(f"{name.replace('_', ' ')}: {diagnosis.verdict}")
    print(f"Parity: {'passed' if result.parity.passed else 'FAILED'} ({len(result.parity.checks)} checks).")
    print(result.caveat)


@show.register
def _(result: Diagnosis) -> None:
    table = Table(title=f"{result.model} ({result.family}), {result.n} sequences, T = {result.train_context}")
    for column in ("positions", "perplexity", "own reset", "excess %"):
        table.add_column(column, justify="right")
    for b in result.buckets:
        excess = 100 * math.expm1(min(b.excess, 700)) if math.isfinite(b.excess) else math.nan
        table.add_row(
            f"{b.start:,} to {b.end:,}", number(_exp(b.loss)), number(_exp(b.own_reset_loss)), f"{excess:+.1f}"
        )
    _print(table)
    if result.positions:
        around = Table(title="Perplexity at")
        for p in result.positions:
            around.add_column(f"{p.position:,}", justify="right")
        around.add_row(*(f"{number(p.perplexity)} ± {number(p.stderr)}" for p in result.positions))
        _print(around)
    print(result.verdict)


@show.register
def _(result: TrainingRecord) -> None:
    tail = result.losses[-max(1, len(result.losses) // 10) :]
    print(
        f"{result.intervention}: {result.steps} steps of {result.rows} windows of {result.train_context} positions in "
        f"{result.seconds:.0f} s; loss {result.losses[0]:.3f} at the first step, {sum(tail) / len(tail):.3f} over the last tenth."
    )


def checks(result: CheckResult) -> None:
    """One model's checks, a row each."""
    table = Table(title=f"{result.model} ({result.family}): {'passed' if result.passed else 'FAILED'}")
    for column in ("check", "", "value", "tolerance", "meaning"):
        table.add_column(column)
    for c in result.checks:
        table.add_row(
            c.name, "ok" if c.passed else "FAILED", number(c.value), number(c.tolerance), "" if c.passed else c.meaning
        )
    _print(table)


def survey(results: Sequence[CheckResult]) -> None:
    """Several models' checks by name: one row a model, the failed checks named."""
    table = Table(title="The library's own path through its own cache")
    for column in ("model", "family", "state carried", "failed checks"):
        table.add_column(column)
    for result in results:
        failed = [c.name for c in result.checks if not c.passed]
        table.add_row(result.model, result.family, "no" if {"state-carried", "runs"} & set(failed) else "yes", ", ".join(failed) or "none")
    _print(table)


def number(value: float | None, digits: int = 4) -> str:
    """A number in few digits; a dash where there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    return f"{value:.{digits}g}"


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf if loss == loss else math.nan


def _print(table: Table) -> None:
    Console().print(table)
