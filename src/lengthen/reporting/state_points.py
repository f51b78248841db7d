"""What the figures of the recurrent state draw: its statistics, its drift, how long it remembers, what patching it shows.

A part is a layer, or a layer and one of its tensors where a layer has several.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lengthen.reporting.numbers import number, percent_with_error, with_error
from lengthen.reporting.points import Row, finite, short_names
from lengthen.reporting.run_folder import Findings
from lengthen.results import HeadDrift, Patch

ALL = "all"
"""The choice of all layers, or of all heads of one."""
STATISTICS = {"std": "standard deviation", "norm": "norm", "largest": "largest entry"}
BANDS = ((1, "within"), (4, "up to 4 ×"), (16, "up to 16 ×"), (64, "up to 64 ×"), (256, "up to 256 ×"))
BEYOND = "over 256 ×"
"""How far a head is outside: its distance as a multiple of the limit."""
SHARES = 12
"""Layers, and heads, of a patching that are drawn."""


def parts_of(findings: Findings) -> dict[tuple[str, str], str]:
    """(layer, tensor) -> the part's name, in the models' order."""
    found: dict[tuple[str, str], None] = {}
    for d in findings.diagnoses.values():
        heads: list[Any] = [*d.states, *(d.drift.heads if d.drift else []), *(d.drift.forgetting if d.drift else [])]
        found |= {(h.layer, h.tensor): None for h in heads}
    layers = short_names(list(dict.fromkeys(layer for layer, _ in found)))
    several = {layer for layer, _ in found if sum(other == layer for other, _ in found) > 1}
    return {
        (layer, tensor): f"{layers[layer]}: {tensor}" if layer in several else layers[layer] for layer, tensor in found
    }


def heads_of(findings: Findings) -> int:
    """The most heads a part has."""
    return 1 + max((h.head for d in findings.diagnoses.values() for h in d.states), default=-1)


def statistics_points(findings: Findings) -> list[Row]:
    """The state's statistics over positions: of every head, over the heads of a part, and over all of a tensor's."""
    parts = parts_of(findings)
    rows = []
    for name, diagnosis in findings.diagnoses.items():
        groups: dict[tuple[str, str, str, int], list[Any]] = {}
        for s in diagnosis.states:
            part = parts[s.layer, s.tensor]
            for chosen in {(ALL, ALL), (part, ALL), (part, str(s.head))}:
                groups.setdefault((*chosen, s.tensor, s.position), []).append(s)
        for (layer, head, tensor, position), states in groups.items():
            for statistic in STATISTICS:
                values = [getattr(s, statistic) for s in states]
                value = finite(max(values) if statistic == "largest" else sum(values) / len(values))
                rows.append(
                    {
                        "series": name,
                        "entry": name,
                        "statistic": statistic,
                        "layer": layer,
                        "head": head,
                        "panel": tensor,
                        "position": position,
                        "value": value,
                        "told": number(value),
                        "train_context": diagnosis.train_context,
                    }
                )
    return rows


def drift_points(findings: Findings) -> list[Row]:
    """Cells of the heat map: a row per part, its farthest head; and per head of each part."""
    parts = parts_of(findings)
    rows = []
    for name, diagnosis in findings.diagnoses.items():
        if diagnosis.drift is None:
            continue
        groups: dict[tuple[str, str, int], list[HeadDrift]] = {}
        for h in diagnosis.drift.heads:
            part = parts[h.layer, h.tensor]
            groups.setdefault((ALL, part, h.position), []).append(h)
            groups.setdefault((part, f"head {h.head}", h.position), []).append(h)
        for (layer, row, position), heads in groups.items():
            farthest = max(heads, key=_times)
            rows.append(
                {
                    "run": name,
                    "panel": name,
                    "layer": layer,
                    "row": row,
                    "head": str(farthest.head),
                    "position": position,
                    "band": band(_times(farthest)),
                    "told": f"{number(farthest.distance)} standard deviations, limit {number(farthest.limit)}",
                }
            )
    return rows


def band(times: float) -> str:
    """How far outside, in words."""
    return next((name for edge, name in BANDS if times <= edge), BEYOND)


def forgetting_points(findings: Findings) -> list[Row]:
    """A point per head that forgets within a usable measure."""
    parts = parts_of(findings)
    return [
        {
            "series": name,
            "entry": name,
            "layer": parts[f.layer, f.tensor],
            "head": f"head {f.head}",
            "tokens": f.tokens,
            "told": with_error(f.tokens, f.stderr),
            "train_context": diagnosis.train_context,
        }
        for name, diagnosis in findings.diagnoses.items()
        if diagnosis.drift is not None
        for f in diagnosis.drift.forgetting
        if f.tokens is not None and math.isfinite(f.tokens) and f.tokens > 0
    ]


def patching_points(findings: Findings) -> list[Row]:
    """The layers, then the heads of the first, whose states carry the largest shares of a run's excess loss."""
    rows = []
    for name, diagnosis in findings.diagnoses.items():
        patching = diagnosis.patching
        if patching is None:
            continue
        layers = [p for p in patching.patches if p.head is None]
        heads = [p for p in patching.patches if p.head is not None]
        called = short_names([p.layer for p in layers])
        for patches in (layers, heads):
            rows += [_patch_row(name, called, p) for p in patches[:SHARES] if math.isfinite(p.share)]
    return rows


def columns(rows: Sequence[Row]) -> dict[str, Any]:
    """Rows as columns, in a fraction of the space: a field with few values as those and where each stands, numbers to
    five digits."""
    found: dict[str, Any] = {}
    for name in rows[0] if rows else ():
        cells = [float(f"{r[name]:.5g}") if isinstance(r[name], float) else r[name] for r in rows]
        values = list(dict.fromkeys(cells))
        places = {value: i for i, value in enumerate(values)}
        found[name] = {"values": values, "at": [places[c] for c in cells]} if 2 * len(values) < len(cells) else cells
    return {"count": len(rows), "fields": found}


def _times(head: HeadDrift) -> float:
    return head.distance / head.limit if head.limit > 0 else math.inf if head.distance > 0 else 0.0


def _patch_row(name: str, called: dict[str, str], patch: Patch) -> Row:
    error = patch.stderr if math.isfinite(patch.stderr) else 0.0  # how wide the interval is drawn
    return {
        "series": name,
        "patched": name,
        "panel": name,
        "row": called[patch.layer] + ("" if patch.head is None else f", head {patch.head}"),
        "value": patch.share,
        "low": patch.share - 2 * error,
        "high": patch.share + 2 * error,
        "told": percent_with_error(patch.share, patch.stderr),
    }
