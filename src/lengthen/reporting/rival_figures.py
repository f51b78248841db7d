"""Quality against data: how low each rival's loss far past the training context is, by the tokens it took."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import altair as alt

from lengthen.reporting.charts import (
    POINT,
    SHOWN,
    Figure,
    colour,
    entries_of,
    facet,
    figure,
    left_out,
    measure,
    shape,
    shown,
    suits_logarithm,
)
from lengthen.reporting.numbers import percent, percents, ratio
from lengthen.reporting.points import Row, finite, series_of
from lengthen.reporting.rival_tables import rival_name
from lengthen.reporting.run_folder import Findings
from lengthen.results import Rival

TITLE = "far / yardstick"


def rival_points(findings: Findings) -> list[Row]:
    """A point per row of a table; of a study's, per row of a base, at the geometric mean over seeds."""
    points = [_point(name, [row]) for name, table in findings.rivals.items() for row in table.rivals]
    for study in findings.rival_studies.values():
        for label, tables in study.bases.items():
            named: dict[str, list[Rival]] = {}
            for row in (row for table in tables for row in table.rivals):
                named.setdefault(rival_name(row), []).append(row)
            points += [_point(label, rows) for rows in named.values()]
    return points


def _point(panel: str, rows: Sequence[Rival]) -> Row:
    found = [row.over_reset for row in rows if row.over_reset is not None]
    ratios = [1 + d.change for d in found]
    usable = bool(ratios) and all(math.isfinite(r) and r > 0 for r in ratios)
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if usable else math.nan
    low, high = (min(ratios), max(ratios)) if usable else (math.nan, math.nan)
    band = f"{ratio(low)} to {ratio(high)} over seeds"
    if len(rows) == 1 and found and found[0].change_low is not None and found[0].change_high is not None:
        low, high = 1 + found[0].change_low, 1 + found[0].change_high
        band = percents(found[0].change_low, found[0].change_high)
    return {
        "series": rows[0].model,
        "entry": rows[0].model,
        "panel": panel,
        "name": rival_name(rows[0]),
        "tokens": statistics.median(row.tokens for row in rows),
        "taken": f"{statistics.median(row.tokens for row in rows):,.0f}",
        "value": finite(mean),
        "low": finite(low),
        "high": finite(high),
        "told": percent(mean - 1),
        "band": band,
    }


def rivals_figure(findings: Findings) -> Figure | None:
    """Points at the far loss over the yardstick, by tokens read; the axis begins at none."""
    rows = rival_points(findings)
    if not rows:
        return None
    names = series_of(findings)
    panels = list(dict.fromkeys(row["panel"] for row in rows))
    logarithmic = suits_logarithm(rows, "value")
    most = max(1000, *(row["tokens"] for row in rows))
    x = alt.X(
        "tokens:Q",
        title="tokens read for it",
        scale=alt.Scale(type="symlog", constant=300, domain=[0, 1.5 * most], nice=False),
        axis=alt.Axis(values=[0, *(10**k for k in range(3, 13) if 10**k <= 1.5 * most)], format=",d"),
    )
    base = alt.Chart().transform_filter(SHOWN).encode(x=x, color=colour(names))
    tooltip = [shown("name", "rival"), shown("taken", "tokens read"), shown("told", TITLE), shown("band", "interval")]
    chart = alt.layer(
        base.mark_rule(strokeWidth=2).encode(y=measure("low", TITLE, logarithmic), y2="high:Q"),
        base.mark_point(**POINT).encode(y=measure("value", TITLE, logarithmic), shape=shape(names), tooltip=tooltip),
    )
    caption = (
        "Perplexity far past the training context over the yardstick, that of the control arm with its state zeroed every "
        "training context (1: no better than resetting), by the tokens that post-training, fit and choice of settings read. "
        "The tables name the points." + left_out(rows, "value")
    )
    return figure(
        "rivals",
        "Quality against data",
        caption,
        facet(chart, rows, panels, wide=len(panels) == 1),
        names,
        entries=entries_of(rows, names),
        points=sum(row["value"] is not None for row in rows),
        logarithmic=logarithmic,
    )
