"""A corpus: documents as one memory-mapped array of tokens or frames, and where each document begins."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import IO, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from lengthen.errors import InputError, RunError


@dataclass(frozen=True, eq=False)
class Corpus:
    """Documents laid end to end.

    values: token ids [N] (uint8, uint16 or uint32, by vocabulary) or frames [N, ...features] (float32).
    boundaries: int64 [documents + 1]; document d is values[boundaries[d] : boundaries[d + 1]].
    vocabulary_size: the number of token ids there can be; None for frames.
    targets: what each position should give, int64 [N] (-100: nothing) or float32 [N, ...]; None where the target
        of a position is the next position's value.
    content: sha256 of values and targets, hexadecimal.
    """

    values: NDArray[Any]
    boundaries: NDArray[np.int64]
    vocabulary_size: int | None
    content: str
    targets: NDArray[Any] | None = field(default=None)

    @property
    def documents(self) -> int:
        """The number of documents."""
        return len(self.boundaries) - 1

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """The documents' lengths in positions, int64 [documents]."""
        return np.diff(self.boundaries)

    @cached_property
    def inputs(self) -> NDArray[np.int64]:
        """For each document the number of positions that have a target, int64 [documents].

        A document's last position has none, unless the corpus has targets of its own.
        """
        return np.maximum(self.lengths - (self.targets is None), 0)

    def document(self, index: int) -> NDArray[Any]:
        """One document's tokens [length] or frames [length, ...features]."""
        return self.values[self.boundaries[index] : self.boundaries[index + 1]]

    @cached_property
    def fingerprint(self) -> str:
        """sha256 over tokens or frames, targets and boundaries: other data or another tokenizer, another value."""
        digest = hashlib.sha256(self.content.encode())
        digest.update(np.ascontiguousarray(self.boundaries, dtype="<i8").tobytes())
        return digest.hexdigest()

    def sections(self, length: int) -> Corpus:
        """The same data with every document cut into documents of `length` positions, the last as it comes.

        For training in lanes when a few long documents stand against many lanes: each section starts from the
        zero state, as a document does. The one prediction across each cut is lost.
        """
        if length < 2:
            raise InputError(f"A section must be at least 2 positions long, not {length}.")
        cuts = [np.arange(a, b, length) for a, b in zip(self.boundaries[:-1], self.boundaries[1:])]
        return replace(self, boundaries=np.concatenate([*cuts, self.boundaries[-1:]]))

    def require_context(self, context: int) -> None:
        """Raises InputError unless at least one document fills a window of `context` positions with targets."""
        if context < 1:
            raise InputError(f"The training context must be at least 1 position, not {context}.")
        longest = int(self.inputs.max(initial=0))
        if longest < context:
            extra = self.targets is None
            raise InputError(
                f"The longest document has {longest + extra} {self.unit}, but a training context of {context} needs "
                f"{context + extra}; give longer documents or a shorter context."
            )

    def require_vocabulary(self, size: int) -> None:
        """Raises InputError unless every token id is below `size`, the rows of a model's embedding."""
        if self.vocabulary_size is None:
            raise InputError("The data are frames, not tokens: what needs a vocabulary cannot use them.")
        if self.vocabulary_size > size and self._largest_token >= size:
            raise InputError(
                f"The data hold token id {self._largest_token}, but the model's vocabulary has {size} ids; use the "
                "tokenizer that belongs to the model."
            )

    @property
    def unit(self) -> str:
        """What a position holds, in the plural, for messages."""
        return "frames" if self.vocabulary_size is None else "tokens"

    @cached_property
    def _largest_token(self) -> int:
        return int(self.values.max())


def token_dtype(vocabulary_size: int) -> np.dtype[Any]:
    """The smallest of uint8, uint16 and uint32 that holds every id below `vocabulary_size`."""
    for dtype in (np.uint8, np.uint16, np.uint32):
        if vocabulary_size - 1 <= np.iinfo(dtype).max:
            return np.dtype(dtype).newbyteorder("<")
    raise InputError(f"A vocabulary of {vocabulary_size} ids is beyond 2**32.")


class CorpusWriter:
    """Writes values to a file as they come, so that the corpus is never held in memory.

    values_file: a binary file, open for reading and writing, empty; a temporary one where None (it vanishes with
        the corpus, or with the process).
    features: a frame's shape, () for tokens.
    limit: stop after this many positions; None for no limit.
    """

    def __init__(
        self,
        dtype: DTypeLike,
        vocabulary_size: int | None,
        features: tuple[int, ...] = (),
        limit: int | None = None,
        values_file: IO[bytes] | None = None,
    ) -> None:
        if limit is not None and limit < 1:
            raise InputError(f"The limit on tokens must be at least 1, not {limit}.")
        self._dtype = np.dtype(dtype)
        self._vocabulary_size = vocabulary_size
        self._features = features
        self._limit = limit
        self._file = values_file if values_file is not None else temporary_file()
        self._digest = hashlib.sha256(f"{self._dtype.str}{features}".encode())
        self._boundaries = [0]

    def add(self, chunks: Iterable[NDArray[Any]]) -> bool:
        """Appends a document given in chunks; an empty document is left out. False once the limit is reached."""
        position = self._boundaries[-1]
        for chunk in chunks:
            room = len(chunk) if self._limit is None else self._limit - position
            kept = np.ascontiguousarray(chunk[:room], dtype=self._dtype)
            try:
                self._file.write(kept.data)
            except OSError as error:
                raise unwritable(error) from error
            self._digest.update(kept.data)
            position += len(kept)
            if position == self._limit:
                break
        if position > self._boundaries[-1]:
            self._boundaries.append(position)
        return position != self._limit

    def finish(self, source: str) -> Corpus:
        """The corpus of what was added; InputError where that is nothing (`source` serves the message)."""
        if len(self._boundaries) == 1:
            raise InputError(f"{source} is empty: it holds no text to train on or to judge by.")
        try:
            self._file.flush()
        except OSError as error:
            raise unwritable(error) from error
        shape = (self._boundaries[-1], *self._features)
        values = np.memmap(self._file, dtype=self._dtype, mode="r", shape=shape)
        boundaries = np.array(self._boundaries, dtype=np.int64)
        return Corpus(values, boundaries, self._vocabulary_size, self._digest.hexdigest())


def unwritable(error: OSError) -> RunError:
    """What to say where tokens cannot be written to a disk."""
    return RunError(
        f"The tokens cannot be written ({error}); free disk space, or point TMPDIR or the cache to another disk."
    )


def temporary_file() -> IO[bytes]:
    """A file without a name, in the system's temporary directory (TMPDIR)."""
    try:
        return tempfile.TemporaryFile()
    except OSError as error:
        raise InputError(
            f"No temporary file can be made in {os.environ.get('TMPDIR', 'the temporary directory')} ({error}); "
            "set TMPDIR to a directory that can be written."
        ) from error
