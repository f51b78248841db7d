"""The figures: one definition each, for the page and for PNG and SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from lengthen.reporting.palette import DASH
from lengthen.reporting.points import (
    CARRIED,
    RESET,
    Row,
    entry,
    has_reset_curve,
    layer_spread_points,
    loss_block,
    loss_points,
    perplexity_points,
    series_of,
    spread_points,
)
from lengthen.reporting.run_folder import Findings

WIDTH, HEIGHT, PANEL_WIDTH, PANEL_HEIGHT = 680, 340, 320, 200


@dataclass(frozen=True)
class Entry:
    """A line of the page's legend: a curve, the index of its series, and whether it is a reset baseline."""

    label: str
    index: int
    dashed: bool


@dataclass(frozen=True)
class Figure:
    """A figure: its Vega-Lite definition without colours, and what the page says about it.

    name: of its files. series: how many colours it needs. points: how many points it draws. logarithmic: whether the
    vertical axis can be switched between logarithmic and linear.
    """

    name: str
    title: str
    caption: str
    spec: dict[str, Any]
    series: int
    entries: list[Entry]
    points: int
    logarithmic: bool


def figures(findings: Findings) -> list[Figure]:
    """Every figure the results have data for."""
    made = [perplexity_figure(findings), spread_figure(findings), layer_spread_figure(findings), loss_figure(findings)]
    return [figure for figure in made if figure is not None]


def perplexity_figure(findings: Findings) -> Figure | None:
    """Perplexity against position, both logarithmic, with the reset baselines dashed."""
    rows = perplexity_points(findings)
    if not rows:
        return None
    names = series_of(findings)
    tooltip = [
        _shown("entry", "curve"),
        _shown("positions", "positions"),
        _shown("value", "perplexity"),
        _shown("sequences", "sequences"),
    ]
    longest = max(d.max_length for d in findings.diagnoses.values())
    logarithmic = _suits_logarithm(rows, "perplexity")
    x, y = _position(rows, longest), _measure("perplexity", "perplexity", logarithmic)
    colour = _colour(names)
    dash = alt.StrokeDash("kind:N", scale=alt.Scale(domain=[CARRIED, RESET], range=[[1, 0], DASH]), title=None)
    carried = f"datum.kind === '{CARRIED}'"
    base = alt.Chart().transform_filter(_SHOWN)
    chart = alt.layer(
        *_context_rule(findings, base),
        base.transform_filter(carried)
        .mark_area(opacity=0.1, tooltip=False)
        .encode(x=x, y=alt.Y("low:Q"), y2=alt.Y2("high:Q"), color=colour),
        base.mark_line(strokeWidth=2, tooltip=False).encode(x=x, y=y, color=colour, strokeDash=dash),
        base.transform_filter(carried)
        .mark_point(**_POINT)
        .encode(x=x, y=y, color=colour, shape=_shape(names), tooltip=tooltip),
        data=alt.Data(values=rows),
    ).properties(width=WIDTH, height=HEIGHT)
    least = min(d.n for d in findings.diagnoses.values())
    caption = (
        "Mean over ranges of positions, each drawn at its middle. Solid: the state is carried from the first token on. "
        "Dashed: the reset baseline, the same weights and tokens with the state zeroed every training context. "
        f"Bands: 2 standard errors to either side, over {'at least ' if _varied(findings) else ''}{least} sequences."
    )
    if findings.demonstration:
        caption += " All arms read the same sequences: they differ more surely than their bands suggest."
    caption += _left_out(rows, "perplexity")
    entries = [
        Entry(entry(name, kind), names.index(name), kind == RESET)
        for kind in (CARRIED, RESET)
        for name in findings.diagnoses
        if kind == CARRIED or has_reset_curve(findings, name)
    ]
    points = sum(r["kind"] == CARRIED and r["perplexity"] is not None for r in rows)
    return _figure("perplexity", "Perplexity by position", caption, chart, names, entries, points, logarithmic)


def spread_figure(findings: Findings) -> Figure | None:
    """Spread of the recurrent state over positions, the mean over layers and heads."""
    caption = (
        "Standard deviation of the entries of the recurrent state, the mean over layers and heads. Spread that goes on "
        "growing past the training context means states that training never showed; alone it is no failure."
    )
    rows = spread_points(findings)
    panels = list(dict.fromkeys(r["panel"] for r in rows))
    return _spread(findings, rows, "state-spread", "Spread of the state", caption, panels, wide=len(panels) == 1)


def layer_spread_figure(findings: Findings) -> Figure | None:
    """The same in small multiples, one a layer; where there is one layer only, it would say nothing more."""
    rows = layer_spread_points(findings)
    panels = list(dict.fromkeys(r["panel"] for r in rows))
    if len(panels) < 2:
        return None
    caption = "The same layer by layer, the mean over heads, on one scale."
    return _spread(findings, rows, "state-spread-layers", "Spread by layer", caption, panels, wide=False)


def loss_figure(findings: Findings) -> Figure | None:
    """Training loss over steps."""
    rows = loss_points(findings)
    if not rows:
        return None
    names = series_of(findings)
    panels = list(dict.fromkeys(r["panel"] for r in rows))
    tooltip = [_shown("series", "run"), _shown("steps", "steps"), _shown("value", "loss")]
    x = alt.X("step:Q", title="step", axis=alt.Axis(format=",d", tickCount=6), scale=alt.Scale(nice=False))
    y = alt.Y("loss:Q", title="loss, nats a token", scale=alt.Scale(zero=False))
    base = alt.Chart().transform_filter(_SHOWN).encode(x=x, y=y, color=_colour(names))
    chart = alt.layer(
        base.mark_line(strokeWidth=1.75, tooltip=False),
        base.mark_point(opacity=0, size=60, filled=True).encode(tooltip=tooltip),
    )
    wide = len(panels) == 1
    faceted = _facet(chart, rows, panels, wide).resolve_scale(x="independent", y="independent")
    sizes = sorted({loss_block(len(r.losses)) for r in findings.trainings.values()})
    blocks = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
    smoothing = (
        "The loss of each step."
        if sizes == [1]
        else f"Smoothed: each point is the mean over a block of {blocks} steps."
    )
    caption = (
        f"{smoothing} The loss is measured from each run's own initial states, so that it does not rank them."
        + _left_out(rows, "loss")
    )
    entries = [Entry(name, names.index(name), False) for name in findings.trainings]
    points = sum(r["loss"] is not None for r in rows)
    return _figure("training-loss", "Training loss", caption, faceted, names, entries, points, False)


_SHOWN = "indexof(hidden, datum.entry) < 0"
_POINT: dict[str, Any] = {"filled": True, "size": 120, "opacity": 1}


def _spread(
    findings: Findings, rows: list[Row], name: str, title: str, caption: str, panels: list[str], *, wide: bool
) -> Figure | None:
    if not rows:
        return None
    names = series_of(findings)
    tooltip = [
        _shown("series", "curve"),
        alt.Tooltip("position:Q", title="position", format=",d"),
        _shown("value", "standard deviation"),
    ]
    logarithmic = _suits_logarithm(rows, "std")
    x = _position(rows, max(r["position"] for r in rows))
    y = _measure("std", "standard deviation", logarithmic)
    base = alt.Chart().transform_filter(_SHOWN)
    chart = alt.layer(
        *_context_rule(findings, base, label=wide),
        base.mark_line(strokeWidth=2, tooltip=False).encode(x=x, y=y, color=_colour(names)),
        base.mark_point(**_POINT).encode(x=x, y=y, color=_colour(names), shape=_shape(names), tooltip=tooltip),
    )
    shown = [n for n in findings.diagnoses if any(r["series"] == n for r in rows)]
    points = sum(r["std"] is not None for r in rows)
    entries = [Entry(n, names.index(n), False) for n in shown]
    caption += _left_out(rows, "std")
    return _figure(name, title, caption, _facet(chart, rows, panels, wide), names, entries, points, logarithmic)


def _facet(chart: Any, rows: list[Row], panels: list[str], wide: bool) -> Any:
    """A panel per value of "panel"; the page sets their width and number side by side to fit."""
    size = {"width": WIDTH, "height": HEIGHT - 60} if wide else {"width": PANEL_WIDTH, "height": PANEL_HEIGHT}
    if wide:
        return chart.properties(data=alt.Data(values=rows), **size)
    return chart.properties(**size).facet(
        facet=alt.Facet("panel:N", title=None, sort=panels), columns=2, data=alt.Data(values=rows), spacing=24
    )


def _context_rule(findings: Findings, base: alt.Chart, *, label: bool = True) -> list[alt.Chart]:
    """A rule at each training context."""
    once = base.transform_aggregate(count="count()", groupby=["train_context"])
    at = once.encode(x=alt.X("train_context:Q"))
    rule = at.mark_rule(style="training-context")
    if not label:
        return [rule]
    contexts = {d.train_context for d in findings.diagnoses.values()}
    text = "training context" if len(contexts) == 1 else "training contexts"
    return [rule, at.mark_text(style="training-context-label", text=text, align="left", dx=5, dy=6, y=0)]


def _position(rows: Sequence[Row], most: int) -> alt.X:
    """Position up to `most`, logarithmic, with ticks at the training context times powers of two."""
    least = min(r["position"] for r in rows)
    context = min(r["train_context"] for r in rows)
    powers = range(math.floor(math.log2(least / context)), math.ceil(math.log2(most / context)) + 1)
    ticks = [context * 2**k for k in powers if least <= context * 2**k <= most and (context * 2**k) % 1 == 0]
    return alt.X(
        "position:Q",
        title="position",
        scale=alt.Scale(type="log", base=2, nice=False, domain=[least, most]),
        axis=alt.Axis(values=[int(t) for t in ticks], format=",d"),
    )


def _measure(field: str, title: str, logarithmic: bool) -> alt.Y:
    scale = alt.Scale(type="log", nice=False, padding=8) if logarithmic else alt.Scale(zero=False)
    labelled = alt.condition("datum.label === ''", alt.value(0), alt.value(1))
    axis = alt.Axis(gridOpacity=labelled, tickOpacity=labelled)
    return alt.Y(f"{field}:Q", title=title, scale=scale, axis=axis)


def _suits_logarithm(rows: Sequence[Row], field: str) -> bool:
    """Whether a logarithmic axis shows these values: all positive, and spread enough for ticks to stand on it."""
    values = [r[field] for r in rows if r[field] is not None]
    return all(v > 0 for v in values) and max(values, default=1) >= 3 * min(values, default=1)


def _colour(names: list[str]) -> alt.Color:
    return alt.Color("series:N", scale=alt.Scale(domain=names), title=None)


def _shape(names: list[str]) -> alt.Shape:
    return alt.Shape("series:N", scale=alt.Scale(domain=names), title=None)


def _shown(field: str, title: str) -> alt.Tooltip:
    return alt.Tooltip(f"{field}:N", title=title)


def _left_out(rows: Sequence[Row], field: str) -> str:
    missing = sum(r[field] is None for r in rows)
    return f" {missing} points are not finite and left out." if missing else ""


def _varied(findings: Findings) -> bool:
    return len({d.n for d in findings.diagnoses.values()}) > 1


def _figure(
    name: str,
    title: str,
    caption: str,
    chart: Any,
    names: list[str],
    entries: list[Entry],
    points: int,
    logarithmic: bool,
) -> Figure:
    spec = chart.add_params(alt.param(name="hidden", value=[])).to_dict()
    for own in ("config", "$schema"):
        spec.pop(own, None)
    return Figure(name, title, caption, spec, len(names), entries, points, logarithmic)
