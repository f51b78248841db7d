"""Colours, marks and the charts' look: the same series looks the same in every figure of a run, in light and in dark.

The colours of a palette keep an OKLab distance of 0.09 from one another under simulated protanopia, deuteranopia and
tritanopia, and a contrast of 3 to 1 with their ground; the shape of the points tells series apart as well. The steps of a ramp differ in lightness,
which any colour vision sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"
FILE_FONT = "Arial, 'Liberation Sans', Helvetica, sans-serif"
"""Of figures' files, whose words are given room before it is known who opens them: fonts of the same widths."""
DASH = [5, 4]
SHAPES = [
    "M0,-.5A.5,.5,0,1,1,0,.5A.5,.5,0,1,1,0,-.5Z",
    "M-.44,-.44L.44,-.44L.44,.44L-.44,.44Z",
    "M0,-.62L.56,.42L-.56,.42Z",
    "M0,-.66L.56,0L0,.66L-.56,0Z",
    "M0,.62L.56,-.42L-.56,-.42Z",
    "M-.2,-.6L.2,-.6L.2,-.2L.6,-.2L.6,.2L.2,.2L.2,.6L-.2,.6L-.2,.2L-.6,.2L-.6,-.2L-.2,-.2Z",
    "M-.7,-.22L.7,-.22L.7,.22L-.7,.22Z",
]
"""Outlines in a box from -1 to 1: disc, square, triangle, diamond, triangle upside down, cross, bar; their number is
no multiple of the colours', so that a colour that returns has another shape."""


@dataclass(frozen=True)
class Theme:
    """One ground and what is drawn on it. colours: of series; ramp: of steps from little to much; on_ramp: of what is
    written on each."""

    name: str
    ground: str
    ink: str
    muted: str
    rule: str
    colours: tuple[str, ...]
    ramp: tuple[str, ...]
    on_ramp: tuple[str, ...]

    def colour(self, index: int) -> str:
        """The colour of the index-th series."""
        return self.colours[index % len(self.colours)]


LIGHT = Theme(
    "light",
    "#ffffff",
    "#1b2430",
    "#5a6675",
    "#dde2e8",
    ("#d55e00", "#1b2430", "#a32ae0", "#8f2d0a", "#15879c", "#2747a8"),
    ("#e9edf2", "#f8cf9c", "#f0a264", "#de6f3c", "#ac3a1e", "#5e0a08"),
    (*["#1b2430"] * 4, *["#ffffff"] * 2),
)
DARK = Theme(
    "dark",
    "#14171c",
    "#e6e9ef",
    "#9aa5b4",
    "#2c333d",
    ("#ff8a3d", "#e6e9ef", "#b44dff", "#c9430f", "#16bccb", "#4a7fb8"),
    ("#222831", "#6e3a2a", "#a9552f", "#dc8136", "#f6b566", "#fff0d6"),
    (*["#ffffff"] * 3, *["#14171c"] * 3),
)


def shape(index: int) -> str:
    """The outline of the index-th series' points."""
    return SHAPES[index % len(SHAPES)]


def chart_config(theme: Theme, series: int, *, legend: bool) -> dict[str, Any]:
    """A Vega-Lite configuration: every colour of a chart comes from here, none from its definition.

    series: how many there are. legend: off on the page, whose own legend switches series.
    """
    return {
        "background": None if not legend else theme.ground,
        "font": FILE_FONT if legend else FONT,
        "view": {"stroke": None},
        "range": {
            "category": [theme.colour(i) for i in range(series)],
            "symbol": [shape(i) for i in range(series)],
            "ordinal": list(theme.ramp),
        },
        "axis": {
            "labelColor": theme.muted,
            "titleColor": theme.muted,
            "gridColor": theme.rule,
            "domainColor": theme.rule,
            "tickColor": theme.rule,
            "labelFontSize": 11,
            "titleFontSize": 12,
            "titleFontWeight": 500,
            "titlePadding": 8,
            "labelPadding": 5,
            "tickSize": 4,
        },
        "axisX": {"grid": False, "labelFlush": False, "labelOverlap": "greedy", "labelSeparation": 8},
        "axisY": {"tickCount": 6, "labelOverlap": True},
        "header": {"labelColor": theme.ink, "labelFontSize": 12, "labelFontWeight": 600, "labelAnchor": "start"},
        "legend": {
            "disable": not legend,
            "orient": "bottom",
            "layout": {"bottom": {"anchor": "start", "direction": "vertical", "margin": 4}},
            "columns": 4,
            "labelColor": theme.ink,
            "labelFontSize": 12,
            "labelLimit": 420,
            "symbolSize": 90,
            "symbolStrokeWidth": 2,
            "symbolOpacity": 1,
            "rowPadding": 4,
            "columnPadding": 18,
            "symbolFillColor": theme.muted,
            "titleColor": theme.muted,
            "titleFontSize": 12,
            "titleFontWeight": 500,
            "titleLimit": 420,
        },
        "style": {
            "training-context": {"color": theme.muted, "strokeDash": [2, 3]},
            "cell": {"stroke": theme.ground, "strokeWidth": 1},
            "outlined": {"color": theme.ink, "strokeWidth": 2},
            **{f"on-step-{i}": {"color": colour, "fontSize": 11} for i, colour in enumerate(theme.on_ramp)},
            "training-context-label": {"color": theme.muted, "fontSize": 11},
        },
    }
