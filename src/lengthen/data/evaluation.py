"""Held-out sequences to judge by: contiguous, spread over the documents, overlapping as little as they can."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lengthen.data.corpus import Corpus
from lengthen.data.windows import generator
from lengthen.errors import InputError


def evaluation_sequences(corpus: Corpus, *, length: int, count: int, seed: int = 0, join: bool = False) -> NDArray[Any]:
    """`count` contiguous pieces of a corpus, each of `length` positions and the target of the last.

    length: L, positions to be judged in a sequence.
    join: lay all documents end to end, in order, and let sequences run across documents; for lengths that no
        document has.
    Returns int64 [count, L + 1] for tokens, float32 [count, L + 1, ...features] for frames, in the order of the
    documents; sequences do not overlap where the documents have room for that (see evaluation_layout).
    Raises InputError where no document is long enough, or there are more sequences than places.
    """
    if corpus.targets is not None:
        raise InputError("Data with targets of their own have no next position to judge; use evaluation_layout.")
    first, _ = evaluation_layout(corpus, length=length, count=count, seed=seed, join=join)
    values = corpus.values[first[:, None] + np.arange(length + 1)]
    return values.astype(np.float32 if corpus.vocabulary_size is None else np.int64)


def evaluation_layout(
    corpus: Corpus, *, length: int, count: int, seed: int = 0, join: bool = False
) -> tuple[NDArray[np.int64], int]:
    """Where evaluation_sequences lie: the first position of each in corpus.values int64 [count], and the overlap.

    A sequence needs length + 1 positions of its document, or length where the corpus has targets of its own.
    The overlap is the largest number of judged positions that two sequences share: 0 when all are independent
    pieces of text. Each document gets one sequence before any gets two (documents drawn by the seed where there are
    fewer sequences than documents); a further one goes where the sequences then lie farthest apart. Where a document
    has room to spare, the seed decides how it is spread between its sequences.
    """
    if length < 1 or count < 1:
        raise InputError(f"Evaluation needs a length and a count of at least 1, not {length} and {count}.")
    boundaries = corpus.boundaries[[0, -1]] if join else corpus.boundaries
    extra = corpus.targets is None  # the target of the last position is the value after it
    room = np.diff(boundaries) - extra - length  # the largest first position in each document
    usable = np.flatnonzero(room >= 0)
    if len(usable) == 0:
        longest = int(np.diff(boundaries).max())
        advice = (
            "give more text, or judge shorter sequences (--max-length)"
            if join or len(corpus.boundaries) == 2
            else "judge shorter sequences (--max-length) or lay the documents end to end (--join)"
        )
        raise InputError(
            f"A sequence of {length} positions needs {length + extra} {corpus.unit}, but the longest "
            f"{'text' if join else 'document'} has {longest}; {advice}."
        )
    random = generator(seed, 2)
    order = random.permutation(usable)
    shares = np.zeros(len(room), dtype=np.int64)
    # Entries: (minus the distance that one more sequence would leave, place in the random order, document).
    heap = [(-np.inf, place, int(document)) for place, document in enumerate(order)]
    heapq.heapify(heap)
    for _ in range(count):
        distance, place, document = heapq.heappop(heap)
        if -distance < 1:
            raise InputError(
                f"{count} sequences of {length} positions do not fit into the documents without repeating one; "
                "judge fewer or shorter sequences."
            )
        shares[document] += 1
        heapq.heappush(heap, (-float(room[document] / shares[document]), place, document))
    first, overlap = [], 0
    for document in np.flatnonzero(shares).tolist():
        places = _spread(int(room[document]), int(shares[document]), length, random)
        first.append(boundaries[document] + places)
        overlap = max(overlap, length - int(np.diff(places).min(initial=length)))
    return np.concatenate(first), overlap


def _spread(room: int, share: int, length: int, random: np.random.Generator) -> NDArray[np.int64]:
    """First positions of `share` sequences between 0 and `room`: apart if possible, else evenly overlapping."""
    spare = room - (share - 1) * length
    if spare < 0:
        return np.arange(share, dtype=np.int64) * room // (share - 1)
    gaps = np.sort(random.integers(0, spare + 1, size=share))
    return gaps + np.arange(share) * length
