"""Copying, selective copying and associative recall over single tokens, to study what an architecture can hold.

Symbols are tokens of single letters; "." is filler, "|" asks for what stood before, "?" asks for a key's value.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from lengthen.tasks.codec import Codec, Ids
from lengthen.tasks.prompts import Prompt, Wanted, drawn, too_short

SELECTED = 8
"""Symbols to be picked out among filler (Gu and Dao, "Mamba", 2023)."""
PAIRS, QUERIES = 8, 4
"""Pairs of a key (two symbols) and a value (one), and how many of them are asked for (Arora et al., "Zoology", 2023)."""


@dataclass(frozen=True)
class _Frame:
    """What a prompt is written into: `room` tokens between what the tokenizer puts before and the question's `asked`."""

    codec: Codec
    room: int

    @classmethod
    def of(cls, wanted: Wanted, asked: int, fewest: int) -> _Frame:
        room = wanted.length - len(wanted.codec.before) - asked
        if room < fewest:
            raise too_short(wanted.length, wanted.length - room + fewest)
        return cls(wanted.codec, room)

    def filler(self) -> Ids:
        return np.full(self.room, self.codec.marks["."], np.int64)

    def prompt(self, body: Ids, asked: list[int], answer: Ids) -> Prompt:
        ids = np.concatenate([self.codec.before, body, np.array(asked, np.int64)])
        before = len(self.codec.before)
        return Prompt(ids, answer, (self.codec.decode(answer),), introduced=before, asked=len(asked))


def copying(draws: random.Random, wanted: Wanted) -> list[Prompt]:
    """Symbols to be repeated: as many as the prompt has room for, or half as many with the answer counted."""
    codec = wanted.codec
    frame = _Frame.of(wanted, 1, 4)
    size = frame.room // 2 if wanted.answered else frame.room
    if wanted.answered:
        frame = _Frame(codec, frame.room - size)
    symbols = drawn(draws, wanted.split, lambda d: _symbols(d, codec, size), lambda s: s.tolist())
    body = frame.filler()
    body[frame.room - size :] = symbols
    return [frame.prompt(body, [codec.marks["|"]], symbols)]


def selective_copying(draws: random.Random, wanted: Wanted) -> list[Prompt]:
    """A few symbols among filler, to be repeated without it."""
    codec = wanted.codec
    frame = _Frame.of(wanted, 1 + wanted.answered * SELECTED, SELECTED)
    symbols = drawn(draws, wanted.split, lambda d: _symbols(d, codec, SELECTED), lambda s: s.tolist())
    body = frame.filler()
    body[sorted(draws.sample(range(frame.room), SELECTED))] = symbols
    return [frame.prompt(body, [codec.marks["|"]], symbols)]


def associative_recall(draws: random.Random, wanted: Wanted) -> list[Prompt]:
    """Pairs of key and value among filler; the values of some keys, each asked for by itself."""
    codec = wanted.codec
    frame = _Frame.of(wanted, 3 + wanted.answered, 3 * PAIRS)
    pairs = drawn(draws, wanted.split, lambda d: _pairs(d, codec), list)
    # Places of pairs: as many single tokens fewer as pairs are longer than one token, then spread again.
    places = sorted(draws.sample(range(frame.room - 2 * PAIRS), PAIRS))
    body = frame.filler()
    for i, (place, pair) in enumerate(zip(places, pairs)):
        body[place + 2 * i : place + 2 * i + 3] = pair
    asked = draws.sample(range(PAIRS), QUERIES)
    return [frame.prompt(body, [codec.marks["?"], *pairs[i][:2]], np.array(pairs[i][2:], np.int64)) for i in asked]


def _symbols(draws: random.Random, codec: Codec, count: int) -> Ids:
    return np.array(draws.choices(codec.letters.tolist(), k=count), np.int64)


def _pairs(draws: random.Random, codec: Codec) -> list[list[int]]:
    letters = codec.letters.tolist()
    keys = draws.sample([(a, b) for a in letters for b in letters], PAIRS)
    return [[*key, draws.choice(letters)] for key in keys]
