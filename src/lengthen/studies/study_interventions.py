"""The initial states that studies compare: those of the command line, mixtures of them, and chains cut short."""

from __future__ import annotations

import torch
from torch import Tensor

from lengthen.errors import InputError
from lengthen.interventions import Intervention, Mixture, Rows, StatePassing, intervention_named
from lengthen.interventions.state_bank import as_lanes


class ShortChains(StatePassing):
    """State passing in which every lane starts from zero at each depth-th step, the lanes in turn.

    A state has then passed through at most depth - 1 windows before the one it is given to.
    """

    name = "short-chains"

    def __init__(self, depth: int) -> None:
        if depth < 1:
            raise InputError(f"A chain of {depth} windows is none; give at least 1.")
        super().__init__(zero_fraction=0.0)
        self.depth = depth

    def _from_zero(self, rows: Rows) -> Tensor:
        return torch.tensor([(rows.step + lane) % self.depth == 0 for lane in as_lanes(rows.lane)])


def intervention_of(text: str, seed: int) -> Intervention:
    """What a setting's intervention says: a name with settings as on the command line, short-chains:depth=D, or a
    mixture such as "0.75 state-passing:zero_fraction=0 + 0.25 fitted-noise". Raises InputError for anything else."""
    parts = text.split(" + ")
    if len(parts) == 1:
        name, _, depth = text.partition(":depth=")
        return ShortChains(int(depth)) if name == ShortChains.name else intervention_named(text, seed)
    shared = [part.split(" ", 1) for part in parts]
    return Mixture([(intervention_of(named, seed), float(share)) for share, named in shared])
