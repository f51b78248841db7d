"""What both kinds of training batches share: rows cut out of a corpus, rows of a rank, a position that resumes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from lengthen.data.arrays import IGNORED
from lengthen.data.corpus import Corpus
from lengthen.errors import InputError

Batch = dict[str, torch.Tensor]
"""A training batch, see Windows."""


class Rows(NamedTuple):
    """Where each row of a batch lies: document and offset int64 [rows], start bool [rows]."""

    document: NDArray[np.int64]
    offset: NDArray[np.int64]
    start: NDArray[np.bool_]


class Windows(ABC):
    """An endless, deterministic stream of training batches, the same for the same corpus and seed.

    corpus: the data.
    context: T, the positions in a window.
    lanes: the rows of the global batch, over all processes.
    seed: not negative; it alone decides the order.
    rank, world_size: this process's share: it yields the lanes [lanes * rank // world_size,
        lanes * (rank + 1) // world_size) of the same global batch.

    Iteration yields dicts of tensors, B rows, T positions:
        input_ids int64 [B, T] for tokens, or inputs float32 [B, T, ...features] for frames;
        labels: the target of each input, already shifted (not to be shifted again). int64 [B, T], -100 where there
            is none, or float32 [B, T, ...] where the targets are floats (0 where there is none: see the mask);
        attention_mask int64 [B, T]: 1, or 0 on the right where a row is padded; left out when no row is;
        lane int64 [B]: the rows' global identities;
        start bool [B]: this window begins a document in its lane, whose state must be zero here (never set on
            shuffled rows, which no state follows);
        document, offset int64 [B]: the document's index and the window's first position in it.

    The position is part of a checkpoint: state_dict() and load_state_dict(), independent of rank and world_size.
    Raises InputError for a wrong argument, or when no document fills a window.
    """

    shuffled: ClassVar[bool]
    """Whether rows follow no order, so that no lane continues (TBPTT needs the opposite)."""

    def __init__(
        self, corpus: Corpus, *, context: int, lanes: int, seed: int = 0, rank: int = 0, world_size: int = 1
    ) -> None:
        corpus.require_context(context)
        if lanes < 1:
            raise InputError(f"A step needs at least 1 row, not {lanes}; give a number above 0.")
        if seed < 0:
            raise InputError(f"The seed is {seed}; give a whole number of 0 or more.")
        if not 0 <= rank < world_size <= lanes:
            raise InputError(
                f"Rank {rank} of {world_size} processes cannot share {lanes} lanes; each process needs at least one."
            )
        self.corpus = corpus
        self.context = context
        self.lanes = lanes
        self.seed = seed
        self.own_lanes = slice(lanes * rank // world_size, lanes * (rank + 1) // world_size)
        self.step = 0
        self._rewind()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        rows = self._advance()
        self.step += 1
        own = Rows(rows.document[self.own_lanes], rows.offset[self.own_lanes], rows.start[self.own_lanes])
        lane = np.arange(self.lanes, dtype=np.int64)[self.own_lanes]
        batch = cut(self.corpus, own.document, own.offset, self.context)
        for name, column in zip(("lane", "start", "document", "offset"), (lane, own.start, own.document, own.offset)):
            batch[name] = torch.from_numpy(column.copy())
        return batch

    def seek(self, step: int) -> None:
        """Makes batch `step` (from 0) the next one, without reading data: for loaders that fetch ahead."""
        if step < 0:
            raise InputError(f"There is no batch {step}; the first is batch 0.")
        if step < self.step:
            self.step = 0
            self._rewind()
        while self.step < step:
            self._advance()
            self.step += 1

    def state_dict(self) -> dict[str, Any]:
        """The position of the next batch, and what it depends on, as plain numbers, strings and lists."""
        return {**self._identity(), "step": self.step, "cursor": self._cursor()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where the state was taken; InputError unless data, order and shape of the batches are the same."""
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise InputError(
                    f"The data's {name} is {value!r}, but the checkpoint was made with {state.get(name)!r}; resume "
                    "with the same data and options, or start afresh."
                )
        self.step = int(state["step"])
        self._restore(state["cursor"])

    def _identity(self) -> dict[str, Any]:
        return {
            "kind": type(self).__name__,
            "fingerprint": self.corpus.fingerprint,
            "context": self.context,
            "lanes": self.lanes,
            "seed": self.seed,
        }

    @abstractmethod
    def _advance(self) -> Rows:
        """Where all lanes' rows of this step lie; moves on to the next step."""

    @abstractmethod
    def _rewind(self) -> None:
        """Goes to step 0."""

    @abstractmethod
    def _cursor(self) -> Any:
        """What _restore needs to be at the next step, JSON-able."""

    @abstractmethod
    def _restore(self, cursor: Any) -> None: ...


def generator(seed: int, *key: int) -> np.random.Generator:
    """Random numbers that depend on seed and key alone."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=key)))


def cut(corpus: Corpus, document: NDArray[np.int64], offset: NDArray[np.int64], context: int) -> Batch:
    """Inputs, labels and, where a row is padded, attention_mask of windows that begin at document and offset [B].

    A window ends with its document's last position that has a target; the rest of the row is padding.
    """
    first = corpus.boundaries[document] + offset
    filled = np.minimum(corpus.inputs[document] - offset, context)
    position = np.arange(context)
    inside = position < filled[:, None]
    # One fetch serves inputs and shifted labels; padded places fetch the row's first position, overwritten below.
    shifted = corpus.targets is None
    reach = np.arange(context + shifted)
    index = np.where(reach < filled[:, None] + shifted, first[:, None] + reach, first[:, None])
    fetched = corpus.values[index]
    values = fetched[:, :context]
    labels = fetched[:, 1:] if corpus.targets is None else corpus.targets[index]
    name, dtype = ("inputs", np.float32) if corpus.vocabulary_size is None else ("input_ids", np.int64)
    batch = {name: torch.from_numpy(_padded(values, inside, dtype, 0)), "labels": _labels(labels, inside)}
    if not inside.all():
        batch["attention_mask"] = torch.from_numpy(inside.astype(np.int64))
    return batch


def _labels(labels: NDArray[Any], inside: NDArray[np.bool_]) -> torch.Tensor:
    whole = labels.dtype.kind in "iu"
    return torch.from_numpy(_padded(labels, inside, np.int64 if whole else np.float32, IGNORED if whole else 0))


def _padded(values: NDArray[Any], inside: NDArray[np.bool_], dtype: type, padding: int) -> NDArray[Any]:
    """A fresh array of the type asked for, with `padding` where not inside."""
    fresh: NDArray[Any] = values.astype(dtype)
    fresh[~inside] = padding
    return fresh
