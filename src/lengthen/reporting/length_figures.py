"""Figures of how far a model generalises: loss by position, what still counts of the past, the certificate."""

from __future__ import annotations

import altair as alt

from lengthen.reporting.charts import (
    HEIGHT,
    POINT,
    SHOWN,
    WIDTH,
    Entry,
    Figure,
    colour,
    context_rule,
    entries_of,
    facet,
    figure,
    left_out,
    measure,
    position,
    shape,
    shown,
    suits_logarithm,
)
from lengthen.reporting.palette import DASH
from lengthen.reporting.points import (
    CARRIED,
    RESET,
    certificate_points,
    entry,
    has_reset_curve,
    measure_of,
    position_points,
    remembrance_points,
    series_of,
)
from lengthen.reporting.run_folder import Findings


def loss_by_position_figure(findings: Findings) -> Figure | None:
    """Perplexity (or another loss) against position, both logarithmic, with the reset baselines dashed."""
    rows = position_points(findings)
    if not rows:
        return None
    names, measured = series_of(findings), measure_of(findings)
    tooltip = [
        shown("entry", "curve"),
        shown("positions", "positions"),
        shown("told", measured),
        shown("band", "95 % band"),
        shown("sequences", "sequences"),
    ]
    longest = max(d.max_length for d in findings.diagnoses.values())
    logarithmic = suits_logarithm(rows, "value")
    x, y = position(rows, longest), measure("value", measured, logarithmic)
    dash = alt.StrokeDash("kind:N", scale=alt.Scale(domain=[CARRIED, RESET], range=[[1, 0], DASH]), title=None)
    carried = f"datum.kind === '{CARRIED}'"
    base = alt.Chart().transform_filter(SHOWN)
    chart = alt.layer(
        *context_rule(findings, base),
        base.transform_filter(carried)
        .mark_area(opacity=0.1, tooltip=False)
        .encode(x=x, y=alt.Y("low:Q"), y2=alt.Y2("high:Q"), color=colour(names)),
        base.mark_line(strokeWidth=2, tooltip=False).encode(x=x, y=y, color=colour(names), strokeDash=dash),
        base.transform_filter(carried)
        .mark_point(**POINT)
        .encode(x=x, y=y, color=colour(names), shape=shape(names), tooltip=tooltip),
        data=alt.Data(values=rows),
    ).properties(width=WIDTH, height=HEIGHT)
    counts = {d.n for d in findings.diagnoses.values()}
    caption = (
        "Mean over ranges of positions, each drawn at its middle. Solid: the state is carried from the first token on. "
        "Dashed: the reset baseline, the same weights and tokens with the state zeroed every training context. "
        f"Bands: 95 % by the bootstrap over {'at least ' if len(counts) > 1 else ''}{min(counts)} sequences."
    )
    if findings.demonstration:
        caption += " All arms read the same sequences: they differ more surely than their bands suggest."
    entries = [
        Entry(entry(name, kind), names.index(name), kind == RESET)
        for kind in (CARRIED, RESET)
        for name in findings.diagnoses
        if kind == CARRIED or has_reset_curve(findings, name)
    ]
    return figure(
        "loss-by-position",
        f"{measured[0].upper()}{measured[1:]} by position",
        caption + left_out(rows, "value"),
        chart,
        names,
        entries=entries,
        points=sum(r["kind"] == CARRIED and r["value"] is not None for r in rows),
        logarithmic=logarithmic,
    )


def remembrance_figure(findings: Findings) -> Figure | None:
    """Effective remembrance against how many of the last tokens are kept, a panel per end."""
    rows = remembrance_points(findings)
    if not rows:
        return None
    names = series_of(findings)
    panels = list(dict.fromkeys(r["panel"] for r in rows))
    wide = len(panels) == 1
    tooltip = [
        shown("series", "curve"),
        alt.Tooltip("kept:Q", title="last tokens kept", format=",d"),
        alt.Tooltip("end:Q", title="of", format=",d"),
        shown("told", "total variation"),
        shown("sequences", "sequences"),
    ]
    scale = alt.Scale(type="log", base=2, nice=False)
    x = alt.X("kept:Q", title="last tokens kept", axis=alt.Axis(format=",d", tickCount=8), scale=scale)
    y = alt.Y("value:Q", title="total variation", scale=alt.Scale(domainMin=0))
    base = alt.Chart().transform_filter(SHOWN)
    chart = alt.layer(
        base.mark_area(opacity=0.1, tooltip=False).encode(
            x=x, y=alt.Y("low:Q"), y2=alt.Y2("high:Q"), color=colour(names)
        ),
        base.mark_line(strokeWidth=2, tooltip=False).encode(x=x, y=y, color=colour(names)),
        base.mark_point(**POINT).encode(x=x, y=y, color=colour(names), shape=shape(names), tooltip=tooltip),
    )
    faceted = facet(chart, rows, panels, wide=wide)
    caption = (
        "Effective remembrance: how far the prediction of the next token moves when only the last tokens are read, from a "
        "zero state, instead of all. 0: what was dropped does not matter; 1: nothing is left of the prediction. A healthy "
        "curve falls to 0 well before all are kept; one that stays high depends on a past that training cannot have shown. "
        "Bands: 2 standard errors to either side."
    )
    return figure(
        "remembrance",
        f"What still counts after {panels[0]}" if wide else "What still counts of the past",
        caption,
        faceted if wide else faceted.resolve_scale(x="independent"),
        names,
        entries=entries_of(rows, names),
        points=len(rows),
    )


def certificate_figure(findings: Findings) -> Figure | None:
    """Each run against the yardstick of its certificate, bucket by bucket, with paired intervals."""
    rows = certificate_points(findings)
    if not rows:
        return None
    names, measured = series_of(findings), measure_of(findings)
    tooltip = [
        shown("series", "run"),
        shown("against", "against"),
        shown("positions", "positions"),
        shown("told", f"{measured} differs by"),
        shown("band", "95 % interval"),
    ]
    logarithmic = suits_logarithm(rows, "value")
    x = position(rows, max(c.max_length for c in findings.certificates))
    y = measure("value", f"{measured} / reset baseline's", logarithmic)
    base = alt.Chart().transform_filter(SHOWN)
    one = alt.Chart(alt.Data(values=[{"value": 1}])).mark_rule(style="training-context").encode(y=alt.Y("value:Q"))
    chart = alt.layer(
        one,
        *context_rule(findings, base),
        base.mark_area(opacity=0.15, tooltip=False).encode(
            x=x, y=alt.Y("low:Q"), y2=alt.Y2("high:Q"), color=colour(names)
        ),
        base.mark_line(strokeWidth=2, tooltip=False).encode(x=x, y=y, color=colour(names)),
        base.mark_point(**POINT).encode(x=x, y=y, color=colour(names), shape=shape(names), tooltip=tooltip),
        data=alt.Data(values=rows),
    ).properties(width=WIDTH, height=HEIGHT - 60)
    caption = (
        "With the state carried, against the reset baseline of the control arm (of the run before where there is no "
        "control; before and control against their own), paired sequence by sequence. 1: no better and no worse than "
        "zeroing the state every training context. Bands: 95 %, each for itself."
    )
    return figure(
        "certificate",
        "Against resetting the state",
        caption + left_out(rows, "value"),
        chart,
        names,
        entries=entries_of(rows, names),
        points=sum(r["value"] is not None for r in rows),
        logarithmic=logarithmic,
    )
