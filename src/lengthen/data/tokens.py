"""Text to token ids, document by document and in bounded memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lengthen.data.documents import DocumentStream
from lengthen.errors import InputError, one_line

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Windows of a megabyte leave the C library's heap in holes: 4.8 GB for a text of 100 MB, against 0.1 GB with these.
WINDOW_CHARACTERS = 1 << 17
OVERLAP_CHARACTERS = 1 << 12
"""Some thousand tokens, which is room for a place to join at, and a thirtieth of the work done twice."""
AGREEING_TOKENS = 32
"""More tokens than a merge or a normaliser reaches over."""
BATCH_DOCUMENTS = 512
"""Enough to keep a fast tokenizer's threads busy, few enough that lists of their ids stay small."""

Tokens = NDArray[Any]
"""Token ids [length], of any integer type."""


class Encoder(Protocol):
    """What turns documents into token ids."""

    vocabulary_size: int

    def encode(self, documents: Iterable[DocumentStream]) -> Iterator[Iterable[Tokens]]:
        """For each document in order, its token ids in one or more chunks."""
        ...

    def identity(self) -> str:
        """A digest of what decides the ids: two encoders with one identity give the same ids."""
        ...


def make_encoder(tokenizer: str | Path | PreTrainedTokenizerBase) -> Encoder:
    """The encoder for "bytes", for a tokenizer's directory or hub name, or for a tokenizer of transformers.

    Raises InputError where there is none, or it cannot be loaded without running its own code.
    """
    if isinstance(tokenizer, str) and tokenizer == "bytes":
        return ByteEncoder()
    from transformers import AutoTokenizer, PreTrainedTokenizerBase

    if isinstance(tokenizer, PreTrainedTokenizerBase):
        return TokenizerEncoder(tokenizer)
    if not isinstance(tokenizer, (str, Path)):
        raise InputError(
            f'The tokenizer is a {type(tokenizer).__name__}; give "bytes", a directory, a hub name, '
            "or a tokenizer of transformers."
        )
    try:
        loaded = AutoTokenizer.from_pretrained(str(tokenizer), trust_remote_code=False)
    except Exception as error:  # transformers and its readers raise errors of many kinds for a wrong directory
        raise InputError(
            f'The tokenizer "{tokenizer}" cannot be loaded ({one_line(error)}); give a tokenizer\'s directory or "bytes".'
        ) from error
    if not loaded.get_vocab().keys() - set(loaded.all_special_tokens):  # transformers makes one up for a bare model
        raise InputError(f'"{tokenizer}" holds no tokenizer; give a tokenizer\'s directory or "bytes".')
    return TokenizerEncoder(loaded)


class ByteEncoder:
    """The "bytes" tokenizer: a text's UTF-8 bytes, vocabulary 256, nothing added."""

    vocabulary_size = 256

    def encode(self, documents: Iterable[DocumentStream]) -> Iterator[Iterable[Tokens]]:
        for document in documents:
            yield (np.frombuffer(utf8(piece, document.name), dtype=np.uint8) for piece in document.pieces)

    def identity(self) -> str:
        return "bytes"


class TokenizerEncoder:
    """A tokenizer of transformers, with whatever it adds to a text of its own accord (BOS, EOS).

    Small documents are tokenised in batches. A document longer than WINDOW_CHARACTERS is tokenised in
    overlapping windows and cut where both windows give the same AGREEING_TOKENS tokens on either side, so that
    the ids are those of the whole text (a tokenizer's merges reach no further than a word or two) and memory
    stays flat.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        # Added tokens may leave gaps, so that the largest id can lie above the number of tokens.
        self.vocabulary_size = max(len(tokenizer), max(tokenizer.get_vocab().values(), default=-1) + 1)

    def identity(self) -> str:
        """A digest of the tokenizer's class, its whole vocabulary and merges, and what it adds to a text."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        table = backend.to_str() if backend is not None else repr(sorted(self.tokenizer.get_vocab().items()))
        probe = self._ids(["a"])[0]
        text = f"{type(self.tokenizer).__name__}\n{table}\n{probe.tolist()}"
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    def encode(self, documents: Iterable[DocumentStream]) -> Iterator[Iterable[Tokens]]:
        batch: list[str] = []
        for document in documents:
            head, rest = _head(document)
            if rest is not None:
                yield from self._flush(batch)
                yield self._encode_long(head, rest)
                continue
            batch.append(head)
            if len(batch) >= BATCH_DOCUMENTS or sum(map(len, batch)) >= WINDOW_CHARACTERS:
                yield from self._flush(batch)
        yield from self._flush(batch)

    def _flush(self, batch: list[str]) -> Iterator[Iterable[Tokens]]:
        texts = batch.copy()
        batch.clear()
        if texts:
            yield from ([ids] for ids in self._ids(texts))

    def _ids(self, texts: list[str]) -> list[Tokens]:
        # An empty text gets no BOS either: a document without text is left out.
        encoded = self.tokenizer(texts, return_attention_mask=False, return_token_type_ids=False, verbose=False)
        return [np.array(ids if text else [], dtype=np.int64) for text, ids in zip(texts, encoded["input_ids"])]

    def _encode_long(self, head: str, rest: Iterator[str]) -> Iterator[Tokens]:
        if not self.tokenizer.is_fast:  # no offsets to cut at
            yield self._ids([head + "".join(rest)])[0]
            return
        before, after = self.added()
        yield before
        text, done, skip = head, False, 0
        ids, starts = self._window(text)
        while not done:
            following, done = _take(rest, WINDOW_CHARACTERS)
            if not following:
                break
            shift = max(len(text) - OVERLAP_CHARACTERS, 0)
            next_text = text[shift:] + following
            next_ids, next_starts = self._window(next_text)
            cut = _agreement(ids, starts, next_ids, next_starts + shift)
            if cut is None:  # one window instead of two: exact, at the price of memory
                text = text + following
                ids, starts = self._window(text)
                continue
            yield ids[skip : cut[0]]
            skip = cut[1]
            text, ids, starts = next_text, next_ids, next_starts
        yield ids[skip:]
        yield after

    def _window(self, text: str) -> tuple[Tokens, NDArray[np.int64]]:
        """Token ids [n] and the character at which each begins [n], nothing added."""
        encoded = self.tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, return_attention_mask=False, verbose=False
        )
        offsets = np.array(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2)
        return np.array(encoded["input_ids"], dtype=np.int64), offsets[:, 0]

    def added(self) -> tuple[Tokens, Tokens]:
        """What the tokenizer puts before and after a text, of its own accord.

        Raises InputError for a tokenizer that does more to a text than put tokens around it.
        """
        special = set(self.tokenizer.all_special_ids)
        known = [i for i in sorted(self.tokenizer.get_vocab().values()) if i not in special][:64]
        text = "a" + str(self.tokenizer.decode(known))  # at least one token of which it knows
        bare = list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        whole = list(self.tokenizer(text, verbose=False)["input_ids"])
        for start in range(len(whole) - len(bare) + 1):
            if bare and whole[start : start + len(bare)] == bare:
                return np.array(whole[:start], np.int64), np.array(whole[start + len(bare) :], np.int64)
        raise InputError(
            f"What {type(self.tokenizer).__name__} puts around a text cannot be told from the text's own tokens; "
            "give another tokenizer."
        )


def utf8(text: str, name: str) -> bytes:
    """A text's UTF-8 bytes; a lone surrogate (JSON can hold one) is an InputError that names the document."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(
            f"{name} holds a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}, "
            "which no UTF-8 text can; remove it."
        ) from error


def _head(document: DocumentStream) -> tuple[str, Iterator[str] | None]:
    """A document's first characters and what follows them, None where they are the whole document."""
    pieces = _checked(document)
    head, done = _take(pieces, WINDOW_CHARACTERS)
    return head, None if done else pieces


def _checked(document: DocumentStream) -> Iterator[str]:
    """The pieces, each no longer than a window and free of lone surrogates."""
    for piece in document.pieces:
        if not piece.isascii():
            utf8(piece, document.name)
        for start in range(0, len(piece), WINDOW_CHARACTERS):
            yield piece[start : start + WINDOW_CHARACTERS]


def _take(pieces: Iterator[str], characters: int) -> tuple[str, bool]:
    """Pieces until there are more than `characters` characters, and whether the pieces have ended."""
    taken: list[str] = []
    for piece in pieces:
        taken.append(piece)
        if sum(map(len, taken)) > characters:
            return "".join(taken), False
    return "".join(taken), True


def _agreement(
    ids: Tokens, starts: NDArray[np.int64], next_ids: Tokens, next_starts: NDArray[np.int64]
) -> tuple[int, int] | None:
    """Where two tokenisations of overlapping windows can be joined: indices of the same token in each, or None.

    The AGREEING_TOKENS tokens before and from that token on are equal in id and place. Places nearest the middle of
    the overlap are tried first.
    """
    n = AGREEING_TOKENS
    if len(starts) <= 2 * n or len(next_starts) <= 2 * n:
        return None
    first = int(np.searchsorted(starts, next_starts[0])) + n
    candidates = np.arange(first, len(starts) - n)
    middle = (first + len(starts) - n) / 2
    for here in candidates[np.argsort(np.abs(candidates - middle), kind="stable")]:
        there = int(np.searchsorted(next_starts, starts[here]))
        if there < n or there + n > len(next_starts):
            continue
        left, right = slice(here - n, here + n), slice(there - n, there + n)
        if np.array_equal(ids[left], next_ids[right]) and np.array_equal(starts[left], next_starts[right]):
            return int(here), there
    return None
