"""write_report(): a run folder's results to its page and figures."""

from __future__ import annotations

import functools
from pathlib import Path

import altair as alt
import vl_convert

from lengthen.reporting.figures import Figure, figures
from lengthen.reporting.page import page
from lengthen.reporting.palette import LIGHT, chart_config
from lengthen.reporting.run_folder import read_run
from lengthen.results import write_bytes, write_text

VEGA_LITE = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
PNG_SCALE = 2


def write_report(folder: str | Path) -> Path:
    """Writes figures/*.png, figures/*.svg and report.html from results/*.json, and returns the page's path.

    The page is one file that needs neither network nor server. Raises InputError where the folder holds no results, one
    of them is damaged, or the folder cannot be written, RunError where the disk is full.
    """
    folder = Path(folder)
    findings = read_run(folder)
    made = figures(findings)
    for figure in made:
        draw(figure, folder / "figures")
    return write_text(folder / "report.html", page(findings, made, chart_script()))


def draw(figure: Figure, folder: Path) -> None:
    """Writes one figure as PNG (two pixels a point) and SVG, on white."""
    config = chart_config(LIGHT, figure.series, legend=True)
    svg = vl_convert.vegalite_to_svg(figure.spec, vl_version=VEGA_LITE, config=config, allowed_base_urls=[])
    png = vl_convert.svg_to_png(svg, scale=PNG_SCALE)
    write_bytes(folder / f"{figure.name}.png", png)
    write_text(folder / f"{figure.name}.svg", svg + "\n")


@functools.cache
def chart_script() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script."""
    # Its stub asks for the snippet that it does without.
    return vl_convert.javascript_bundle(vl_version=VEGA_LITE)  # type: ignore[call-arg]
