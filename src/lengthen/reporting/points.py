"""What the figures draw: results as rows of plain values, one row a point. Everything a figure computes is here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from lengthen.reporting.numbers import number, perplexity_of, with_error
from lengthen.reporting.run_folder import Findings, arm_label
from lengthen.results import Diagnosis

Row = dict[str, Any]
CARRIED, RESET = "state carried", "reset baseline"
LOSS_POINTS = 50
BAND = 2.0
"""Standard errors to either side of a curve."""


def series_of(findings: Findings) -> list[str]:
    """Every curve's name, in the order that fixes its colour in all figures."""
    return list(dict.fromkeys([*findings.diagnoses, *findings.trainings]))


def has_reset_curve(findings: Findings, name: str) -> bool:
    """Of a demonstration's arms two baselines are drawn: before post-training and the control's."""
    return name not in findings.arms() or name in {arm_label("before"), arm_label("control")}


def entry(name: str, kind: str) -> str:
    """What a curve is called in the page's legend."""
    return name if kind == CARRIED else f"{name}, reset"


def perplexity_points(findings: Findings) -> list[Row]:
    """A point per range of positions and curve, at the range's middle; a loss that is not finite gives None."""
    rows = []
    for name, diagnosis in findings.diagnoses.items():
        kinds = [CARRIED, RESET] if has_reset_curve(findings, name) else [CARRIED]
        for kind in kinds:
            for b in diagnosis.buckets:
                loss, stderr = (b.loss, b.stderr) if kind == CARRIED else (b.own_reset_loss, b.own_reset_stderr)
                perplexity = perplexity_of(loss)
                rows.append(
                    {
                        "series": name,
                        "kind": kind,
                        "entry": entry(name, kind),
                        "position": (b.start + b.end) / 2,
                        "positions": f"{b.start:,} to {b.end:,}",
                        "perplexity": finite(perplexity),
                        "low": finite(perplexity_of(loss - BAND * stderr)),
                        "high": finite(perplexity_of(loss + BAND * stderr)),
                        "value": with_error(perplexity, perplexity * stderr),
                        "sequences": b.n,
                        "train_context": diagnosis.train_context,
                    }
                )
    return rows


def spread_points(findings: Findings) -> list[Row]:
    """Standard deviation of the recurrent state, the mean over layers and heads of each tensor."""
    return [
        _spread_row(name, diagnosis, tensor, position, values)
        for name, diagnosis in findings.diagnoses.items()
        for (tensor, position), values in _grouped((s.tensor, s.position, s.std) for s in diagnosis.states).items()
    ]


def layer_spread_points(findings: Findings) -> list[Row]:
    """The same layer by layer: the mean over heads."""
    layers = short_names(list(dict.fromkeys(s.layer for d in findings.diagnoses.values() for s in d.states)))
    tensors = {s.tensor for d in findings.diagnoses.values() for s in d.states}
    rows = []
    for name, diagnosis in findings.diagnoses.items():
        titled = (
            (layers[s.layer] if len(tensors) == 1 else f"{layers[s.layer]}: {s.tensor}", s.position, s.std)
            for s in diagnosis.states
        )
        for (panel, position), values in _grouped(titled).items():
            rows.append(_spread_row(name, diagnosis, panel, position, values))
    return rows


def loss_block(steps: int) -> int:
    """How many steps a point of the loss curve stands for."""
    return max(1, math.ceil(steps / LOSS_POINTS))


def loss_points(findings: Findings) -> list[Row]:
    """Training loss as means over blocks of steps. A demonstration's first run, from random weights, has its own panel."""
    arms = findings.arms()
    rows = []
    for name, record in findings.trainings.items():
        panel = "Training" if name not in arms else "Pre-training" if name == arm_label("before") else "Post-training"
        size = loss_block(len(record.losses))
        for start in range(0, len(record.losses), size):
            block = record.losses[start : start + size]
            loss = finite(sum(block) / len(block))
            rows.append(
                {
                    "series": name,
                    "entry": name,
                    "panel": panel,
                    "step": start + (len(block) + 1) / 2,
                    "steps": f"{start + 1:,} to {start + len(block):,}",
                    "loss": loss,
                    "value": number(loss, 4),
                }
            )
    return rows


def short_names(layers: Sequence[str]) -> dict[str, str]:
    """Layer names without what all of them share; a number alone becomes "layer 3"."""
    if len(layers) < 2:
        return {layer: layer for layer in layers}
    parts = [layer.split(".") for layer in layers]
    head = _shared(parts)
    tail = _shared([p[head:][::-1] for p in parts])
    short = [".".join(p[head : len(p) - tail]) for p in parts]
    return {layer: f"layer {s}" if s.isdecimal() else s or layer for layer, s in zip(layers, short)}


def finite(value: float) -> float | None:
    """The value, or None where it is not finite: JSON has no such numbers and a curve breaks there."""
    return value if math.isfinite(value) else None


def _shared(lists: Sequence[list[str]]) -> int:
    """How many first items all lists have in common."""
    return next((i for i, items in enumerate(zip(*lists)) if len(set(items)) > 1), min(map(len, lists)))


def _spread_row(name: str, diagnosis: Diagnosis, panel: str, position: int, values: list[float]) -> Row:
    std = finite(sum(values) / len(values))
    return {
        "series": name,
        "entry": name,
        "panel": panel,
        "position": position,
        "std": std,
        "value": number(std),
        "train_context": diagnosis.train_context,
    }


def _grouped(values: Iterable[tuple[str, int, float]]) -> dict[tuple[str, int], list[float]]:
    groups: dict[tuple[str, int], list[float]] = {}
    for panel, position, value in values:
        groups.setdefault((panel, position), []).append(value)
    return groups
