"""Results in a terminal: the page's tables, and the sentence that says what they mean."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import singledispatch

import rich.box
import rich.table
from rich.console import Console
from rich.measure import Measurement
from rich.segment import Segment
from rich.text import Text

from lengthen.reporting.numbers import memory
from lengthen.reporting.rival_tables import rival_heads_table, rival_study_tables, rivals_table
from lengthen.reporting.run_folder import arm_label
from lengthen.reporting.state_tables import drift_table, patching_table, remembrance_table
from lengthen.reporting.tabulation import Table, bucket_table, support_table, survey_table, table
from lengthen.reporting.task_tables import evaluation_table, task_study_table
from lengthen.results import (
    BenchmarkResult,
    CheckResult,
    Comparison,
    Conversion,
    Demonstration,
    Diagnosis,
    Evaluation,
    Result,
    Rivals,
    RivalStudy,
    SupportTable,
    TaskStudy,
    TrainingPlan,
    TrainingRecord,
)


@singledispatch
def show(result: Result) -> None:
    """Prints a result for a person to read. Raises TypeError for a result that has no table."""
    _print(table(result))


@show.register
def _(result: Demonstration) -> None:
    _print(table(result))
    for name, diagnosis in result.diagnoses.items():
        print(f"{arm_label(name)}: {diagnosis.verdict}")
    print(f"Parity: {'passed' if result.parity.passed else 'FAILED'} ({len(result.parity.checks)} checks).")
    print(f"{result.seconds:.0f} s, seed {result.seed}. {result.caveat}")


@show.register
def _(result: Diagnosis) -> None:
    _print(bucket_table(result))
    _print(table(result))
    for found in (remembrance_table(result), drift_table(result), patching_table(result)):
        if found is not None:
            _print(found)
    print(result.verdict)
    if result.recommendation is not None:
        print(f"{result.recommendation.finding} {result.recommendation.advice}")


@show.register
def _(result: Comparison) -> None:
    _print(table(result))
    for certificate in result.certificates:
        _print(table(certificate))
        print(certificate.verdict)
    for reason in result.unpaired.values():
        print(f"No certificate: {reason}")


@show.register
def _(result: Evaluation) -> None:
    _print(evaluation_table(result))


@show.register
def _(result: TaskStudy) -> None:
    _print(task_study_table(result))


@show.register
def _(result: Rivals) -> None:
    _print(rivals_table(result))
    _print(rival_heads_table(result))
    for reason in result.left_out.values():
        print(f"Left out: {reason}")


@show.register
def _(result: RivalStudy) -> None:
    print(result.question)
    for found in rival_study_tables(result):
        _print(found)


@show.register
def _(result: SupportTable) -> None:
    _print(support_table(result))
    for why in result.refused.values():
        print(f"Refused: {why}")


@show.register
def _(result: Conversion) -> None:
    print(
        f"{result.source} ({result.source_format}) -> {result.destination} ({result.destination_format}): "
        f"{result.family}, {result.tensors} tensors, {result.parameters:,} parameters, {', '.join(result.dtypes)}"
    )
    print(f"Largest difference of logits over {result.tokens} tokens: {result.largest_logit_difference:.1e}")


@show.register
def _(result: TrainingPlan) -> None:
    how = f"{result.processes} process{'es' if result.processes > 1 else ''}{', sharded' if result.sharded else ''}"
    print(f"{result.model}: {result.parameters:,} parameters, {how}")
    print(f"{result.tokens:,} tokens in {result.steps:,} steps of {result.tokens_a_step:,}")
    print(f"{result.rows} rows at a time in each process; a row's state takes {memory(result.state_bytes_a_row)}")
    print("Memory of a process, by formula:")
    for name in ("weights", "gradients", "optimiser", "states", "bank", "activations"):
        print(f"  {name:<12}{memory(getattr(result, name)):>12}")
    print(f"  {'together':<12}{memory(result.memory):>12}")


@show.register
def _(result: BenchmarkResult) -> None:
    for entry in result.entries:
        told = [f"{entry.op}, {entry.shape}, {entry.length} {entry.mode}: {entry.ratio:.1f} times {entry.peer}"]
        if entry.memory_ratio is not None:
            told.append(f"{entry.memory_ratio:.1f} times less memory")
        if entry.ceiling_share is not None:
            told.append(f"{100 * entry.ceiling_share:.0f} % of the matrix product's rate")
        print(", ".join(told))
    for reason in result.left_out:
        print(f"left out: {reason}")


@show.register
def _(result: TrainingRecord) -> None:
    found = table(result)
    for row in found.rows:
        print(", ".join(f"{name}: {cell}" for name, cell in zip(found.columns, row)))


def checks(result: CheckResult) -> None:
    """One model's checks, a row each; what a failure would do to the user only where there is one."""
    found = table(result)
    if result.passed:
        found = dataclasses.replace(
            found,
            columns=found.columns[:-1],
            rows=[row[:-1] for row in found.rows],
            texts=found.texts - {len(found.columns) - 1},
        )
    _print(found)


def survey(results: Sequence[CheckResult]) -> None:
    """Several models' checks by name: one row a model, the failed checks named."""
    _print(survey_table(results))


def _print(data: Table) -> None:
    """The strings as they are: none of them is markup to rich."""
    drawn = rich.table.Table(
        title=Text(data.title),
        caption=Text(data.note),
        caption_justify="left",
        box=rich.box.SIMPLE_HEAD,
        padding=(0, 1),
    )
    for i, name in enumerate(data.columns):
        words = i in data.texts
        cells = [name, *(row[i] for row in data.rows)]
        least = max((len(part) for cell in cells for part in (cell.split() if words else [cell])), default=0)
        drawn.add_column(Text(name), justify="left" if words else "right", overflow="fold", min_width=least)
    for row in data.rows:
        drawn.add_row(*(Text(cell) for cell in row))
    # A number or a word cut off is worse than a line that the terminal wraps.
    console = Console()
    if not data.texts - {0}:
        console.width = max(
            console.width, Measurement.get(console, console.options.update(max_width=1000), drawn).maximum
        )
    while (taken := _width_taken(console, drawn)) > console.width:
        console.width = taken
    console.print(drawn)


def _width_taken(console: Console, drawn: rich.table.Table) -> int:
    """The longest line that the table is drawn in, which may be longer than the console is wide."""
    lines = Segment.split_lines(console.render(drawn, console.options))
    return max(Segment.get_line_length(line) for line in lines)
