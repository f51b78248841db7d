"""The initial states that studies compare: those of the command line, mixtures of them, and variants tried there alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lengthen.interventions import TBPTT, Intervention, Mixture, Rows, StatePassing, intervention_named
from lengthen.interventions.state_bank import as_lanes
from lengthen.state import RecurrentState


class ShortChains(StatePassing):
    """State passing in which every lane starts from zero at each depth-th step, the lanes in turn.

    A state has then passed through at most depth - 1 windows before the one it is given to.
    """

    name = "short-chains"

    def __init__(self, depth: float) -> None:
        super().__init__(zero_fraction=0.0)
        self.depth = depth

    def _from_zero(self, rows: Rows) -> Tensor:
        return torch.tensor([(rows.step + lane) % self.depth == 0 for lane in as_lanes(rows.lane)])


class RampedPassing(StatePassing):
    """State passing whose zero rows grow from none to the share `last` over so many steps."""

    name = "ramped-passing"

    def __init__(self, last: float, steps: float) -> None:
        super().__init__(zero_fraction=0.0)
        self.last, self.steps = last, steps

    def _from_zero(self, rows: Rows) -> Tensor:
        share = self.last * min(1.0, rows.step / self.steps)
        return torch.tensor([lane < round(share * rows.lanes) for lane in as_lanes(rows.lane)])


class KeptStates(TBPTT):
    """TBPTT that keeps the state where a lane goes on to another document: long chains over text that mostly continues."""

    name = "kept-states"

    def initial_state(self, rows: Rows, zero: RecurrentState) -> RecurrentState:
        return self.bank.get(as_lanes(rows.lane), zero)


VARIANTS: dict[str, Callable[..., Intervention]] = {
    kind.name: kind for kind in (ShortChains, RampedPassing, KeptStates)
}


def intervention_of(text: str, seed: int) -> Intervention:
    """What a setting's intervention says: a name with settings, as on the command line or of VARIANTS, or a mixture such
    as "0.25 zero + 0.75 tbptt". Raises InputError for anything else."""
    parts = text.split(" + ")
    if len(parts) > 1:
        shared = [part.split(" ", 1) for part in parts]
        return Mixture([(intervention_of(named, seed), float(share)) for share, named in shared])
    name, _, rest = text.partition(":")
    if name not in VARIANTS:
        return intervention_named(text, seed)
    settings = dict(item.split("=") for item in filter(None, rest.split(",")))
    return VARIANTS[name](**{key: float(value) for key, value in settings.items()})
