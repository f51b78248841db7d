"""Held-out sequences of any length, read from the corpus piece by piece: what is not looked at takes no memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lengthen.data.corpus import Corpus
from lengthen.data.evaluation import evaluation_layout


class HeldOutSequences:
    """`count` contiguous pieces of a corpus, each of `length` positions and the target of the last.

    Behaves as an int64 array [count, length + 1] of which columns are taken, sequences[:, a:b]. Arguments and errors
    are evaluation_layout's.
    """

    def __init__(self, corpus: Corpus, *, length: int, count: int, seed: int = 0, join: bool = False) -> None:
        self._values = corpus.values
        self._first, _ = evaluation_layout(corpus, length=length, count=count, seed=seed, join=join)
        self.shape = (count, length + 1)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, key: tuple[slice, slice]) -> NDArray[Any]:
        rows, columns = key
        low, high, _ = columns.indices(self.shape[1])
        return np.stack([self._values[f + low : f + high] for f in self._first[rows]]).astype(np.int64)
