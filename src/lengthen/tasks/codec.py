"""Text to token ids and back for a task's prompts, which are built of parts that are tokenised one by one."""

from __future__ import annotations

import string
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lengthen.data.tokens import TokenizerEncoder, make_encoder
from lengthen.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Ids = NDArray[np.int64]
"""Token ids [length]."""
MARKS = ".|?"
FEWEST_LETTERS = 16


class Codec:
    """A tokenizer as tasks need it: parts of text to ids, nothing added, and ids to text.

    tokenizer: "bytes", a tokenizer's directory or hub name, or a tokenizer of transformers. before: the ids that the
    tokenizer puts before a text of its own accord (BOS). end: its end-of-text id, where it has one. identity: a digest of what decides
    the ids, by which codecs are equal. Raises InputError for a tokenizer that loses digits.
    """

    def __init__(self, tokenizer: str | Path | PreTrainedTokenizerBase) -> None:
        encoder = make_encoder(tokenizer)
        self.vocabulary_size, self.identity = encoder.vocabulary_size, encoder.identity()
        self._tokenizer: Any = None
        self.before: Ids = np.zeros(0, np.int64)
        self.end: int | None = None
        if isinstance(encoder, TokenizerEncoder):
            self._tokenizer = encoder.tokenizer
            self.before = encoder.added()[0].astype(np.int64)
            self.end = self._tokenizer.eos_token_id
        self.require("0123456789")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Codec) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    def encode(self, text: str) -> Ids:
        """The ids of a text by itself, int64 [length]."""
        if self._tokenizer is None:
            return np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int64)
        ids = self._tokenizer(text, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
        return np.array(ids, np.int64)

    def decode(self, ids: Sequence[int] | Ids) -> str:
        """The text of some ids; bytes that are no UTF-8 become replacement characters."""
        if self._tokenizer is None:
            return bytes(i for i in map(int, ids) if i < 256).decode("utf-8", "replace")
        return self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)

    def require(self, text: str) -> None:
        """Raises InputError where a text does not come back from its ids (letter case and spaces apart)."""
        found = self.decode(self.encode(text))
        if plain(found) != plain(text):
            raise InputError(
                f"The tokenizer makes {found!r} of {text!r}, so that no answer could be right; use one that encodes digits "
                "and letters."
            )

    @cached_property
    def letters(self) -> Ids:
        """One id for each letter of the alphabet that has an id of its own, at least 16 of them."""
        unknown = None if self._tokenizer is None else self._tokenizer.unk_token_id
        found = dict.fromkeys(int(ids[-1]) for c in string.ascii_lowercase if len(ids := self.encode(c)))
        letters = [i for i in found if i != unknown and i not in self.marks.values()]
        if len(letters) < FEWEST_LETTERS:
            raise InputError(
                f"The tokenizer has ids of their own for {len(letters)} letters, but this task needs {FEWEST_LETTERS}; use "
                "another tokenizer or another task."
            )
        return np.array(letters, np.int64)

    @cached_property
    def marks(self) -> dict[str, int]:
        """One id for each of the characters . | ? that symbol tasks are written with."""
        ids = [self.encode(c) for c in MARKS]
        found = {c: int(i[-1]) for c, i in zip(MARKS, ids) if len(i)}
        if len(set(found.values())) < len(MARKS):
            raise InputError(
                f"The tokenizer does not tell the characters {' '.join(MARKS)} apart, which this task is written with; use "
                "another tokenizer or another task."
            )
        return found


def plain(text: str) -> str:
    """A text in lower case without any space, as tokenizers that drop both agree on."""
    return "".join(text.lower().split())
