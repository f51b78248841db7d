"""A figure on the page: its frame, its switches, and the data that the page's script draws from."""

from __future__ import annotations

from typing import Any

from lengthen.reporting.charts import Choice, Figure
from lengthen.reporting.legend import legend
from lengthen.reporting.markup import Markup, tag
from lengthen.reporting.palette import DARK, LIGHT, chart_config
from lengthen.reporting.state_points import columns


def figure_element(figure: Figure | None) -> Markup:
    """A chart's frame, into which the page's script draws; nothing where there is no figure."""
    if figure is None:
        return Markup("")
    switch = tag("button", "Linear scale", type="button", aria_pressed="false", class_="scale", hidden=True)
    links = [tag("a", kind.upper(), href=f"figures/{figure.name}.{kind}") for kind in ("png", "svg")]
    return tag(
        "figure",
        tag("div", tag("h3", figure.title), switch if figure.logarithmic else "", class_="bar"),
        _choices(figure),
        legend(figure),
        tag(
            "div",
            tag("noscript", "The chart needs JavaScript; the tables below hold its numbers."),
            class_="chart",
            role="group",
            aria_label=figure.title,
        ),
        tag("figcaption", figure.caption, " ", tag("span", "As a file: ", links[0], ", ", links[1], class_="files")),
        id=f"figure-{figure.name}",
    )


def figure_data(figure: Figure) -> dict[str, Any]:
    """What the page's script needs to draw a figure."""
    themes = {theme.name: chart_config(theme, figure.series, legend=False) for theme in (LIGHT, DARK)}
    data = {"name": figure.name, "spec": figure.spec, "themes": themes}
    if not figure.choices:
        return data
    first = {choice.name: choice.options[0][0] for choice in figure.choices}
    empty = figure.spec | {"data": {"values": []}}
    return data | {"spec": empty, "choices": first, "rows": columns(figure.rows)}


def _choices(figure: Figure) -> Markup:
    """A selector per choice, where there is one to make."""
    labels = [_selector(choice) for choice in figure.choices if len(choice.options) > 1]
    return tag("div", *labels, class_="choices", hidden=True) if labels else Markup("")


def _selector(choice: Choice) -> Markup:
    options = [tag("option", label, value=value) for value, label in choice.options]
    return tag("label", choice.label, " ", tag("select", *options, data_choice=choice.name))
