"""Tables of what a diagnosis found out about the state: the numbers behind the figures."""

from __future__ import annotations

from lengthen.reporting.numbers import number, percent_with_error, with_error
from lengthen.reporting.points import short_names
from lengthen.reporting.tabulation import Table
from lengthen.results import Diagnosis


def remembrance_table(diagnosis: Diagnosis) -> Table | None:
    """Effective remembrance, a row per number of last tokens kept and a column per end."""
    if diagnosis.remembrance is None:
        return None
    points = {(p.end - p.start, p.end): p for p in diagnosis.remembrance.points if p.start > 0}
    ends = sorted({end for _, end in points})
    rows = [
        [
            f"{kept:,}",
            *(with_error(p.mean, p.stderr) if (p := points.get((kept, end))) else number(None) for end in ends),
        ]
        for kept in sorted({kept for kept, _ in points})
    ]
    note = (
        "Effective remembrance: total variation between the predictions of the next token from all tokens and from the "
        "last ones alone, ± its standard error. 0: what was dropped does not matter; 1: nothing is left of the prediction."
    )
    columns = ["last tokens kept", *(f"of {end:,}" for end in ends)]
    return Table("What still counts of the past", columns, rows, frozenset(), note)


def drift_table(diagnosis: Diagnosis) -> Table | None:
    """How many heads lie outside what training shows, a row per layer and a column per position."""
    drift = diagnosis.drift
    if drift is None:
        return None
    layers = short_names(list(dict.fromkeys(h.layer for h in drift.heads)))
    positions = sorted({h.position for h in drift.heads})
    rows = []
    for layer, called in layers.items():
        found = [[h.outside for h in drift.heads if (h.layer, h.position) == (layer, at)] for at in positions]
        rows.append([called, *(f"{sum(outside)} of {len(outside)}" for outside in found)])
    note = (
        f"A head is outside where its states lie farther from those of {drift.windows:,} training windows than states from "
        f"within the training context do by chance (in any head, {100 * drift.level:g} % of the time)."
    )
    return Table("Heads outside what training shows", ["layer", *(f"at {p:,}" for p in positions)], rows, note=note)


def patching_table(diagnosis: Diagnosis) -> Table | None:
    """Shares of the excess loss by layer, then by head of the first layer."""
    patching = diagnosis.patching
    if patching is None:
        return None
    called = short_names([p.layer for p in patching.patches if p.head is None])
    rows = [
        [
            called.get(p.layer, p.layer) + ("" if p.head is None else f", head {p.head}"),
            percent_with_error(p.share, p.stderr),
        ]
        for p in patching.patches
    ]
    note = (
        f"Patched at position {patching.position:,} and judged up to {patching.end:,}: excess loss "
        f"{with_error(patching.excess, patching.excess_stderr)} over {patching.n} sequences."
    )
    return Table("State patching", ["state of", "share of the excess loss"], rows, note=note)
