"""Figures of studies: what each setting does in context and far, over seeds."""

from __future__ import annotations

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
from lengthen.reporting.numbers import ranged_ratio
from lengthen.reporting.points import finite
from lengthen.reporting.run_folder import Findings
from lengthen.results import Study

LEVEL = 36
"""More letters than this do not fit beside one another under a figure on a phone."""
MEASURES = {
    "in-context": ("in_context_over_control", "in context, over the control arm's"),
    "far": ("far_over_control_reset", "far, over the control arm's reset baseline"),
}


def study_figure_names(study: Study) -> list[str]:
    """The names of a study's figures."""
    return [f"{study.name}-{measured}" for measured in MEASURES]


def study_figures(findings: Findings) -> list[Figure]:
    """Two figures a study."""
    return [
        _figure(study, name, *MEASURES[measured])
        for study in findings.studies.values()
        for measured, name in zip(MEASURES, study_figure_names(study))
    ]


def _figure(study: Study, name: str, field: str, title: str) -> Figure:
    """Points at the mean over seeds and rules from the least to the greatest; the first thing varied lies across.

    Colours are the study's own: all studies of a folder together have more series than there are colours.
    """
    rows = [
        {
            "across": row.setting[0],
            "series": row.setting[1],
            "entry": row.setting[1],
            "value": finite(spread.mean),
            "low": finite(spread.low),
            "high": finite(spread.high),
            "told": ranged_ratio(spread),
        }
        for row in study.rows
        for spread in [getattr(row, field)]
    ]
    logarithmic = suits_logarithm(rows, "value")
    across, names = (list(dict.fromkeys(row.setting[i] for row in study.rows)) for i in (0, 1))
    angle = -30 if sum(map(len, across)) > LEVEL else 0
    x = alt.X("across:N", title=study.varies[0], sort=across, axis=alt.Axis(labelAngle=angle, labelOverlap=False))
    base = alt.Chart().transform_filter(SHOWN).encode(x=x, xOffset=alt.XOffset("series:N", sort=names))
    base = base.encode(color=colour(names))
    tooltip = [shown("series", study.varies[1]), shown("across", study.varies[0]), shown("told", title)]
    chart = alt.layer(
        base.mark_rule(strokeWidth=2).encode(y=measure("low", title, logarithmic), y2="high:Q"),
        base.mark_point(**POINT).encode(y=measure("value", title, logarithmic), shape=shape(names), tooltip=tooltip),
    )
    caption = (
        "Ratios of perplexities, seed by seed: points at the geometric mean over seeds, rules from the least to the greatest."
        + left_out(rows, "value")
    )
    return figure(
        name,
        f"{study.name}: {title}",
        caption,
        facet(chart, rows, [], wide=True),
        names,
        entries=entries_of(rows, names),
        points=sum(r["value"] is not None for r in rows),
        logarithmic=logarithmic,
    )
