"""The initial states that studies compare: those of the command line, and chains cut short."""

from __future__ import annotations

import torch
from torch import Tensor

from lengthen.interventions import Intervention, Rows, StatePassing, intervention_named
from lengthen.interventions.state_bank import as_lanes


class ShortChains(StatePassing):
    """State passing in which every lane starts from zero at each depth-th step, the lanes in turn.

    A state has then passed through at most depth - 1 windows before the one it is given to.
    """

    name = "short-chains"

    def __init__(self, depth: int) -> None:
        super().__init__(zero_fraction=0.0)
        self.depth = depth

    def _from_zero(self, rows: Rows) -> Tensor:
        return torch.tensor([(rows.step + lane) % self.depth == 0 for lane in as_lanes(rows.lane)])


def intervention_of(text: str, seed: int) -> Intervention:
    """What a setting's intervention says: as on the command line, or short-chains:depth=D."""
    name, _, depth = text.partition(":depth=")
    return ShortChains(int(depth)) if name == ShortChains.name else intervention_named(text, seed)
