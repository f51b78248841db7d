"""The file that keeps finished cells, so that an interrupted evaluation goes on at the next."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lengthen.errors import InputError, RunError
from lengthen.results import Cell


class CellFile:
    """Finished cells, in memory and a line each in a file, its first line saying what they depend on.

    path: None for memory alone. resume: read the file, where it is there. Raises InputError where its settings are others.
    """

    def __init__(self, path: str | Path | None, settings: Mapping[str, Any], *, resume: bool = False) -> None:
        self._path = None if path is None else Path(path)
        self._cells: dict[tuple[str, int, float | None], Cell] = {}
        if self._path is None:
            return
        lines = self._path.read_text(encoding="utf-8").split("\n")[:-1] if resume and self._path.exists() else []
        if not lines:
            self._write("w", [dict(settings)])
            return
        before = json.loads(lines[0])
        other = sorted(name for name in {*before, *settings} if before.get(name) != settings.get(name))
        if other:
            raise InputError(
                f"The interrupted evaluation in {self._path} was of other settings ({', '.join(other)}); give the same ones, "
                "or start again without resuming."
            )
        self._keep([Cell(**json.loads(line)) for line in lines[1:]])
        self._write("w", [before, *(cell.to_json() for cell in self._cells.values())])  # without a line half written

    def get(self, task: str, length: int, depth: float | None) -> Cell | None:
        """A cell that is finished."""
        return self._cells.get((task, length, depth))

    def add(self, cells: Sequence[Cell]) -> None:
        """Keeps cells that are finished."""
        self._keep(cells)
        self._write("a", [cell.to_json() for cell in cells])

    def _keep(self, cells: Sequence[Cell]) -> None:
        self._cells |= {(cell.task, cell.length, cell.depth): cell for cell in cells}

    def _write(self, mode: str, documents: Sequence[Mapping[str, Any]]) -> None:
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open(mode, encoding="utf-8") as file:
                file.write("".join(json.dumps(document) + "\n" for document in documents))
        except OSError as error:
            raise RunError(f"The cells cannot be written to {self._path} ({error}); choose another --out.") from None
