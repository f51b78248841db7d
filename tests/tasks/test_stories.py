"""Stories have one answer, which a solver that reads their sentences finds as well."""

import random

import pytest

from lengthen.tasks.stories import one_fact, three_facts, three_relations, two_facts, two_relations
from tests.tasks.story_solver import solve


@pytest.mark.parametrize("tell", [one_fact, two_facts, three_facts, two_relations, three_relations])
def test_a_solver_finds_the_answers_of_a_thousand_stories(tell):
    """The answer is the solver's, among the candidates, and not among what the question names."""
    for seed in range(1000):
        story = tell(random.Random(seed))
        assert len(story.questions) == 4
        assert len({q.text for q in story.questions}) == 4
        for question in story.questions:
            assert (solve(list(story.facts), question.text),) == question.targets, (seed, story.facts, question)
            assert question.answer == f" {question.targets[0]}"
            assert question.targets[0] in question.candidates
            assert question.targets[0] not in question.text
