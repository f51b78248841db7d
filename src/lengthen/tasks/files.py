"""Prompts that a user has as a file, such as BABILong's own: a JSON object a line with input, question and target."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from lengthen.errors import InputError
from lengthen.tasks.prompts import Group, Prompt, Wanted
from lengthen.tasks.scoring import Scoring

KEYS = ("input", "question", "target")


class FileTask:
    """The prompts of a JSON or JSONL file, as long as they are there.

    name: file:PATH, or file:PATH:substring for that scoring; else it is strict, the candidates being the file's targets.
    Raises InputError where there is no such file, or a line lacks one of the three.
    """

    by_depth = False

    def __init__(self, name: str) -> None:
        self.name = name
        place = name.removeprefix("file:")
        self.scoring: Scoring = "substring" if place.endswith(":substring") else "strict"
        self._path = Path(place.removesuffix(":substring"))
        self.count: int | None = len(self._rows)

    def group(self, wanted: Wanted) -> Group:
        """The prompt of entry `index`."""
        row, codec = self._rows[wanted.index], wanted.codec
        parts = [codec.encode(row["input"]), codec.encode(f"\nQuestion: {row['question']}\nAnswer:")]
        answer = codec.encode(f" {row['target']}")
        candidates = tuple(sorted({r["target"] for r in self._rows}))
        ids = np.concatenate([codec.before, *parts])
        return {
            None: [Prompt(ids, answer, (row["target"],), candidates, row["question"], len(codec.before), len(parts[1]))]
        }

    @cached_property
    def _rows(self) -> list[dict[str, str]]:
        try:
            text = self._path.read_text(encoding="utf-8")
            found: Any = (
                json.loads(text)
                if text.lstrip()[:1] == "["
                else [json.loads(line) for line in text.splitlines() if line]
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise InputError(f"The task file {self._path} cannot be read ({reason}); give JSON lines.") from None
        for number, row in enumerate(found, 1):
            if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in KEYS):
                raise InputError(
                    f"Entry {number} of {self._path} lacks one of {', '.join(KEYS)} as text; give all three."
                )
        if not found:
            raise InputError(f"The task file {self._path} holds no prompt; give one that does.")
        return found
