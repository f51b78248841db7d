"""What all figures are made of: their form, and the axes, colours and marks they share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import altair as alt

from lengthen.reporting.points import Row
from lengthen.reporting.run_folder import Findings

WIDTH, HEIGHT, PANEL_WIDTH, PANEL_HEIGHT = 680, 340, 320, 200
ROW = 22
"""Height of a row of a heat map or a ranking."""
SHOWN = "indexof(hidden, datum.entry) < 0"
POINT: dict[str, Any] = {"filled": True, "size": 120, "opacity": 1}


@dataclass(frozen=True)
class Entry:
    """A line of the page's legend: a curve, the index of its series, and whether it is a reset baseline."""

    label: str
    index: int
    dashed: bool


@dataclass(frozen=True)
class Choice:
    """A selector of the page: of a figure's rows those are drawn whose field `name` has the chosen value.

    options: (value, what a reader sees), the first one chosen. A choice of one name is one choice in all figures.
    """

    name: str
    label: str
    options: list[tuple[str, str]]


@dataclass(frozen=True)
class Figure:
    """A figure: its Vega-Lite definition without colours, and what the page says about it.

    name: of its files. series: how many colours it needs. points: how many marks of kind `mark` the page draws.
    logarithmic: whether the vertical axis can be switched between logarithmic and linear. choices, rows: what the page
    lets a reader choose, and from which rows; the definition holds those that the files show.
    """

    name: str
    title: str
    caption: str
    spec: dict[str, Any]
    series: int
    entries: list[Entry]
    points: int
    logarithmic: bool = False
    mark: str = "symbol"
    choices: list[Choice] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)


def figure(name: str, title: str, caption: str, chart: Any, names: list[str], **told: Any) -> Figure:
    """A figure of a chart; names: of all series, in the order of their colours; told: the other fields of a Figure."""
    spec = chart.add_params(alt.param(name="hidden", value=[])).to_dict()
    for own in ("config", "$schema"):
        spec.pop(own, None)
    return Figure(name, title, caption, spec, len(names), **told)


def facet(chart: Any, rows: list[Row], panels: list[str], *, wide: bool) -> Any:
    """A panel per value of "panel"; the page sets their width and number side by side to fit."""
    size = {"width": WIDTH, "height": HEIGHT - 60} if wide else {"width": PANEL_WIDTH, "height": PANEL_HEIGHT}
    if wide:
        return chart.properties(data=alt.Data(values=rows), **size)
    return chart.properties(**size).facet(
        facet=alt.Facet("panel:N", title=None, sort=panels), columns=2, data=alt.Data(values=rows), spacing=24
    )


def context_rule(findings: Findings, base: alt.Chart, *, label: bool = True) -> list[alt.Chart]:
    """A rule at each training context."""
    once = base.transform_aggregate(count="count()", groupby=["train_context"])
    at = once.encode(x=alt.X("train_context:Q"))
    rule = at.mark_rule(style="training-context")
    if not label:
        return [rule]
    contexts = {d.train_context for d in findings.diagnoses.values()}
    text = "training context" if len(contexts) == 1 else "training contexts"
    return [rule, at.mark_text(style="training-context-label", text=text, align="left", dx=5, dy=6, y=0)]


def position(rows: Sequence[Row], most: int) -> alt.X:
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


def measure(field: str, title: str, logarithmic: bool) -> alt.Y:
    """The vertical axis."""
    scale = alt.Scale(type="log", nice=False, padding=8) if logarithmic else alt.Scale(zero=False)
    labelled = alt.condition("datum.label === ''", alt.value(0), alt.value(1))
    axis = alt.Axis(gridOpacity=labelled, tickOpacity=labelled)
    return alt.Y(f"{field}:Q", title=title, scale=scale, axis=axis)


def suits_logarithm(rows: Sequence[Row], field: str) -> bool:
    """Whether a logarithmic axis shows these values: all positive, and spread enough for ticks to stand on it."""
    values = [r[field] for r in rows if r[field] is not None]
    return all(v > 0 for v in values) and max(values, default=1) >= 3 * min(values, default=1)


def colour(names: list[str]) -> alt.Color:
    """Of the series."""
    return alt.Color("series:N", scale=alt.Scale(domain=names), title=None)


def shape(names: list[str]) -> alt.Shape:
    """Of the series' points."""
    return alt.Shape("series:N", scale=alt.Scale(domain=names), title=None)


def shown(field: str, title: str) -> alt.Tooltip:
    """A line of what is told on hover."""
    return alt.Tooltip(f"{field}:N", title=title)


def left_out(rows: Sequence[Row], field: str) -> str:
    """What a caption says of values that are not finite."""
    missing = sum(r[field] is None for r in rows)
    return f" Left out because they are not finite: {missing}." if missing else ""


def entries_of(rows: Sequence[Row], names: list[str]) -> list[Entry]:
    """A legend's entry per series that the rows have."""
    return [Entry(name, names.index(name), False) for name in names if any(r["series"] == name for r in rows)]
