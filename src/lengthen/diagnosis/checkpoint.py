"""What a diagnosis has done so far, in a folder, so that an interrupted one goes on and finds the same."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lengthen.errors import InputError, RunError
from lengthen.results import Result, write_text
from lengthen.state import RecurrentState

SECONDS = 30.0
"""Between two checkpoints of a pass."""

Found = TypeVar("Found", bound=Result)


@dataclass(frozen=True)
class Saved:
    """A pass up to a position: its arrays and states by name."""

    position: int
    arrays: dict[str, NDArray[Any]]
    states: dict[str, RecurrentState]


class Checkpoint:
    """A folder with the passes and results of one diagnosis.

    settings: what the diagnosis depends on. resume: go on with what the folder holds; else it is emptied.
    Raises InputError where it holds a diagnosis of other settings.
    """

    def __init__(self, folder: str | Path, settings: Mapping[str, Any], *, resume: bool = False) -> None:
        self.folder = Path(folder)
        self._last = time.monotonic()
        file = self.folder / "settings.json"
        if resume and file.exists():
            before = json.loads(file.read_text(encoding="utf-8"))
            other = sorted(name for name in {*before, *settings} if before.get(name) != settings.get(name))
            if other:
                raise InputError(
                    f"The interrupted diagnosis in {self.folder} was of other settings ({', '.join(other)}); give the same "
                    "ones, or start again without resuming."
                )
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        write_text(file, json.dumps(dict(settings), indent=1) + "\n")

    def due(self) -> bool:
        """Whether the last checkpoint of a pass is long enough ago."""
        return time.monotonic() - self._last >= SECONDS

    def save(
        self, name: str, position: int, arrays: Mapping[str, NDArray[Any]], states: Mapping[str, RecurrentState]
    ) -> None:
        """Writes a pass up to a position, whole or not at all, in place of what stood there."""
        place, writing = self.folder / f"{name}-{position}", self.folder / f".{name}-{position}"
        try:
            shutil.rmtree(writing, ignore_errors=True)
            writing.mkdir(parents=True)
            np.savez(writing / "arrays.npz", **arrays)  # type: ignore[arg-type]  # no name is allow_pickle
            for state, value in states.items():
                value.save(writing / f"{state}.safetensors")
            writing.rename(place)
        except OSError as error:
            raise RunError(f"The checkpoint {place} cannot be written ({error}); choose another place.") from None
        for old in self._saved(name):
            if old != place:
                shutil.rmtree(old)
        self._last = time.monotonic()

    def load(self, name: str) -> Saved | None:
        """The furthest that a pass was saved, or None."""
        saved = self._saved(name)
        if not saved:
            return None
        place = saved[-1]
        with np.load(place / "arrays.npz", allow_pickle=False) as file:
            arrays = dict(file)
        states = {path.stem: RecurrentState.load(path) for path in place.glob("*.safetensors")}
        return Saved(_position(place), arrays, states)

    def result(self, name: str, kind: type[Found], compute: Callable[[], Found]) -> Found:
        """A part's result: read where it is there, else computed and written."""
        file = self.folder / f"{name}.json"
        if not file.exists():
            compute().save(file)
        return kind.load(file)

    def remove(self) -> None:
        """Removes the folder, when the diagnosis is done."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _saved(self, name: str) -> list[Path]:
        return sorted(self.folder.glob(f"{name}-*/"), key=_position)


def _position(place: Path) -> int:
    return int(place.name.rpartition("-")[2])
