"""Pieces of sequences, as sequences of their own that a model can stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from lengthen.models import zero_state
from lengthen.streaming import Tokens

BYTES = 1 << 26
"""Memory that the states of rows side by side may take, where fewer rows do as well."""


def rows_together(model: nn.Module, most: int) -> int:
    """How many rows to stream side by side: at most so many, fewer where their states are large, at least 1."""
    return max(1, min(most, BYTES // zero_state(model, 1, "meta").bytes))


class Pieces:
    """The pieces of `length` positions that begin at each of `firsts`, all sequences of one under those of the last.

    Reads columns as sequences [n, L + 1, ...] do, and has their targets where they have some of their own.
    sequences: how many of the n (all unless said). times: how often the whole stands one under the other.
    """

    def __init__(
        self, tokens: Tokens, firsts: Sequence[int], length: int, *, sequences: int | None = None, times: int = 1
    ) -> None:
        count = tokens.shape[0] if sequences is None else sequences
        self._columns = _Columns(tokens, firsts, count, times)
        self.shape = (times * len(firsts) * count, length + 1, *tokens.shape[2:])
        own = getattr(tokens, "targets", None)
        self.targets = None if own is None else _Columns(own, firsts, count, times)

    def __getitem__(self, key: tuple[slice, slice]) -> NDArray[Any]:
        return self._columns[key[0], slice(*key[1].indices(self.shape[1]))]


class _Columns:
    def __init__(self, values: Any, firsts: Sequence[int], count: int, times: int) -> None:
        self._values, self._firsts, self._count, self._times = values, firsts, count, times

    def __getitem__(self, key: tuple[slice, slice]) -> NDArray[Any]:
        rows, columns = key
        parts = [
            np.asarray(self._values[: self._count, first + columns.start : first + columns.stop])
            for first in self._firsts
        ]
        return np.concatenate(parts * self._times)[rows]
