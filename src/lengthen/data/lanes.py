"""Training windows in lanes: each lane walks through whole documents, window after window."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from lengthen.data.corpus import Corpus
from lengthen.data.windows import Rows, Windows, generator
from lengthen.errors import InputError


class LaneWindows(Windows):
    """Lanes that read documents from beginning to end, for interventions that carry a lane's own state (TBPTT).

    All lanes take their documents from one queue, in which every epoch lists all documents in a new random order.
    A lane begins a document at position 0 of a window (`start`), reads it in consecutive windows of T and is padded
    after its end, so that no position with a target is skipped or repeated and no window holds two documents.
    Documents without any target (one token) are passed over.

    Raises InputError with more lanes than documents, for lanes would then read the same positions in the same
    steps: Corpus.sections() makes more documents out of long ones. See Windows for arguments and batches.
    """

    shuffled: ClassVar[bool] = False

    def __init__(
        self, corpus: Corpus, *, context: int, lanes: int, seed: int = 0, rank: int = 0, world_size: int = 1
    ) -> None:
        self._readable = np.flatnonzero(corpus.inputs > 0)
        if lanes > len(self._readable):
            raise InputError(
                f"{lanes} lanes cannot walk through {len(self._readable)} documents without reading the same text "
                "side by side; use fewer lanes, or cut the documents into sections."
            )
        super().__init__(corpus, context=context, lanes=lanes, seed=seed, rank=rank, world_size=world_size)

    def _rewind(self) -> None:
        self._begin_epoch(0)
        self._document = np.array([self._take() for _ in range(self.lanes)], dtype=np.int64)
        self._offset = np.zeros(self.lanes, dtype=np.int64)

    def _begin_epoch(self, epoch: int, taken: int = 0) -> None:
        self._queue = generator(self.seed, epoch).permutation(self._readable)
        self._epoch, self._taken = epoch, taken

    def _take(self) -> int:
        """The next document of the queue."""
        if self._taken == len(self._queue):
            self._begin_epoch(self._epoch + 1)
        self._taken += 1
        return int(self._queue[self._taken - 1])

    def _advance(self) -> Rows:
        rows = Rows(self._document, self._offset, self._offset == 0)
        document, offset = self._document.copy(), self._offset + self.context
        for lane in np.flatnonzero(offset >= self.corpus.inputs[document]):
            document[lane], offset[lane] = self._take(), 0
        self._document, self._offset = document, offset
        return rows

    def _cursor(self) -> Any:
        return {
            "epoch": self._epoch,
            "taken": self._taken,
            "document": self._document.tolist(),
            "offset": self._offset.tolist(),
        }

    def _restore(self, cursor: Any) -> None:
        self._begin_epoch(int(cursor["epoch"]), int(cursor["taken"]))
        self._document = np.array(cursor["document"], dtype=np.int64)
        self._offset = np.array(cursor["offset"], dtype=np.int64)
