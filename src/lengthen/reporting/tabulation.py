"""Results as tables of plain strings, the same for the page and a terminal."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch

from lengthen.reporting.numbers import (
    NONE,
    change,
    number,
    percent,
    percents,
    ranged,
    ranged_ratio,
    ratio,
    short,
    told_as,
    value_of,
    with_error,
)
from lengthen.reporting.run_folder import arm_label
from lengthen.results import (
    Certificate,
    CheckResult,
    Comparison,
    Demonstration,
    Diagnosis,
    Result,
    Study,
    SupportTable,
    TrainingRecord,
)

CARRIES = {"runs", "state-carried", "segments", "token-by-token", "random-state"}
"""The checks that a model whose state is carried must pass."""


@dataclass(frozen=True)
class Table:
    """A table of strings. texts: the columns that hold words, to be set left; all others hold numbers.

    note: what a reader must know to read it. caveat: what it must not be taken for.
    """

    title: str
    columns: list[str]
    rows: list[list[str]]
    texts: frozenset[int] = field(default=frozenset({0}))
    note: str = ""
    caveat: str = ""


@singledispatch
def table(result: Result) -> Table:
    """The one table that says what a result found. Raises TypeError for a result that has none."""
    raise TypeError(f"There is no table for {type(result).__name__}.")


@table.register
def _(result: Demonstration) -> Table:
    low, high = 32 * result.train_context, 64 * result.train_context
    rows = [
        [
            arm_label(name),
            number(arm.in_context),
            with_error(arm.far, arm.stderr),
            number(arm.own_reset),
            ratio(arm.far_over_reset),
            ratio(arm.far / arm.control_reset if arm.control_reset else math.nan),
        ]
        for name, arm in result.arms.items()
    ]
    columns = ["arm", "in context", "far", "own reset", "far / before reset", "far / control reset"]
    note = (
        f"Perplexities. In context: positions below {result.train_context:,} from a zero state; far: positions {low:,} "
        f"to {high:,} with the state carried, ± its standard error. Reset baselines read the same tokens with the "
        "state zeroed every training context: with the arm's own weights, with those from before post-training, and "
        f"with the control's, the fair yardstick for being better than resetting."
    )
    return Table("Perplexity by arm", columns, rows, note=note, caveat=result.caveat)


@table.register
def _(result: Diagnosis) -> Table:
    return positions_table({result.model: result})


@table.register
def _(result: TrainingRecord) -> Table:
    return trainings_table({result.intervention: result})


@table.register
def _(result: CheckResult) -> Table:
    rows = [
        [c.name, "passed" if c.passed else "FAILED", short(c.value), short(c.tolerance), c.meaning]
        for c in result.checks
    ]
    title = f"{result.model} ({result.family}): {'passed' if result.passed else 'FAILED'}"
    return Table(title, ["check", "", "value", "tolerance", "what a failure would do"], rows, frozenset({0, 1, 4}))


@table.register
def _(result: Comparison) -> Table:
    return positions_table(result.runs)


@table.register
def _(result: Certificate) -> Table:
    return certificate_table(result)


@table.register
def _(result: Study) -> Table:
    rows = [
        [
            ", ".join(row.setting),
            ranged(row.in_context),
            ranged_ratio(row.in_context_over_control),
            ranged(row.far),
            ranged_ratio(row.far_over_before_reset),
            ranged_ratio(row.far_over_control_reset),
        ]
        for row in result.rows
    ]
    columns = ["in context", "in context / control", "far", "far / before reset", "far / control reset"]
    note = (
        f"Perplexities, geometric means over seeds {', '.join(map(str, result.seeds))} [the least, the greatest]; ratios are "
        "taken seed by seed. In context: positions below the training context T from a zero state, and that over the control "
        "arm's, trained as long from the zero state. Far: positions 32 T to 64 T with the state carried, and that over the "
        "reset baselines (the state zeroed every T) of the weights before post-training and of the control arm."
    )
    return Table(f"{result.name}: {result.question}", [", ".join(result.varies), *columns], rows, note=note)


def certificate_table(certificate: Certificate) -> Table:
    """The paired differences of a certificate, a row each."""
    rows = [
        [
            f"{d.name}: {d.start:,} to {d.end:,}",
            d.of,
            d.against,
            percent(d.change),
            percents(d.change_low, d.change_high),
        ]
        for d in certificate.differences
    ]
    named = told_as(certificate.loss)
    note = (
        f"By how much the {named} of one lies above that of the other, paired over {certificate.n} sequences. In context: "
        "positions below the training context from a zero state; else with the state carried, against a run or a reset "
        "baseline (its state zeroed every training context; own reset: the one after post-training)."
    )
    columns = ["positions", "of", "against", "difference", "95 % interval"]
    return Table(f"Certificate of {certificate.after}", columns, rows, frozenset({0, 1, 2}), note)


def positions_table(diagnoses: Mapping[str, Diagnosis]) -> Table:
    """Perplexity (or another loss) at the positions asked for and how far it holds, a row per diagnosis."""
    positions = sorted({p.position for d in diagnoses.values() for p in d.positions})
    rows = []
    for name, d in diagnoses.items():
        found = {p.position: with_error(p.perplexity, p.stderr) for p in d.positions}
        rows.append(
            [
                name,
                with_error(d.in_context, d.in_context_stderr),
                *(found.get(p, number(None)) for p in positions),
                with_error(d.far_over_own_reset, d.far_over_own_reset_stderr),
                number(None) if d.generalisation_length is None else f"{d.generalisation_length:,}",
                f"{d.break_point:,}" if d.break_point is not None else "none" if d.fails is False else number(None),
            ]
        )
    columns = [
        "model",
        "in context",
        *(f"at {p:,}" for p in positions),
        "far / own reset",
        "holds up to",
        "break point",
    ]
    named = " or ".join(dict.fromkeys(told_as(d.loss) for d in diagnoses.values()))
    named = f"{named[0].upper()}{named[1:]}"
    note = (
        f"{named} with the state carried, ± its standard error: in context, over positions below the training context; "
        "at a position, over the eighth before it. Far / own reset: over positions 32 to 64 training contexts, against the "
        "same weights with the state zeroed every training context. Holds up to: the last position up to which it stays "
        "within 2 % of that."
    )
    return Table(f"{named} at chosen positions", columns, rows, note=note)


def bucket_table(diagnosis: Diagnosis) -> Table:
    """Perplexity (or another loss) over each range of positions, carried and reset, with the paired excess."""
    named = told_as(diagnosis.loss)

    def told(loss: float, stderr: float) -> str:
        value = value_of(loss, diagnosis.loss)
        return with_error(value, value * stderr if named == "perplexity" else stderr)

    rows = [
        [
            f"{b.start:,} to {b.end:,}",
            told(b.loss, b.stderr),
            told(b.own_reset_loss, b.own_reset_stderr),
            change(b.excess, b.excess_stderr) if named == "perplexity" else with_error(b.excess, b.excess_stderr),
        ]
        for b in diagnosis.buckets
    ]
    note = (
        f"{named[0].upper()}{named[1:]} over {diagnosis.n} sequences, ± the standard error over them. Excess: carried over "
        "reset, on the same sequences."
    )
    if diagnosis.sequences is not None and diagnosis.sequences.overlap:
        note += (
            f" The text is short: sequences share up to {diagnosis.sequences.overlap:,} of {diagnosis.max_length:,} "
            "positions, so that errors are smaller than those of independent sequences."
        )
    return Table("Ranges of positions", ["positions", "carried", "own reset", "excess"], rows, note=note)


def trainings_table(records: Mapping[str, TrainingRecord]) -> Table:
    """What each training run did, a row per run."""
    rows = [
        [
            name,
            r.intervention,
            f"{r.steps:,}",
            f"{r.rows:,} × {r.train_context:,}",
            f"{number(r.passes, 2)} times" if math.isfinite(r.passes) else NONE,
            f"{r.learning_rate:g}",
            number(last_loss(r)),
            f"{r.seconds:,.0f} s",
        ]
        for name, r in records.items()
    ]
    columns = [
        "run",
        "initial states",
        "steps",
        "windows a step",
        "text read",
        "peak learning rate",
        "last loss",
        "time",
    ]
    note = "Windows a step: their number × their positions. Text read: how many times over. Last loss: the mean over the last tenth of the steps, in nats a token."
    return Table("Training runs", columns, rows, frozenset({0, 1}), note)


def survey_table(checks: Sequence[CheckResult]) -> Table:
    """Several models' checks, a row per model, the failed ones named."""
    rows = []
    for result in checks:
        failed = [c.name for c in result.checks if not c.passed]
        carried = "no" if CARRIES & set(failed) else "yes"
        passed = "passed" if result.passed else "FAILED"
        rows.append([result.model, result.family, passed, carried, ", ".join(failed) or "none"])
    columns = ["model", "family", "", "state carried", "failed checks"]
    return Table("Models", columns, rows, frozenset(range(len(columns))))


def support_table(found: SupportTable) -> Table:
    """Which classes are supported: a row per class under its family and library, a mark per verified property."""
    names = list(dict.fromkeys(name for c in found.classes for name in c.verified))
    rows: list[list[str]] = []
    for group, classes in itertools.groupby(
        sorted(found.classes, key=lambda c: c.family), lambda c: f"{c.family} ({c.library})"
    ):
        rows.append([group, *("" for _ in names)])
        for c in classes:
            marks = ("yes" if c.verified.get(name) else "NO" if name in c.verified else NONE for name in names)
            rows.append([f"  {c.model.removesuffix('ForCausalLM')}", *marks])
    kernels: dict[str, dict[str, None]] = {}
    for c in found.classes:
        kernels.setdefault(c.family, {}).update(dict.fromkeys(c.kernels))
    libraries = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    note = (
        f"Verified on tiny random models with {libraries}. initial state: one run = segments = token by token, from zero "
        "and any other state. gradients: into and out of the state. checkpointing, padding, packing: as without.\nKernels: "
        + "; ".join(f"{family} {', '.join(kernels[family])}" for family in sorted(kernels))
        + "."
    )
    columns = ["family, class", *(name.split()[-1] for name in names)]
    return Table("Supported classes", columns, rows, note=note)


def last_loss(record: TrainingRecord) -> float | None:
    """Mean loss over the last tenth of the steps."""
    tail = record.losses[-max(1, len(record.losses) // 10) :]
    return sum(tail) / len(tail) if tail else None
