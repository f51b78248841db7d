"""Prompts of an exact number of tokens: facts hidden in a haystack, and the questions asked after it.

A prompt is a row of ids, put together of parts that are tokenised one by one; its text is what those ids decode to.
Prompts of one haystack share all tokens up to where they must differ, so that they can share the work as well.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from lengthen.errors import InputError
from lengthen.tasks.codec import Codec, Ids
from lengthen.tasks.haystack import Haystack, Split

Drawn = TypeVar("Drawn")


@dataclass(frozen=True)
class Prompt:
    """What a model is asked. ids: int64 [length]; answer: int64, the ids of the right continuation; targets: what an
    answer in text must hold; candidates: what it might have held instead; question: the text of the question.
    introduced, asked: how many ids stand before the text that is asked about, and how many, the question's, after it."""

    ids: Ids
    answer: Ids
    targets: tuple[str, ...]
    candidates: tuple[str, ...] = ()
    question: str = ""
    introduced: int = 0
    asked: int = 0


Group = dict[float | None, list[Prompt]]
"""Prompts over one haystack: depth (None where facts lie at random depths) -> a prompt for each question."""


@dataclass(frozen=True)
class Question:
    """A question in text, ending where the answer begins; see Prompt."""

    text: str
    answer: str
    targets: tuple[str, ...]
    candidates: tuple[str, ...] = ()


@dataclass(frozen=True)
class Puzzle:
    """An introduction, facts in their order, and questions about them."""

    introduction: str
    facts: tuple[str, ...]
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class Wanted:
    """What prompts to make: those over haystack number `index`.

    length: tokens of each prompt, with its answer where `answered`; 0 for the facts without a haystack. split: what
    "train" asks is never asked in "test". depths: of the one fact of a task that has one, as shares of the haystack.
    haystack: noise, plays or a path (the task's own choice where None; tasks of symbols have none).
    """

    length: int
    codec: Codec
    seed: int = 0
    index: int = 0
    split: Split = "test"
    depths: Sequence[float] = (0.5,)
    haystack: str | None = None
    answered: bool = False

    def draws(self, task: str) -> random.Random:
        """Random numbers of a task that depend on seed, split and index alone: other lengths ask the same."""
        return random.Random(f"{self.seed}/{self.split}/{task}/{self.index}")


def drawn(
    draws: random.Random, split: Split, draw: Callable[[random.Random], Drawn], key: Callable[[Drawn], object]
) -> Drawn:
    """The first of draw's values that belongs to a split.

    Everything that a task can ask belongs to one split, by a hash of its key: what a test asks, whatever its seed, no
    training can have shown.
    """
    while True:
        value = draw(draws)
        if zlib.crc32(repr(key(value)).encode()) % 2 == (split == "test"):
            return value


def hide(
    puzzle: Puzzle, places: Sequence[float], wanted: Wanted, haystack: Haystack, draws: random.Random
) -> list[Prompt]:
    """A prompt for each question, all over the same haystack with the facts in it.

    places: where each fact stands, in order, as a share of the haystack; it goes to the start of the sentence there.
    Raises InputError where facts and question alone are longer than what is wanted.
    """
    codec, length = wanted.codec, wanted.length
    questions = [(codec.encode(q.text), codec.encode(q.answer)) for q in puzzle.questions]
    introduction, facts = codec.encode(puzzle.introduction), [codec.encode(fact) for fact in puzzle.facts]
    fixed = len(codec.before) + len(introduction) + sum(map(len, facts))
    rooms = [length - fixed - len(q) - (len(a) if wanted.answered else 0) for q, a in questions] if length else [0]
    if min(rooms) < 0:
        raise too_short(length, length - min(rooms))
    shared = min(rooms)
    filler, starts = haystack.take(draws, max(rooms))
    starts = starts[starts <= shared]
    cuts = [int(starts[np.searchsorted(starts, round(place * shared), side="right") - 1]) for place in places]
    cuts = [shared if place == 1 else cut for place, cut in zip(places, cuts)]
    pieces = [codec.before, introduction]
    for fact, low, high in zip(facts, [0, *cuts], cuts):
        pieces += [filler[low:high], fact]
    pieces.append(filler[cuts[-1] : shared])
    body = np.concatenate(pieces)
    prompts = []
    for question, room, (asked, answer) in zip(
        puzzle.questions, rooms if length else rooms * len(questions), questions
    ):
        ids = np.concatenate([body, filler[shared:room], asked])
        before = len(codec.before) + len(introduction)
        prompts.append(Prompt(ids, answer, question.targets, question.candidates, question.text, before, len(asked)))
    return prompts


def too_short(length: int, needed: int) -> InputError:
    """The error of a length that a task does not fit into."""
    return InputError(
        f"A length of {length} tokens is too short for this task, which needs at least {needed}; give more."
    )
