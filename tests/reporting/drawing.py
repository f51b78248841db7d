"""A figure as it is drawn, in either theme: its marks with their places and colours, and its words."""

from collections import defaultdict
from typing import Any

import numpy as np
import vl_convert

from lengthen.reporting.charts import Figure
from lengthen.reporting.palette import LIGHT, Theme, chart_config
from lengthen.reporting.writing import VEGA_LITE

Drawn = dict[tuple[str, str | None], list[dict[str, Any]]]


def drawn(figure: Figure, theme: Theme = LIGHT) -> Drawn:
    """(kind, role) -> all items of it, in the order they are drawn; ("symbol", "mark") are a chart's points."""
    found: Drawn = defaultdict(list)

    def visit(node: dict[str, Any]) -> None:
        if "marktype" in node:
            found[node["marktype"], node.get("role")] += node.get("items", [])
        for item in node.get("items", []):
            visit(item)

    config = chart_config(theme, figure.series, legend=True)
    visit(vl_convert.vegalite_to_scenegraph(figure.spec, vl_version=VEGA_LITE, config=config)["scenegraph"])
    return found


def words(found: Drawn, role: str) -> list[str]:
    """What is written in a role, such as "axis-title"."""
    return [item["text"] for item in found["text", role]]


def places(items: list[dict[str, Any]], axis: str) -> list[float]:
    """Where items stand along "x" or "y", in points from the left or the top of their panel."""
    return [item.get(axis, 0.0) for item in items]


def scale(values: Any, at: list[float]) -> np.poly1d:
    """Value -> place, where places are linear in these values; fails where they are not, to half a point."""
    fitted = np.poly1d(np.polyfit(values, at, 1))
    assert np.allclose(fitted(values), at, atol=0.5), "the places are not linear in the values"
    return fitted
