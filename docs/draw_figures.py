"""Draws the figures of README and pages, light and dark: python docs/draw_figures.py RUN... writes docs/figures/*.svg.

A RUN is the run folder of `lengthen demo`, which `make figures` makes first, or one of `lengthen study` (chain-depth,
rivals). What the toy's figures show is computed here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "examples"))

import why_models_break as toy  # noqa: E402

from lengthen.reporting.charts import POINT, colour, measure, shape  # noqa: E402
from lengthen.reporting.figures import figures  # noqa: E402
from lengthen.reporting.palette import DARK, DASH, LIGHT, chart_config  # noqa: E402
from lengthen.reporting.run_folder import read_run  # noqa: E402
from lengthen.reporting.writing import VEGA_LITE  # noqa: E402
from lengthen.results import write_text  # noqa: E402

FOLDER = ROOT / "docs" / "figures"
WIDTH = 420
"""Of what is drawn on: narrow enough for a phone to show letters that can be read."""
OF_RUNS = {
    "demo": ("loss-by-position", "certificate", "remembrance", "state-drift", "patching"),
    "study": ("chain-depth-far", "rivals"),
}
"""What a command's pictures are called before their name -> the figures shown of its run folder."""


def draw(name: str, spec: dict[str, Any], series: int) -> None:
    """Writes NAME-light.svg and NAME-dark.svg."""
    for theme in (LIGHT, DARK):
        config = chart_config(theme, series, legend=True)
        svg = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE, config=config, allowed_base_urls=[])
        write_text(FOLDER / f"{name}-{theme.name}.svg", svg + "\n")


def narrow(spec: dict[str, Any]) -> dict[str, Any]:
    """A report's figure in the pages' width, its panels one below the other."""
    if "facet" in spec:
        return spec | {"columns": 1, "spec": spec["spec"] | {"width": WIDTH}}
    return spec | {"width": WIDTH}


def lines(
    name: str,
    rows: list[dict[str, Any]],
    x: alt.X,
    title: str,
    *,
    rules: list[dict[str, Any]] | None = None,
    logarithmic: bool = True,
) -> None:
    """Draws a line a series; rules: horizontal ones of series of the same names, by "value"."""
    y = measure("value", title, logarithmic) if logarithmic else alt.Y("value:Q", title=title)
    told = [*(rules or []), *rows]
    names = list(dict.fromkeys(row["series"] for row in told))
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, y=y, color=colour(names))
    layers = [base.mark_line(strokeWidth=2), base.mark_point(**POINT).encode(shape=shape(names))]
    if rules:
        across = alt.Chart(alt.Data(values=rules)).encode(y=y, color=colour(names))
        layers.append(across.mark_rule(strokeWidth=2, strokeDash=DASH))
    spec = alt.layer(*layers).properties(width=WIDTH, height=240).to_dict()
    for own in ("config", "$schema"):
        spec.pop(own, None)
    draw(name, spec, len(names))


def by_position(found: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Rows of one value a range of positions, each at the middle of its range."""
    return [
        {"series": name, "position": 1.5 * start / toy.T, "value": value}
        for name, values in found.items()
        for start, value in zip(toy.STARTS, values)
    ]


def main(*runs: str) -> None:
    for run in runs:
        findings = read_run(Path(run))
        command = "demo" if findings.demonstration else "study"
        for figure in figures(findings):
            if figure.name in OF_RUNS[command]:
                draw(f"{command}-{figure.name}", narrow(figure.spec), figure.series)

    ticks = alt.Axis(values=[2**k for k in range(7)], format="d")
    scale = alt.Scale(type="log", base=2, domain=[0.7, 64], nice=False)
    position = alt.X("position:Q", title="position, in training contexts T", scale=scale, axis=ticks)
    seen, reading, missed = toy.coverage()
    rules = [{"series": name, "value": value} for name, value in seen.items()]
    lines("toy-coverage", by_position({"reading on": reading}), position, "slowest unit, largest of 99 %", rules=rules)
    lines("toy-error", by_position(missed), position, "share of the target missed")
    units = alt.X("units:Q", title="slow units", scale=alt.Scale(type="log", base=2), axis=alt.Axis(format="d"))
    rows = [{"series": n, "units": u, "value": v} for u, found in toy.noise().items() for n, v in found.items()]
    lines("toy-noise", rows, units, "share missed at 64 T")
    lines("toy-memory", by_position(toy.memory()), position, "share of the target missed", logarithmic=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
