"""What every intervention is: three verbs, on rows that say which lane they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from lengthen.errors import InputError
from lengthen.state import RecurrentState


@dataclass(frozen=True)
class Rows:
    """The rows of one (micro-)batch.

    lane: int64 [B], global and each once in a step. start: bool [B], the window begins its document. step: the
    optimiser step. lanes: how many lanes there are over all micro-batches and processes. shuffled: rows of
    consecutive steps do not continue each other. tokens: positions of a window. document, offset: int64 [B] or None.
    origin: what lane ids count from, so that draws differ between the parts of a mixture.
    """

    lane: Tensor
    start: Tensor
    step: int
    lanes: int
    shuffled: bool
    tokens: int = 0
    document: Tensor | None = None
    offset: Tensor | None = None
    origin: int = 0

    @staticmethod
    def of(batch: Mapping[str, Any], step: int, *, shuffled: bool, lanes: int | None = None) -> Rows:
        """The rows of a batch of lengthen.data's windows (lane, start, and where they have them document, offset).

        shuffled: as the windows are (windows.shuffled). lanes: over all micro-batches and processes, where the batch
        is not the whole step.
        """
        missing = [name for name in ("lane", "start") if name not in batch]
        if missing:
            raise InputError(
                f"The batch has no {missing[0]!r}; rows need lane and start, as the windows of lengthen.data have."
            )
        lane = batch["lane"]
        inputs = batch["input_ids"] if "input_ids" in batch else batch["inputs"]
        return Rows(
            lane=lane,
            start=batch["start"],
            step=step,
            lanes=lanes if lanes is not None else len(lane),
            shuffled=shuffled,
            tokens=inputs.shape[1],
            document=batch.get("document"),
            offset=batch.get("offset"),
        )

    def __len__(self) -> int:
        return len(self.lane)

    def index(self, rows: Tensor) -> Rows:
        """These rows only."""

        def pick(value: Tensor | None) -> Tensor | None:
            return None if value is None else value[rows.to(value.device)]

        lane, start = self.lane[rows.to(self.lane.device)], self.start[rows.to(self.start.device)]
        return replace(self, lane=lane, start=start, document=pick(self.document), offset=pick(self.offset))


class Intervention(ABC):
    """Gives initial states, observes final states, saves and restores itself."""

    name: str

    @abstractmethod
    def initial_state(self, rows: Rows, zero: RecurrentState) -> RecurrentState | None:
        """The initial state of these rows (None: zero). zero: the zero state for them, which tells the layout."""

    @abstractmethod
    def observe(self, rows: Rows, final_state: RecurrentState) -> None:
        """Sees what these rows ended with."""

    def advance(self, step: int, zero: RecurrentState) -> None:
        """A step begins in which this process has no rows of this intervention (a part of a mixture)."""

    def save(self, directory: str | Path) -> None:
        """Writes what the intervention has learnt into a directory (nothing, where it has nothing)."""

    def load(self, directory: str | Path) -> None:
        """Restores what save() wrote."""

    def describe(self) -> dict[str, Any]:
        """Name and settings, as plain data."""
        settings = {k: v for k, v in vars(self).items() if not k.startswith("_") and isinstance(v, int | float | str)}
        return {"name": self.name, **settings}


class Zero(Intervention):
    """The zero state: ordinary training, the control arm."""

    name = "zero"

    def initial_state(self, rows: Rows, zero: RecurrentState) -> None:
        return None

    def observe(self, rows: Rows, final_state: RecurrentState) -> None:
        pass
