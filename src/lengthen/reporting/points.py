"""What the figures draw: results as rows of plain values, one row a point. Everything a figure computes is here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lengthen.reporting.numbers import between, number, percent, percents, told_as, value_of, with_error
from lengthen.reporting.run_folder import Findings, arm_label

Row = dict[str, Any]
CARRIED, RESET = "state carried", "reset baseline"
LOSS_POINTS = 50
BAND = 2.0
"""Standard errors to either side of a curve."""


def series_of(findings: Findings) -> list[str]:
    """Every curve's name, in the order that fixes its colour in all figures."""
    studied = [row.setting[1] for study in findings.studies.values() for row in study.rows]
    contests = [
        *findings.rivals.values(),
        *(t for s in findings.rival_studies.values() for b in s.bases.values() for t in b),
    ]
    rival_models = [row.model for table in contests for row in table.rivals]
    return list(dict.fromkeys([*findings.diagnoses, *findings.trainings, *studied, *rival_models]))


def has_reset_curve(findings: Findings, name: str) -> bool:
    """Of a demonstration's arms two baselines are drawn: before post-training and the control's."""
    return name not in findings.arms() or name in {arm_label("before"), arm_label("control")}


def entry(name: str, kind: str) -> str:
    """What a curve is called in the page's legend."""
    return name if kind == CARRIED else f"{name}, reset"


def measure_of(findings: Findings) -> str:
    """What losses are told as: perplexity where all are cross-entropy, else the mean loss under its own name."""
    kinds = {d.loss for d in findings.diagnoses.values()}
    return told_as(kinds.pop()) if len(kinds) == 1 else "loss"


def position_points(findings: Findings) -> list[Row]:
    """A point per range of positions and curve, at the range's middle; a loss that is not finite gives None."""
    value = value_of if measure_of(findings) != "loss" else (lambda loss, kind: loss)
    rows = []
    for name, diagnosis in findings.diagnoses.items():
        kinds = [CARRIED, RESET] if has_reset_curve(findings, name) else [CARRIED]
        for kind in kinds:
            for b in diagnosis.buckets:
                loss, stderr = (b.loss, b.stderr) if kind == CARRIED else (b.own_reset_loss, b.own_reset_stderr)
                mean = value(loss, diagnosis.loss)
                low, high = (finite(value(edge, diagnosis.loss)) for edge in (b.low, b.high))
                error = stderr * mean if told_as(diagnosis.loss) == "perplexity" else stderr
                rows.append(
                    {
                        "series": name,
                        "kind": kind,
                        "entry": entry(name, kind),
                        "position": (b.start + b.end) / 2,
                        "positions": f"{b.start:,} to {b.end:,}",
                        "value": finite(mean),
                        "low": low if kind == CARRIED else None,
                        "high": high if kind == CARRIED else None,
                        "told": with_error(mean, error),
                        "band": between(low, high),
                        "sequences": b.n,
                        "train_context": diagnosis.train_context,
                    }
                )
    return rows


def remembrance_points(findings: Findings) -> list[Row]:
    """A point per end, start and curve."""
    return [
        {
            "series": name,
            "entry": name,
            "panel": f"{p.end:,} tokens",
            "end": p.end,
            "kept": p.end - p.start,
            "value": p.mean,
            "low": finite(max(0.0, p.mean - BAND * p.stderr)),
            "high": finite(min(1.0, p.mean + BAND * p.stderr)),
            "told": with_error(p.mean, p.stderr),
            "sequences": p.n,
        }
        for name, diagnosis in findings.diagnoses.items()
        if diagnosis.remembrance is not None
        for p in diagnosis.remembrance.points
    ]


def certificate_points(findings: Findings) -> list[Row]:
    """Each certified run against its yardstick, and before and control (once) against their own, a point per bucket."""
    rows: dict[tuple[str, int], Row] = {}
    for c in findings.certificates:
        named = {"before": c.before, "after": c.after, "control": c.control}
        yardstick = "before reset" if c.control is None else "control reset"
        wanted = {("before", "before reset"), ("after", yardstick), ("control", "control reset")}
        for d in c.curves:
            if (d.of, d.against) in wanted:
                series = named[d.of] or d.of
                low, high = (None if edge is None else finite(1 + edge) for edge in (d.change_low, d.change_high))
                rows[series, d.start] = {
                    "series": series,
                    "entry": series,
                    "against": d.against,
                    "position": (d.start + d.end) / 2,
                    "positions": f"{d.start:,} to {d.end:,}",
                    "value": finite(1 + d.change),
                    "low": low,
                    "high": high,
                    "told": percent(d.change),
                    "band": percents(d.change_low, d.change_high),
                    "train_context": c.train_context,
                }
    return list(rows.values())


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
