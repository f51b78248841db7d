"""Several interventions at once, each on its share of the lanes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lengthen.errors import InputError
from lengthen.interventions.base import Intervention, Rows
from lengthen.state import RecurrentState


class Mixture(Intervention):
    """Several interventions, each on its own share of the lanes, in order of lane ids.

    parts: (intervention, share) pairs; shares add up to 1. Raises InputError if a part gets no lane.
    """

    name = "mixture"

    def __init__(self, parts: Sequence[tuple[Intervention, float]]) -> None:
        whole = abs(sum(share for _, share in parts) - 1) <= 1e-6
        if not (whole and all(share > 0 for _, share in parts)):
            raise InputError(
                f"The shares {[share for _, share in parts]} of a mixture must be above 0 and add up to 1."
            )
        self.parts = list(parts)

    def initial_state(self, rows: Rows, zero: RecurrentState) -> RecurrentState:
        state = zero
        for intervention, mine, inner in self._split(rows):
            if not len(mine):
                intervention.advance(rows.step, zero)
                continue
            given = intervention.initial_state(inner, zero.index(mine))
            if given is not None:
                everywhere = torch.zeros(len(rows), dtype=torch.long)
                everywhere[mine] = torch.arange(len(mine))
                chosen = torch.zeros(len(rows), dtype=torch.bool)
                chosen[mine] = True
                state = given.index(everywhere).where(chosen, state)
        return state

    def observe(self, rows: Rows, final_state: RecurrentState) -> None:
        for intervention, mine, inner in self._split(rows):
            if len(mine):
                intervention.observe(inner, final_state.index(mine))

    def _split(self, rows: Rows) -> list[tuple[Intervention, Tensor, Rows]]:
        edges = [0]
        for _, share in self.parts:
            edges.append(edges[-1] + share)  # type: ignore[arg-type]
        bounds = [round(edge * rows.lanes) for edge in edges]
        split = []
        for (intervention, share), low, high in zip(self.parts, bounds, bounds[1:]):
            if low == high:
                raise InputError(f"A share of {share} of {rows.lanes} lanes is no lane at all; use more rows a step.")
            mine = ((rows.lane >= low) & (rows.lane < high)).nonzero().flatten().cpu()
            inner = rows.index(mine)
            inner = replace(inner, lane=inner.lane - low, lanes=high - low, origin=rows.origin + low)
            split.append((intervention, mine, inner))
        return split

    def save(self, directory: str | Path) -> None:
        for i, (intervention, _) in enumerate(self.parts):
            (Path(directory) / f"part-{i}").mkdir(parents=True, exist_ok=True)
            intervention.save(Path(directory) / f"part-{i}")

    def load(self, directory: str | Path) -> None:
        for i, (intervention, _) in enumerate(self.parts):
            intervention.load(Path(directory) / f"part-{i}")

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "parts": [{**i.describe(), "share": share} for i, share in self.parts]}
