"""People, places and things that the questions of BABILong are about: a simulator of five kinds of stories.

The kinds are the first five of bAbI (Weston et al., "Towards AI-Complete Question Answering", 2015), which BABILong
(Kuratov et al., 2024) hides in long text: one, two and three supporting facts, and relations of two and of three things.
Names, places and sentences are our own. Every story has four questions.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from lengthen.tasks.prompts import Puzzle, Question

PEOPLE = ("Anna", "Boris", "Clara", "Felix")
PLACES = ("library", "cellar", "orchard", "stable", "market", "harbour")
THINGS = ("lamp", "drum", "basket", "kettle")
GIFTS = ("ring", "clock", "violin", "letter")
DIRECTIONS = ("north", "south", "east", "west")
QUESTIONS = 4

_WALKS = ("walked to", "went to", "hurried to", "came to")
_TAKES = ("picked up", "took", "got hold of")
_DROPS = ("put down", "left", "let go of")
_GIVES = ("gave", "handed", "passed")
_INTRODUCTION = "Between the lines of the following text some facts are told. Answer the question from them alone.\n"


@dataclass
class _World:
    """Where everyone and everything is, who holds what, and the sentences that told it."""

    draws: random.Random
    person_at: dict[str, str] = field(default_factory=dict)
    holder: dict[str, str] = field(default_factory=dict)
    seen_at: dict[str, list[str]] = field(default_factory=dict)
    facts: list[str] = field(default_factory=list)

    def walk(self, person: str) -> None:
        place = self.draws.choice([p for p in PLACES if p != self.person_at.get(person)])
        self.person_at[person] = place
        self.tell(f"{person} {self.draws.choice(_WALKS)} the {place}.")
        for thing, holder in self.holder.items():
            if holder == person:
                self.seen(thing, place)

    def take(self, person: str, thing: str) -> None:
        self.holder[thing] = person
        self.tell(f"{person} {self.draws.choice(_TAKES)} the {thing}.")
        self.seen(thing, self.person_at[person])

    def drop(self, thing: str) -> None:
        self.tell(f"{self.holder.pop(thing)} {self.draws.choice(_DROPS)} the {thing}.")

    def seen(self, thing: str, place: str) -> None:
        places = self.seen_at.setdefault(thing, [])
        if not places or places[-1] != place:
            places.append(place)

    def tell(self, sentence: str) -> None:
        self.facts.append(f" {sentence} ")

    def act(self) -> None:
        """Something that can happen here: someone walks, takes what lies at the same place, or puts it down."""
        person = self.draws.choice(PEOPLE)
        at = self.person_at.get(person)
        lying = [t for t in THINGS if t not in self.holder and at is not None and self.seen_at.get(t, [at])[-1] == at]
        held = [t for t, holder in self.holder.items() if holder == person]
        choice = self.draws.random()
        if lying and choice < 0.4:
            self.take(person, self.draws.choice(lying))
        elif held and choice < 0.55:
            self.drop(self.draws.choice(held))
        else:
            self.walk(person)


def one_fact(draws: random.Random) -> Puzzle:
    """qa1: people walk about; where is someone?"""
    world = _World(draws)
    for person in draws.sample(PEOPLE, len(PEOPLE)):
        world.walk(person)
    for _ in range(6):
        world.walk(draws.choice(PEOPLE))
    return _puzzle(world.facts, [_where(person, place) for person, place in world.person_at.items()], draws)


def two_facts(draws: random.Random) -> Puzzle:
    """qa2: people carry things about; where is a thing?"""
    while True:
        world = _World(draws)
        for _ in range(24):
            world.act()
        if len(world.seen_at) == len(THINGS):
            places = {thing: places[-1] for thing, places in world.seen_at.items()}
            return _puzzle(world.facts, [_where(f"the {thing}", place) for thing, place in places.items()], draws)


def three_facts(draws: random.Random) -> Puzzle:
    """qa3: people carry things about; where was a thing before it was somewhere?"""
    while True:
        world = _World(draws)
        for _ in range(30):
            world.act()
        asked = [
            _asked(f"Where was the {thing} before it was last in the {place}?", _before_last(places, place), PLACES)
            for thing, places in world.seen_at.items()
            for place in dict.fromkeys(places)
            if _before_last(places, place)
        ]
        if len(asked) >= QUESTIONS:
            return _puzzle(world.facts, asked, draws)


def _before_last(places: list[str], place: str) -> str:
    last = len(places) - 1 - places[::-1].index(place)
    return places[last - 1] if last else ""


def two_relations(draws: random.Random) -> Puzzle:
    """qa4: places lie beside each other; what lies beside one, and beside which does it lie?"""
    first, middle, last = draws.sample(PLACES, 3)
    way = draws.choice(DIRECTIONS)
    facts = [f" The {a} lies just {way} of the {b}. " for a, b in ((first, middle), (middle, last))]
    draws.shuffle(facts)
    asked = [
        question
        for a, b in ((first, middle), (middle, last))
        for question in (
            _asked(f"What lies just {way} of the {b}?", a, PLACES),
            _asked(f"What does the {a} lie just {way} of?", b, PLACES),
        )
    ]
    return _puzzle(facts, asked, draws)


def three_relations(draws: random.Random) -> Puzzle:
    """qa5: people give each other things; who gave what to whom?"""
    facts, gifts = [], []
    for thing in draws.sample(GIFTS, 3):
        giver, receiver = draws.sample(PEOPLE, 2)
        gifts.append((giver, thing, receiver))
        facts.append(f" {giver} {draws.choice(_GIVES)} the {thing} to {receiver}. ")
    asked = []
    for giver, thing, receiver in gifts:
        asked.append(_asked(f"Who gave the {thing} to {receiver}?", giver, PEOPLE))
        asked.append(_asked(f"To whom did {giver} give the {thing}?", receiver, PEOPLE))
        if sum(g[::2] == (giver, receiver) for g in gifts) == 1:
            asked.append(_asked(f"What did {giver} give to {receiver}?", thing, GIFTS))
    return _puzzle(facts, asked, draws)


def _where(what: str, place: str) -> Question:
    return _asked(f"Where is {what}?", place, PLACES)


def _asked(text: str, answer: str, candidates: tuple[str, ...]) -> Question:
    return Question(f"\nQuestion: {text}\nAnswer:", f" {answer}", (answer,), candidates)


def _puzzle(facts: list[str], questions: list[Question], draws: random.Random) -> Puzzle:
    chosen = draws.sample(questions, min(QUESTIONS, len(questions)))
    return Puzzle(_INTRODUCTION, tuple(facts), tuple(chosen))
