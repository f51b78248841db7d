"""Needles, pass keys and variables: every target is told once in a fact, and no other fact can be taken for it."""

import random
import re

import pytest

from lengthen.tasks.needles import (
    CHAIN,
    KEYS,
    VALUES,
    many_keys,
    many_queries,
    many_values,
    needle,
    passkey,
    variable_tracking,
)

SEEDS = range(200)


@pytest.mark.parametrize(
    ("draw", "facts", "questions", "targets"),
    [
        (passkey, 1, 1, 1),
        (needle, 1, 1, 1),
        (many_keys, KEYS, KEYS, 1),
        (many_values, VALUES, 1, VALUES),
        (many_queries, KEYS, 1, KEYS),
        (variable_tracking, CHAIN, 1, CHAIN),
    ],
)
def test_as_much_is_told_and_asked_as_the_task_says(draw, facts, questions, targets):
    for seed in SEEDS:
        puzzle = draw(random.Random(seed))
        assert len(puzzle.facts) == facts and len(puzzle.questions) == questions
        for question in puzzle.questions:
            assert len(set(question.targets)) == targets
            told = "".join(puzzle.facts)
            assert all(target in told for target in question.targets)
            assert not any(target in puzzle.introduction + question.text for target in question.targets)


@pytest.mark.parametrize("draw", [needle, many_keys, many_values, many_queries])
def test_a_number_belongs_to_the_name_that_is_asked_for(draw):
    for seed in SEEDS:
        puzzle = draw(random.Random(seed))
        owned = dict(reversed(re.search(r"number of the (.+) is (\d{7})", fact).groups()) for fact in puzzle.facts)
        assert len(owned) == len(puzzle.facts)
        for question in puzzle.questions:
            names = [owned[target] for target in question.targets]
            places = [question.text.index(name) for name in names]
            assert places == sorted(places)  # asked for in the order of the answer


def test_a_chain_of_variables_leads_back_to_the_value():
    for seed in SEEDS:
        puzzle = variable_tracking(random.Random(seed))
        (question,) = puzzle.questions
        first = re.fullmatch(r"\nLet ([A-Z]{5}) be (\d{5})\.\n", puzzle.facts[0])
        assert first[2] in question.text and first[1] == question.targets[0]
        pairs = [re.search(r"Let (\w+) be the same as (\w+)\.", fact).groups() for fact in puzzle.facts[1:]]
        assert pairs == list(zip(question.targets[1:], question.targets))


@pytest.mark.parametrize("draw", [passkey, many_queries, variable_tracking])
def test_the_answer_in_text_holds_every_target_and_draws_alone_decide(draw):
    puzzle = draw(random.Random(7))
    for question in puzzle.questions:
        assert question.answer == " " + ", ".join(question.targets)
    assert puzzle == draw(random.Random(7)) != draw(random.Random(8))
