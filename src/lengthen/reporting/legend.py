"""The page's legend: a checkbox a curve, with the curve's colour, dash and mark."""

from __future__ import annotations

from lengthen.reporting.charts import Entry, Figure
from lengthen.reporting.markup import Markup, tag
from lengthen.reporting.palette import DASH, shape


def legend(figure: Figure) -> Markup:
    """Switches curves on and off; where there is one curve there is nothing to switch."""
    if len(figure.entries) < 2:
        return Markup("")
    labels = [
        tag("label", tag("input", type="checkbox", checked=True, value=e.label), swatch(e), tag("span", e.label))
        for e in figure.entries
    ]
    return tag("fieldset", tag("legend", f"Curves shown in: {figure.title}"), *labels, class_="curves")


def swatch(entry: Entry) -> Markup:
    """A piece of the curve."""
    dash = " ".join(map(str, DASH)) if entry.dashed else None
    line = tag("path", d="M1,7H25", stroke="currentColor", stroke_width=2, stroke_dasharray=dash)
    mark = (
        ""
        if entry.dashed
        else tag("path", d=shape(entry.index), fill="currentColor", transform="translate(13,7) scale(8)")
    )
    return tag(
        "svg", line, mark, class_=f"swatch s{entry.index}", viewBox="0 0 26 14", width=26, height=14, aria_hidden="true"
    )
