"""Initial states that earlier windows ended with: of unrelated sequences (state passing) or of the same (TBPTT)."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from lengthen.errors import InputError
from lengthen.interventions.base import Intervention, Rows
from lengthen.interventions.draws import uniform
from lengthen.interventions.state_bank import Provenance, StateBank, as_lanes
from lengthen.state import RecurrentState


class StatePassing(Intervention):
    """The final state of an unrelated sequence: the lane's own previous state over shuffled windows, detached.

    zero_fraction: this share of the lanes (those with the lowest ids) always starts from zero, which keeps the loss at
    the start of a text low. p_zero: each other row starts from zero with this probability, so that a passed state has
    1 / p_zero windows behind it at most on average, and all ages up to that are seen throughout the run; 0: as in the
    paper, states grow as old as the run. window_state: whether the window state (convolution inputs) is passed too.
    device: where the bank of states is kept. Both defaults are those of `lengthen study default`.
    """

    name = "state-passing"

    def __init__(
        self,
        zero_fraction: float = 0.25,
        p_zero: float = 0.02,
        window_state: bool = False,
        seed: int = 0,
        device: str | None = None,
    ) -> None:
        for name, value in (("zero_fraction", zero_fraction), ("p_zero", p_zero)):
            if not 0 <= value <= 1:
                raise InputError(f"{name} is {value}; give a number from 0 to 1.")
        self.zero_fraction, self.p_zero, self.window_state, self.seed = zero_fraction, p_zero, window_state, seed
        self.bank = StateBank(device)

    def initial_state(self, rows: Rows, zero: RecurrentState) -> RecurrentState:
        if self.zero_fraction > 0 and _share(self.zero_fraction, rows.lanes) == 0:
            raise InputError(
                f"zero_fraction {self.zero_fraction} of {rows.lanes} lanes is no lane at all; use at least "
                f"{math.ceil(1 / self.zero_fraction)} rows a step, or set zero_fraction to 0."
            )
        lanes = as_lanes(rows.lane)
        state = self.bank.get(lanes, zero)
        if state is zero:
            return zero
        from_zero = self._from_zero(rows)
        if from_zero.any():
            state = state.zero_rows(from_zero)
            self.bank.swap(lanes, state)
        return state if self.window_state else state.without_window()

    def observe(self, rows: Rows, final_state: RecurrentState) -> None:
        _keep(self.bank, rows, final_state, self._from_zero(rows))

    def _from_zero(self, rows: Rows) -> Tensor:
        """bool [B]: rows whose lane always starts from zero, or is drawn to in this step."""
        zero_lanes = _share(self.zero_fraction, rows.lanes)
        lanes = as_lanes(rows.lane)
        drawn = [self.p_zero > 0 and uniform(self.seed, rows.step, rows.origin + lane) < self.p_zero for lane in lanes]
        return torch.tensor([lane < zero_lanes or zero for lane, zero in zip(lanes, drawn)])

    def save(self, directory: str | Path) -> None:
        self.bank.save(directory)

    def load(self, directory: str | Path) -> None:
        self.bank.load(directory)


class TBPTT(Intervention):
    """Truncated backpropagation through time: the lane's previous final state, as its window continues that document.

    The state is zero exactly where a document starts. Raises InputError on shuffled rows, which continue nothing.
    """

    name = "tbptt"

    def __init__(self, device: str | None = None) -> None:
        self.bank = StateBank(device)

    def initial_state(self, rows: Rows, zero: RecurrentState) -> RecurrentState:
        if rows.shuffled:
            raise InputError("TBPTT was given shuffled rows, which do not continue each other; train it on lanes.")
        state = self.bank.get(as_lanes(rows.lane), zero)
        if bool(rows.start.any()):
            state = state.zero_rows(rows.start.cpu())
            self.bank.swap(as_lanes(rows.lane), state)
        return state

    def observe(self, rows: Rows, final_state: RecurrentState) -> None:
        _keep(self.bank, rows, final_state, rows.start)

    def save(self, directory: str | Path) -> None:
        self.bank.save(directory)

    def load(self, directory: str | Path) -> None:
        self.bank.load(directory)


def _share(fraction: float, lanes: int) -> int:
    """floor(fraction x lanes), the product taken as the decimal number it is meant to be."""
    return math.floor(fraction * lanes + 1e-9)


def _keep(bank: StateBank, rows: Rows, final_state: RecurrentState, from_zero: Tensor) -> None:
    lanes = as_lanes(rows.lane)
    documents = as_lanes(rows.document) if rows.document is not None else [-1] * len(lanes)
    offsets = as_lanes(rows.offset) if rows.offset is not None else [-1] * len(lanes)
    fresh = from_zero.tolist()
    provenance = [
        Provenance(
            documents[i],
            offsets[i] + rows.tokens if offsets[i] >= 0 else -1,
            rows.tokens + (0 if fresh[i] or lane not in bank else bank.provenance(lane).age),
        )
        for i, lane in enumerate(lanes)
    ]
    bank.put(lanes, final_state, provenance)
