"""Figures of the recurrent state: where it drifts, its statistics, how long it remembers, which part does the harm."""

from __future__ import annotations

import altair as alt

from lengthen.reporting.charts import (
    PANEL_WIDTH,
    POINT,
    ROW,
    SHOWN,
    WIDTH,
    Choice,
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
from lengthen.reporting.points import series_of
from lengthen.reporting.run_folder import Findings
from lengthen.reporting.state_points import (
    ALL,
    BANDS,
    BEYOND,
    STATISTICS,
    drift_points,
    forgetting_points,
    heads_of,
    parts_of,
    patching_points,
    statistics_points,
)

CROWD = 400
"""More points than this are drawn small."""


def drift_figure(findings: Findings) -> Figure | None:
    """Heat map of drift: layers, or the heads of one, against positions."""
    rows = drift_points(findings)
    if not rows:
        return None
    runs = list(dict.fromkeys(r["run"] for r in rows))
    layers = [r for r in rows if r["layer"] == ALL]
    bands = [*(name for _, name in BANDS), BEYOND]
    order = list(dict.fromkeys(r["row"] for r in rows))
    tooltip = [
        shown("run", "run"),
        shown("row", "of"),
        shown("head", "farthest head"),
        alt.Tooltip("position:Q", title="position", format=",d"),
        shown("told", "distance"),
    ]
    legend = alt.Legend(
        title="distance as a multiple of the limit", orient="bottom", symbolType="square", symbolSize=160, columns=3
    )
    chart = (
        alt.Chart()
        .mark_rect(style="cell")
        .encode(
            x=alt.X(
                "position:O", title="position", axis=alt.Axis(format=",d", labelAngle=0, domain=False, ticks=False)
            ),
            y=alt.Y("row:N", title=None, sort=order, axis=alt.Axis(domain=False, ticks=False, labelLimit=120)),
            color=alt.Color("band:O", scale=alt.Scale(domain=bands), sort=bands, legend=legend),
            tooltip=tooltip,
        )
        .properties(width=PANEL_WIDTH, height=alt.Step(ROW))
        .facet(facet=alt.Facet("panel:N", title=None, sort=runs), columns=2, data=alt.Data(values=layers), spacing=24)
        .resolve_scale(y="independent")
    )
    caption = (
        "How far the recurrent state lies from any that training windows show, as a multiple of the limit that states "
        f"from within the training context exceed by chance {_percent(findings)} of the time, in any head. Of a layer its "
        "farthest head is shown. Choose a cell's layer, then its head, by a click or above. Outside alone is no failure."
    )
    return figure(
        "state-drift",
        "Where the state leaves what training shows",
        caption,
        chart,
        series_of(findings),
        entries=[],
        points=sum(r["run"] == runs[0] for r in layers),
        mark="rect",
        choices=[Choice("run", "Run", [(run, run) for run in runs]), *_parts(findings)[:1]],
        rows=rows,
    )


def statistics_figure(findings: Findings) -> Figure | None:
    """A statistic of the recurrent state over positions: of all heads, of a layer's, or of one."""
    rows = statistics_points(findings)
    if not rows:
        return None
    first = next(iter(STATISTICS))
    filed = [r for r in rows if (r["layer"], r["head"], r["statistic"]) == (ALL, ALL, first)]
    names = series_of(findings)
    panels = list(dict.fromkeys(r["panel"] for r in rows))
    wide = len(panels) == 1
    tooltip = [
        shown("series", "curve"),
        alt.Tooltip("position:Q", title="position", format=",d"),
        shown("told", "value"),
    ]
    logarithmic = suits_logarithm(filed, "value") and all(r["value"] is None or r["value"] > 0 for r in rows)
    x, y = position(rows, max(r["position"] for r in rows)), measure("value", STATISTICS[first], logarithmic)
    base = alt.Chart().transform_filter(SHOWN)
    chart = alt.layer(
        *context_rule(findings, base, label=wide),
        base.mark_line(strokeWidth=2, tooltip=False).encode(x=x, y=y, color=colour(names)),
        base.mark_point(**POINT).encode(x=x, y=y, color=colour(names), shape=shape(names), tooltip=tooltip),
    )
    caption = (
        "Of the entries of the recurrent state; over several heads the mean, and of largest entries the largest. Growth "
        "past the training context means states that training never showed; alone it is no failure."
    )
    statistic = Choice("statistic", "Statistic", list(STATISTICS.items()))
    return figure(
        "state-statistics",
        "The state over positions",
        caption + left_out(filed, "value"),
        facet(chart, filed, panels, wide=wide),
        names,
        entries=entries_of(rows, names),
        points=sum(r["value"] is not None for r in filed),
        logarithmic=logarithmic,
        choices=[statistic, *_parts(findings)],
        rows=rows,
    )


def forgetting_figure(findings: Findings) -> Figure | None:
    """How long each head remembers, against the training context."""
    rows = forgetting_points(findings)
    if not rows:
        return None
    names = series_of(findings)
    layers = [part for part in parts_of(findings).values() if any(r["layer"] == part for r in rows)]
    tooltip = [shown("series", "run"), shown("layer", "layer"), shown("head", "head"), shown("told", "tokens")]
    x = alt.X("tokens:Q", title="tokens until 1/e is left", scale=alt.Scale(type="log", padding=12, nice=False))
    y = alt.Y("layer:N", title=None, sort=layers, axis=alt.Axis(grid=True, domain=False, labelLimit=120))
    drawn = list(dict.fromkeys(r["series"] for r in rows))
    beside = alt.YOffset("series:N", scale=alt.Scale(domain=drawn))
    base = alt.Chart().transform_filter(SHOWN)
    once = base.transform_aggregate(count="count()", groupby=["train_context"]).encode(x=alt.X("train_context:Q"))
    chart = alt.layer(
        once.mark_rule(style="training-context"),
        once.mark_text(style="training-context-label", text="training context", align="left", dx=5, dy=6, y=0),
        base.mark_point(**POINT | {"size": 120 if len(rows) <= CROWD else 24}).encode(
            x=x, y=y, yOffset=beside, color=colour(names), shape=shape(names), tooltip=tooltip
        ),
        data=alt.Data(values=rows),
    ).properties(width=WIDTH, height=max(90, (16 + 10 * len(drawn)) * len(layers)))
    every = sum(len(d.drift.forgetting) for d in findings.diagnoses.values() if d.drift)
    never = f" {every - len(rows)} heads do not decay within a usable measure." if every > len(rows) else ""
    caption = (
        "A point per head: after how many tokens a random difference in its state has shrunk to 1/e. A head that remembers "
        f"for longer than the training context meets sums that training never showed.{never}"
    )
    return figure(
        "forgetting",
        "How long each head remembers",
        caption,
        chart,
        names,
        entries=entries_of(rows, names),
        points=len(rows),
    )


def patching_figure(findings: Findings) -> Figure | None:
    """Which layer's, and which head's, state the excess loss comes from."""
    rows = patching_points(findings)
    if not rows:
        return None
    names = series_of(findings)
    runs = list(dict.fromkeys(r["patched"] for r in rows))
    tooltip = [shown("series", "run"), shown("row", "state of"), shown("told", "share of the excess loss")]
    of_run, marked = colour(names).legend(None), shape(names).legend(None)  # the panels' titles name the runs
    x = alt.X("value:Q", title="share of the excess loss", axis=alt.Axis(format="%", grid=True, tickCount=5))
    y = alt.Y("row:N", title=None, sort=None, axis=alt.Axis(grid=False, domain=False, labelLimit=160))
    chart = (
        alt.layer(
            alt.Chart().mark_rule(strokeWidth=2).encode(x=alt.X("low:Q"), x2=alt.X2("high:Q"), y=y, color=of_run),
            alt.Chart().mark_point(**POINT).encode(x=x, y=y, color=of_run, shape=marked, tooltip=tooltip),
        )
        .properties(width=PANEL_WIDTH, height=alt.Step(ROW))
        .facet(facet=alt.Facet("panel:N", title=None, sort=runs), columns=2, data=alt.Data(values=rows), spacing=24)
        .resolve_scale(y="independent")
    )
    found = [d.patching for d in findings.diagnoses.values() if d.patching is not None]
    caption = (
        "State patching: the state of one layer (then of one head of the first) is replaced by that of a run which began "
        f"a training context earlier, at position {', '.join(f'{at:,}' for at in sorted({p.position for p in found}))}; what "
        "of the excess loss goes away is its share. Lines: 2 standard errors to either side. Shares need not add up to 1."
    )
    return figure(
        "patching",
        "Which part's state does the harm",
        caption,
        chart,
        names,
        entries=[],
        points=sum(r["patched"] == runs[0] for r in rows),
        choices=[Choice("patched", "Run", [(run, run) for run in runs])],
        rows=rows,
    )


def _parts(findings: Findings) -> list[Choice]:
    parts = [(part, part) for part in dict.fromkeys(parts_of(findings).values())]
    heads = [(str(head), f"head {head}") for head in range(heads_of(findings))]
    return [
        Choice("layer", "Layer", [(ALL, "all layers"), *parts]),
        Choice("head", "Head", [(ALL, "all heads"), *heads]),
    ]


def _percent(findings: Findings) -> str:
    levels = sorted({d.drift.level for d in findings.diagnoses.values() if d.drift})
    return " or ".join(f"{100 * level:g} %" for level in levels)
