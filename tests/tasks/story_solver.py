"""Answers a story's question from its sentences alone, knowing nothing of how stories are made."""

from __future__ import annotations

import re

MOVE = re.compile(r"^(\w+) (?:walked|went|hurried|came) to the (\w+)$")
TAKE = re.compile(r"^(\w+) (?:picked up|took|got hold of) the (\w+)$")
DROP = re.compile(r"^(\w+) (?:put down|left|let go of) the (\w+)$")
LIES = re.compile(r"^The (\w+) lies just (\w+) of the (\w+)$")
GIVE = re.compile(r"^(\w+) (?:gave|handed|passed) the (\w+) to (\w+)$")


def solve(facts: list[str], question: str) -> str:
    """The one answer; fails on a sentence or question it does not understand, and where answers differ."""
    facts = [fact.strip().removesuffix(".") for fact in facts]
    asked = re.search(r"Question: (.*)\?", question).group(1)
    if any(LIES.match(f) or GIVE.match(f) for f in facts):
        return _relation(facts, asked)
    return _history(facts, asked)


def _relation(facts: list[str], asked: str) -> str:
    triples = [(LIES.match(f) or GIVE.match(f)).groups() for f in facts]
    patterns = {
        r"What lies just (?P<b>\w+) of the (?P<c>\w+)": 0,
        r"What does the (?P<a>\w+) lie just (?P<b>\w+) of": 2,
        r"Who gave the (?P<b>\w+) to (?P<c>\w+)": 0,
        r"To whom did (?P<a>\w+) give the (?P<b>\w+)": 2,
        r"What did (?P<a>\w+) give to (?P<c>\w+)": 1,
    }
    for pattern, place in patterns.items():
        if found := re.fullmatch(pattern, asked):
            known = found.groupdict()
            answers = {t[place] for t in triples if all(known.get(n, v) == v for n, v in zip("abc", t))}
            assert len(answers) == 1, (asked, answers)
            return answers.pop()
    raise AssertionError(f"not understood: {asked}")


def _history(facts: list[str], asked: str) -> str:
    """Replays the story event by event: at each, where every person and every thing known of is."""
    where: dict[str, str] = {}
    carried: dict[str, str] = {}
    visits: dict[str, list[str]] = {}
    for fact in facts:
        if found := MOVE.match(fact):
            where[found[1]] = found[2]
        elif found := TAKE.match(fact):
            assert found[2] not in carried, f"taken from someone: {fact}"
            assert visits.get(found[2], [where[found[1]]])[-1] == where[found[1]], f"taken from afar: {fact}"
            carried[found[2]] = found[1]
        elif found := DROP.match(fact):
            assert carried.pop(found[2]) == found[1], f"not held: {fact}"
        else:
            raise AssertionError(f"not understood: {fact}")
        for thing, person in carried.items():
            if visits.setdefault(thing, [""])[-1] != where[person]:
                visits[thing].append(where[person])
    if found := re.fullmatch(r"Where was the (\w+) before it was last in the (\w+)", asked):
        path = visits[found[1]][1:]
        return path[max(i for i, p in enumerate(path) if p == found[2]) - 1]
    what = re.fullmatch(r"Where is (?:the )?(\w+)", asked)[1]
    return where[what] if what in where else visits[what][-1]
