"""Passkey, needle in a haystack and variable tracking: what is hidden and what is asked.

The needle tasks follow the definitions of RULER (Hsieh et al., "RULER: What's the Real Context Size of Your Long-Context
Language Models?", 2024), the pass key those of Mohtashami and Jaggi ("Landmark Attention", 2023), in other words.
"""

from __future__ import annotations

import itertools
import random
import string

from lengthen.tasks.prompts import Puzzle, Question

KEYS, VALUES, CHAIN = 4, 4, 5
"""Needles of a many-key or many-query task, values of a many-value task, variables of a chain."""

_KINDS = (
    "amber bitter broken bronze clever copper crimson dusty eager faded gentle golden hidden hollow humble ivory jolly "
    "lonely mellow narrow nimble patient polished quiet rusty silver slender sturdy velvet wooden"
)
_THINGS = (
    "anchor anvil arrow barrel basin beacon bellows bottle bucket candle carriage chisel compass cradle feather funnel "
    "goblet hammer kettle ladder lantern mirror needle pebble pillow saddle shovel thimble trumpet whistle"
)


def passkey(draws: random.Random) -> Puzzle:
    """One key of five digits."""
    key = str(draws.randint(10000, 99999))
    fact = f"\nThe pass key is {key}. Keep {key} in mind, for it is the pass key.\n"
    question = "\nWhich pass key was told above? The pass key is"
    introduction = "Somewhere in the following text a pass key is told. You will be asked for it.\n"
    return Puzzle(introduction, (fact,), (Question(question, f" {key}", (key,)),))


def needle(draws: random.Random) -> Puzzle:
    """One number under one name."""
    return _needles(draws, keys=1, values=1, together=False)


def many_keys(draws: random.Random) -> Puzzle:
    """Numbers under several names, each asked for by itself."""
    return _needles(draws, keys=KEYS, values=1, together=False)


def many_values(draws: random.Random) -> Puzzle:
    """Several numbers under one name, all asked for."""
    return _needles(draws, keys=1, values=VALUES, together=False)


def many_queries(draws: random.Random) -> Puzzle:
    """Numbers under several names, all asked for at once."""
    return _needles(draws, keys=KEYS, values=1, together=True)


def _needles(draws: random.Random, *, keys: int, values: int, together: bool) -> Puzzle:
    names: list[str] = []
    while len(names) < keys:
        name = f"{draws.choice(_KINDS.split())} {draws.choice(_THINGS.split())}"
        names += [name] if name not in names else []
    numbers = [str(n) for n in draws.sample(range(1_000_000, 10_000_000), keys * values)]
    owned = {name: numbers[i * values : (i + 1) * values] for i, name in enumerate(names)}
    facts = [f"\nA number of the {name} is {number}.\n" for name in names for number in owned[name]]
    if keys > 1:
        draws.shuffle(facts)
    if together:
        listed = ", the ".join(names)
        questions = [_asked(f"\nWhich are the numbers of the {listed}, in this order? They are", numbers)]
    elif values > 1:
        questions = [_asked(f"\nWhich are all the numbers of the {names[0]}? They are", numbers)]
    else:
        questions = [_asked(f"\nWhich is the number of the {n}? The number of the {n} is", owned[n]) for n in names]
    introduction = "In the following text numbers of some things are told. You will be asked for them.\n"
    return Puzzle(introduction, tuple(facts), tuple(questions))


def _asked(text: str, targets: list[str]) -> Question:
    return Question(text, " " + ", ".join(targets), tuple(targets))


def variable_tracking(draws: random.Random) -> Puzzle:
    """Variables that get a value one from the other; asked for are all that have it."""
    names: list[str] = []
    while len(names) < CHAIN:
        name = "".join(draws.choices(string.ascii_uppercase, k=5))
        names += [name] if name not in names else []
    value = draws.randint(10000, 99999)
    facts = [f"\nLet {names[0]} be {value}.\n"]
    facts += [f"\nLet {later} be the same as {earlier}.\n" for earlier, later in itertools.pairwise(names)]
    introduction = "In the following text variables are given values. Keep track of them.\n"
    question = _asked(f"\nWhich variables have the value {value}? They are", names)
    return Puzzle(introduction, tuple(facts), (question,))
