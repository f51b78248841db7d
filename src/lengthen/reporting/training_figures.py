"""Figures of training runs."""

from __future__ import annotations

import altair as alt

from lengthen.reporting.charts import SHOWN, Figure, colour, entries_of, facet, figure, left_out, shown
from lengthen.reporting.points import loss_block, loss_points, series_of
from lengthen.reporting.run_folder import Findings


def training_loss_figure(findings: Findings) -> Figure | None:
    """Training loss over steps."""
    rows = loss_points(findings)
    if not rows:
        return None
    names = series_of(findings)
    panels = list(dict.fromkeys(r["panel"] for r in rows))
    tooltip = [shown("series", "run"), shown("steps", "steps"), shown("value", "loss")]
    x = alt.X(
        "step:Q", title="step", axis=alt.Axis(format=",d", tickCount=6, tickMinStep=1), scale=alt.Scale(nice=False)
    )
    y = alt.Y("loss:Q", title="loss, nats a token", scale=alt.Scale(zero=False))
    base = alt.Chart().transform_filter(SHOWN).encode(x=x, y=y, color=colour(names))
    chart = alt.layer(
        base.mark_line(strokeWidth=1.75, tooltip=False),
        base.mark_point(opacity=0, size=60, filled=True).encode(tooltip=tooltip),
    )
    wide = len(panels) == 1
    faceted = facet(chart, rows, panels, wide=wide)
    sizes = sorted({loss_block(len(r.losses)) for r in findings.trainings.values()})
    blocks = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    smoothing = (
        "The loss of each step."
        if sizes == [1]
        else f"Smoothed: each point is the mean over a block of {blocks} steps."
    )
    caption = (
        f"{smoothing} The loss is measured from each run's own initial states, so that it does not rank them."
        + left_out(rows, "loss")
    )
    return figure(
        "training-loss",
        "Training loss",
        caption,
        faceted if wide else faceted.resolve_scale(x="independent", y="independent"),
        names,
        entries=entries_of(rows, names),
        points=sum(r["loss"] is not None for r in rows),
    )
