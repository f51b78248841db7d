"""The file that keeps finished cells and what they cost, so that an interrupted evaluation goes on at the next."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lengthen.errors import InputError, RunError
from lengthen.results import Cell, write_text
from lengthen.tasks.shared_prefixes import Cost

Key = tuple[str, int, float | None]
"""A cell's task, length and depth."""


class CellFile:
    """Finished cells, in memory and in a file: a line for those that were run together, with their cost, after one that
    says what all depend on.

    path: None for memory alone. resume: read the file, where it is there. Raises InputError where its settings are others.
    """

    def __init__(self, path: str | Path | None, settings: Mapping[str, Any], *, resume: bool = False) -> None:
        self._path = None if path is None else Path(path)
        self._cells: dict[Key, Cell] = {}
        self._together: list[tuple[set[Key], Cost]] = []
        if self._path is None:
            return
        lines = self._path.read_text(encoding="utf-8").split("\n")[:-1] if resume and self._path.exists() else []
        if not lines:
            write_text(self._path, json.dumps(dict(settings)) + "\n")
            return
        before, *found = map(json.loads, lines)
        other = sorted(name for name in {*before, *settings} if before.get(name) != settings.get(name))
        if other:
            raise InputError(
                f"The interrupted evaluation in {self._path} was of other settings ({', '.join(other)}); give the same ones, "
                "or start again without resuming."
            )
        for line in found:
            self._keep([Cell(**cell) for cell in line["cells"]], Cost(**line["cost"]))
        write_text(self._path, "".join(f"{json.dumps(line)}\n" for line in (before, *found)))  # none half written

    def get(self, task: str, length: int, depth: float | None) -> Cell | None:
        """A cell that is finished."""
        return self._cells.get((task, length, depth))

    def add(self, cells: Sequence[Cell], cost: Cost) -> None:
        """Keeps cells that are finished, and what they cost together."""
        self._keep(cells, cost)
        if self._path is None:
            return
        line = {"cost": asdict(cost), "cells": [cell.to_json() for cell in cells]}
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise RunError(f"The cells cannot be written to {self._path} ({error}); choose another --out.") from None

    def cost(self, cells: Iterable[Cell]) -> Cost:
        """What it took to find these cells, whenever they were."""
        wanted = {_key(cell) for cell in cells}
        costs = [cost for keys, cost in self._together if keys & wanted]
        return Cost(sum(cost.tokens for cost in costs), sum(cost.processed for cost in costs))

    def _keep(self, cells: Sequence[Cell], cost: Cost) -> None:
        self._cells |= {_key(cell): cell for cell in cells}
        self._together.append(({_key(cell) for cell in cells}, cost))


def _key(cell: Cell) -> Key:
    return cell.task, cell.length, cell.depth
