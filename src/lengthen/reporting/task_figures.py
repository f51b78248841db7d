"""Heat maps of long-context tasks: how often a model answers right, by task and length, and by depth and length."""

from __future__ import annotations

from typing import Any

import altair as alt

from lengthen.reporting.charts import PANEL_WIDTH, ROW, WIDTH, Figure, figure, shown
from lengthen.reporting.numbers import span
from lengthen.reporting.points import Row, series_of
from lengthen.reporting.run_folder import Findings
from lengthen.reporting.task_points import ACCURACIES, LEAST, depth_points, task_points

STEPS = [*(name for _, name in ACCURACIES), LEAST]


def tasks_figure(findings: Findings) -> Figure | None:
    """Tasks against lengths, the effective length outlined."""
    rows = task_points(findings)
    if not rows:
        return None
    caption = (
        "Percent of questions answered right, over all depths. Outlined: the effective length, the largest up to which it is "
        f"at least {100 * ACCURACIES[0][0]:.0f} % at every length. {_haystacks(rows)}"
    )
    return figure(
        "tasks",
        "Tasks by length",
        caption,
        _heat_map(rows, None, "datum.reached"),
        series_of(findings),
        entries=[],
        points=len(rows) + sum(r["reached"] for r in rows),
        mark="rect",
    )


def depths_figure(findings: Findings) -> Figure | None:
    """Depths against lengths, a panel for each task that has depths."""
    rows = depth_points(findings)
    if not rows:
        return None
    tasks = ", ".join(dict.fromkeys(r["task"] for r in rows))
    caption = f"Percent of questions answered right, by where in the prompt the fact stands: 0 % is its start. {_haystacks(rows)}"
    return figure(
        "task-depths",
        f"By depth and length: {tasks}",
        caption,
        _heat_map(rows, "depth of the fact", None),
        series_of(findings),
        entries=[],
        points=len(rows),
        mark="rect",
    )


def _heat_map(rows: list[Row], title: str | None, outlined: str | None) -> Any:
    """Cells with their percent in them, a panel per value of "panel"; outlined: which of them, as an expression."""
    panels = list(dict.fromkeys(r["panel"] for r in rows))
    across = [r["across"] for r in sorted(rows, key=lambda r: r["length"])]
    tooltip = [
        shown("task", "task"),
        shown("depth", "depth"),
        shown("tokens", "tokens"),
        shown("told", "right"),
        shown("interval", "95 % interval"),
        shown("haystacks", "haystacks"),
        shown("effective", "effective length"),
    ]
    x = alt.X(
        "across:N",
        title="tokens of a prompt (k = 1,024)",
        sort=list(dict.fromkeys(across)),
        axis=alt.Axis(labelAngle=0, labelSeparation=2, domain=False, ticks=False),
    )
    y = alt.Y(
        "row:N",
        title=title,
        sort=list(dict.fromkeys(r["row"] for r in rows)),
        axis=alt.Axis(domain=False, ticks=False, labelLimit=120, labelOverlap=False),
    )
    legend = alt.Legend(
        title="questions answered right", orient="bottom", symbolType="square", symbolSize=160, columns=2
    )
    base = alt.Chart().encode(x=x, y=y, tooltip=tooltip)
    colour = alt.Color("step:O", scale=alt.Scale(domain=STEPS), sort=STEPS, legend=legend)
    percents = [
        base.transform_filter(alt.datum.step == name).mark_text(style=f"on-step-{i}").encode(text="percent:N")
        for i, name in enumerate(STEPS)
        if any(r["step"] == name for r in rows)
    ]
    outline = [base.transform_filter(outlined).mark_rect(filled=False, style="outlined")] if outlined else []
    chart = alt.layer(base.mark_rect(style="cell").encode(color=colour), *outline, *percents)
    return chart.properties(width=WIDTH if len(panels) == 1 else PANEL_WIDTH, height=alt.Step(ROW)).facet(
        facet=alt.Facet("panel:N", title=None, sort=panels), columns=2, data=alt.Data(values=rows), spacing=24
    )


def _haystacks(rows: list[Row]) -> str:
    counts = [r["haystacks"] for r in rows]
    return f"{span(counts)} haystack{'' if {*counts} == {1} else 's'} a cell; its 95 % interval is told on hover and in the table."
