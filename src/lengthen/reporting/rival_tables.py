"""Rivals as tables: what each does in context and far, what it takes, and what it does to the heads."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from lengthen.reporting.numbers import NONE, between, number, percent, percents, ratio, told_as
from lengthen.reporting.tabulation import Table
from lengthen.results import Difference, Estimate, Rival, Rivals, RivalStudy

GIVEN, UNTOUCHED = "as given", "untouched"


def rival_name(row: Rival) -> str:
    """A row as a reader sees it: its model, its method, or both."""
    if row.method == UNTOUCHED:
        return UNTOUCHED if row.model == GIVEN else row.model
    method = row.method.replace("-", " ") + (", chosen" if row.chosen else "")
    return method if row.model == GIVEN else f"{row.model} + {method}"


def rivals_table(result: Rivals) -> Table:
    """Losses with their intervals, and what was taken for them, a row each."""
    rows = [
        [
            rival_name(r),
            _interval(r.in_context),
            _change(r.over_untouched),
            _interval(r.far),
            _change(r.over_reset),
            f"{r.tokens:,}",
            f"{r.forwards:,}",
            number(r.seconds),
            ratio(r.cost),
            _settings([r]),
        ]
        for r in result.rivals
    ]
    named = told_as(result.loss)
    columns = ["", "in context", "by the method", "far", "over the yardstick", *_TAKEN, "cost a token", "settings"]
    note = (
        f"{named[0].upper()}{named[1:]} with 95 % intervals over {result.n} sequences. In context: windows of "
        f"{result.train_context:,} positions from the zero state, and by how much the method changes it (paired). Far: "
        f"positions {result.far_start:,} to {result.max_length:,} with the state carried, and by how much it lies above the "
        f"yardstick, the control arm with its state zeroed every training context (paired). {_taken()}"
    )
    return Table(f"Rivals: {result.model}", columns, rows, frozenset({0, len(columns) - 1}), note)


def rival_heads_table(result: Rivals) -> Table:
    """What each does to the heads, a row each: the whole of it is in the result's JSON."""
    rows = []
    for r in result.rivals:
        decays = [h.log_decay for h in r.heads if h.log_decay is not None]
        growths = [h.norm_far / h.norm_in_context for h in r.heads if h.norm_in_context > 0] or [math.nan]
        told = (
            [number(decay) for decay in (max(decays), statistics.median(decays), min(decays))] if decays else [NONE] * 3
        )
        rows.append([rival_name(r), *told, number(statistics.median(growths)), number(max(growths))])
    columns = ["", "slowest", "median", "fastest", "state, median", "state, largest"]
    note = (
        f"Log-decay of a head summed over all {result.max_length:,} positions (at -1 the first token counts for 1/e at the end; "
        "what a method multiplies a state by now and then is not in it): of the slowest, the median and the fastest head. "
        f"State: a head's norm there over its norm at position {result.train_context:,}."
    )
    return Table("What the heads keep", columns, rows, note=note)


def rival_study_tables(study: RivalStudy) -> list[Table]:
    """A table for each base, the figures over seeds."""
    return [_over_seeds(label, tables) for label, tables in study.bases.items()]


def _over_seeds(label: str, tables: Sequence[Rivals]) -> Table:
    by: dict[str, list[Rival]] = {}
    for found in tables:
        for row in found.rivals:
            by.setdefault(rival_name(row), []).append(row)
    rows = [
        [
            name,
            _spread([r.in_context.value for r in of], number),
            _spread([_ratio(r.over_untouched) for r in of], ratio),
            _spread([r.far.value for r in of], number),
            _spread([_ratio(r.over_reset) for r in of], ratio),
            f"{statistics.median(r.tokens for r in of):,.0f}",
            f"{statistics.median(r.forwards for r in of):,.0f}",
            number(statistics.median(r.seconds for r in of)),
            f"{statistics.median(r.cost for r in of):.2f}",
            _settings(of),
        ]
        for name, of in by.items()
    ]
    columns = ["", "in context", "by the method", "far", "far / yardstick", *_TAKEN, "cost a token", "settings"]
    first, named = tables[0], told_as(tables[0].loss)
    note = (
        f"{named[0].upper()}{named[1:]}, over several seeds its geometric mean [the least, the greatest]; ratios are taken seed "
        f"by seed on the same {first.n} sequences. In context: windows of T from the zero state, and that over the "
        "same model without the method. Far: the second half of "
        f"{first.max_length // first.train_context} T with the state carried, and that over the yardstick, the control arm "
        f"with its state zeroed every T. {_taken()} What is taken and what a token costs are medians."
    )
    seeds = ", ".join(str(found.seed) for found in tables)
    return Table(
        f"{label} (seed{'s' if len(tables) > 1 else ''} {seeds})", columns, rows, frozenset({0, len(columns) - 1}), note
    )


_TAKEN = ["tokens read", "forwards", "CPU s"]


def _taken() -> str:
    return (
        "Chosen: the settings of several that did best on a text of their own. Read, forwards and CPU seconds: what "
        "post-training (a step is a forward), the fit and the choice took. "
        "Cost a token: CPU time over that of the untouched model, in the same run."
    )


def _interval(estimate: Estimate) -> str:
    told = between(estimate.low, estimate.high)
    return number(estimate.value) if told == NONE else f"{number(estimate.value)} ({told})"


def _change(difference: Difference | None) -> str:
    if difference is None:
        return NONE
    told = percents(difference.change_low, difference.change_high)
    return percent(difference.change) if told == NONE else f"{percent(difference.change)} ({told})"


def _ratio(difference: Difference | None) -> float:
    return math.nan if difference is None else 1 + difference.change


def _spread(values: Sequence[float], told: Callable[[float | None], str]) -> str:
    """The geometric mean and the range; the mean of what is not finite has no place."""
    if not all(math.isfinite(v) and v > 0 for v in values):
        return NONE
    mean = math.exp(sum(map(math.log, values)) / len(values))
    return f"{told(mean)} [{told(min(values))}, {told(max(values))}]" if len(values) > 1 else told(mean)


def _settings(rows: Sequence[Rival]) -> str:
    """Settings that are not left to the method, of several seeds those that differ beside each other."""
    return " or ".join(dict.fromkeys(_listed(row.settings) for row in rows))


def _listed(settings: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in settings.items()
        if value is not None
    )
