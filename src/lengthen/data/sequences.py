"""Held-out sequences of any length, read from the corpus piece by piece: what is not looked at takes no memory."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lengthen.data.arrays import IGNORED
from lengthen.data.corpus import Corpus
from lengthen.data.evaluation import evaluation_layout
from lengthen.errors import InputError


class HeldOutSequences:
    """`count` contiguous pieces of a corpus, each of `length` positions with a target.

    Where a position's target is the next position's value it behaves as an array [count, length + 1, ...] of which
    columns are taken, sequences[:, a:b]; targets [count, length, ...] are the corpus's own targets of its inputs, None
    elsewhere. overlap: the most positions that two of them share. Arguments and errors are evaluation_layout's.
    """

    def __init__(self, corpus: Corpus, *, length: int, count: int, seed: int = 0, join: bool = False) -> None:
        self._first, self.overlap = evaluation_layout(corpus, length=length, count=count, seed=seed, join=join)
        self._values = corpus.values
        self.shape = (count, length + 1, *corpus.values.shape[1:])
        self.targets = None if corpus.targets is None else _Targets(corpus.targets, self._first)

    def first(self, length: int) -> HeldOutSequences:
        """The same sequences, no further than `length` positions."""
        found = copy.copy(self)
        found.shape = (len(self), length + 1, *self.shape[2:])
        found.overlap = max(0, self.overlap - (self.shape[1] - 1 - length))
        return found

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: tuple[slice, slice]) -> NDArray[Any]:
        return _columns(self._values, self._first, key, self.shape[1])


class _Targets:
    """The targets of held-out sequences, [count, length, ...] in the same way."""

    def __init__(self, values: NDArray[Any], first: NDArray[np.int64]) -> None:
        self._values, self._first = values, first

    def __getitem__(self, key: tuple[slice, slice]) -> NDArray[Any]:
        found = _columns(self._values, self._first, key, len(self._values))
        if found.dtype.kind == "i" and (found == IGNORED).any():
            position = key[1].indices(len(self._values))[0] + int(np.argwhere(found == IGNORED)[0, 1])
            raise InputError(
                f"A held-out sequence has no target at position {position}, but is judged at every position; give data "
                f"whose targets hold no {IGNORED}."
            )
        return found


def _columns(values: NDArray[Any], first: NDArray[np.int64], key: tuple[slice, slice], length: int) -> NDArray[Any]:
    rows, columns = key
    low, high, _ = columns.indices(length)
    found = np.stack([values[f + low : f + high] for f in first[rows]])
    return found.astype(np.float32 if found.dtype.kind == "f" else np.int64)
