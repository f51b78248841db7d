"""Training windows in random order: unrelated rows."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from lengthen.data.windows import Rows, Windows, generator


class ShuffledWindows(Windows):
    """Windows of all documents in random order, without replacement within an epoch.

    In each epoch every document is cut into consecutive windows of T from a random first offset (so that cuts
    differ between epochs; the positions before the first and after the last window rest in that epoch), and all
    windows are shuffled. Rows are full: documents that cannot fill a window give none (`left_out` counts them).
    A batch may take its last rows from the next epoch. See Windows for arguments and batches; `start` is False.
    """

    shuffled: ClassVar[bool] = True

    @property
    def left_out(self) -> int:
        """The number of documents too short for a window."""
        return int((self.corpus.inputs < self.context).sum())

    def _rewind(self) -> None:
        self._begin_epoch(0)

    def _begin_epoch(self, epoch: int, used: int = 0) -> None:
        inputs = self.corpus.inputs
        usable = inputs >= self.context
        spans = np.where(usable, np.minimum(self.context, inputs - self.context + 1), 1)
        self._first = generator(self.seed, epoch, 0).integers(0, spans)
        counts = np.where(usable, (inputs - self._first) // self.context, 0)
        self._ends = np.cumsum(counts)
        self._order = generator(self.seed, epoch, 1).permutation(int(self._ends[-1]))
        self._epoch, self._used = epoch, used

    def _advance(self) -> Rows:
        parts: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        wanted = self.lanes
        while True:
            taken = self._order[self._used : self._used + wanted]
            document = np.searchsorted(self._ends, taken, side="right")
            before = np.where(document > 0, self._ends[document - 1], 0)
            parts.append((document, self._first[document] + (taken - before) * self.context))
            self._used += len(taken)
            wanted -= len(taken)
            if wanted == 0:
                break
            self._begin_epoch(self._epoch + 1)
        document, offset = (np.concatenate(column) for column in zip(*parts))
        return Rows(document, offset, np.zeros(self.lanes, dtype=bool))

    def _cursor(self) -> Any:
        return {"epoch": self._epoch, "used": self._used}

    def _restore(self, cursor: Any) -> None:
        self._begin_epoch(int(cursor["epoch"]), int(cursor["used"]))
