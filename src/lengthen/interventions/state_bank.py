"""The last final state of every lane, with where it came from: what state passing and TBPTT start the next window from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from lengthen.errors import InputError
from lengthen.state import RecurrentState


@dataclass(frozen=True)
class Provenance:
    """Where a lane's state comes from: the document and offset it ended at (-1: not known), its age in tokens."""

    document: int = -1
    offset: int = -1
    age: int = 0


class StateBank:
    """Final states by lane. A state put in is kept as it is (detached), never written to: nothing can corrupt it.

    device: where states are kept (None: where they come from; "cpu" frees the accelerator's memory).
    """

    def __init__(self, device: torch.device | str | None = None) -> None:
        self.device = device
        self._rows: dict[int, tuple[RecurrentState, int]] = {}
        self._provenance: dict[int, Provenance] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, lane: int) -> bool:
        return lane in self._rows

    @property
    def lanes(self) -> list[int]:
        return sorted(self._rows)

    def provenance(self, lane: int) -> Provenance:
        return self._provenance[lane]

    def put(self, lanes: Sequence[int], state: RecurrentState, provenance: Sequence[Provenance] | None = None) -> None:
        """Keeps row i of the state as the state of lanes[i]."""
        if len(lanes) != state.rows or len(set(lanes)) != len(lanes):
            raise InputError(
                f"{state.rows} rows of a state do not fit the lanes {list(lanes)}; give each row one lane."
            )
        kept = state.detach() if self.device is None else state.detach().to(self.device)
        for row, lane in enumerate(lanes):
            self._rows[lane] = (kept, row)
            self._provenance[lane] = provenance[row] if provenance is not None else Provenance()

    def swap(self, lanes: Sequence[int], state: RecurrentState) -> None:
        """Keeps row i of the state in place of what lanes[i] has, so that a step holds one copy and not two.

        Nothing where states are kept on another device, or a lane has none.
        """
        for row, lane in enumerate(lanes):
            if lane in self._rows and self._rows[lane][0].device == state.device:
                self._rows[lane] = (state, row)

    def get(self, lanes: Sequence[int], zero: RecurrentState) -> RecurrentState:
        """The states of these lanes on zero's device, zero's rows where a lane has none yet."""
        if not any(lane in self._rows for lane in lanes):
            return zero
        parts: list[RecurrentState] = []
        run: tuple[RecurrentState, list[int]] | None = None
        for i, lane in enumerate(lanes):  # neighbours in one kept state are taken together
            source, row = self._rows.get(lane, (zero, i))
            if run is not None and run[0] is source:
                run[1].append(row)
            else:
                if run is not None:
                    parts.append(_rows_of(*run))
                run = (source, [row])
        assert run is not None
        parts.append(_rows_of(*run))
        for part in parts:
            part.require_layout(zero)
        together = parts[0] if len(parts) == 1 else RecurrentState.concatenate([p.to(zero.device) for p in parts])
        return together if together.device == zero.device else together.to(zero.device)

    def save(self, directory: str | Path) -> None:
        """Writes the bank into a directory: bank.safetensors and bank.json; nothing if it is empty."""
        directory = Path(directory)
        if self._rows:
            lanes = self.lanes
            states = RecurrentState.concatenate([_rows_of(*self._rows_list(lane)) for lane in lanes])
            states.save(directory / "bank.safetensors")
            provenance = [asdict(self._provenance[lane]) for lane in lanes]
            (directory / "bank.json").write_text(json.dumps({"lanes": lanes, "provenance": provenance}))

    def load(self, directory: str | Path) -> None:
        """Reads what save() wrote in place of what the bank holds."""
        directory = Path(directory)
        self._rows, self._provenance = {}, {}
        if (directory / "bank.json").exists():
            try:
                found = json.loads((directory / "bank.json").read_text())
                lanes, provenance = found["lanes"], [Provenance(**p) for p in found["provenance"]]
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"The state bank in {directory} cannot be read ({error}).") from None
            self.put(lanes, RecurrentState.load(directory / "bank.safetensors"), provenance)

    def _rows_list(self, lane: int) -> tuple[RecurrentState, list[int]]:
        state, row = self._rows[lane]
        return state, [row]


def _rows_of(state: RecurrentState, rows: list[int]) -> RecurrentState:
    return state if rows == list(range(state.rows)) else state.index(rows)


def as_lanes(lane: Tensor | Sequence[int]) -> list[int]:
    """Lane ids as plain integers."""
    return lane.tolist() if isinstance(lane, Tensor) else list(lane)
