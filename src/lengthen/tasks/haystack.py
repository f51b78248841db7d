"""What facts are hidden in: repeated noise, the bundled plays, or a user's text, cut to any number of tokens."""

from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lengthen.data import bundled_plays
from lengthen.data.documents import read_files, text_files
from lengthen.errors import InputError
from lengthen.tasks.codec import Codec, Ids

Split = Literal["train", "test"]

NOISE = "The hill is quiet. The river runs on. A cloud goes by. Nobody is in a hurry. We rest a while and walk on. "
NOISE_REPEATS = 64
SENTENCE_ENDS = (".", "!", "?", "\n")


class Haystack:
    """Filler of any length in tokens.

    ids: int64 [N], repeated end to end where more is asked for. varied: whether a filler begins at a random sentence;
    noise always begins at its first.
    """

    def __init__(self, ids: Ids, codec: Codec, *, varied: bool) -> None:
        if len(ids) == 0:
            raise InputError("The text to hide facts in is empty; give one that holds sentences.")
        self._ids, self._varied = ids, varied
        kinds, where = np.unique(ids, return_inverse=True)
        closing = np.array([codec.decode([i]).rstrip(" ").endswith(SENTENCE_ENDS) for i in kinds])
        self._starts = np.flatnonzero(np.roll(closing[where], 1))

    def take(self, draws: random.Random, count: int) -> tuple[Ids, NDArray[np.int64]]:
        """`count` tokens in a row, and where between them sentences begin: increasing int64, 0 and `count` among them."""
        first = int(draws.choice(self._starts)) if self._varied and len(self._starts) else 0
        size = len(self._ids)
        ids = self._ids[np.arange(first, first + count) % size]
        turns = np.arange(first // size, (first + count) // size + 1)[:, None] * size
        starts = (turns + self._starts).reshape(-1) - first
        return ids, np.unique(np.concatenate([[0, count], starts[(starts > 0) & (starts < count)]]))


def haystack_named(source: str, codec: Codec, split: Split) -> Haystack:
    """ "noise", "plays" (training's differ from the tests'), or a text file, a directory, JSONL or Parquet."""
    if source == "noise":
        return Haystack(np.tile(codec.encode(NOISE), NOISE_REPEATS), codec, varied=False)
    return _texts(source, codec, split)


@lru_cache(maxsize=4)
def _texts(source: str, codec: Codec, split: Split) -> Haystack:
    if source == "plays":
        texts = [play.text for play in bundled_plays()[split == "test"]]
    else:
        if not Path(source).exists():
            raise InputError(
                f"The haystack {source} is neither noise nor plays, and no such file exists; give one of them."
            )
        texts = ["".join(document.pieces) for document in read_files(text_files(Path(source)), "text")]
    return Haystack(np.concatenate([np.zeros(0, np.int64), *map(codec.encode, texts)]), codec, varied=True)
