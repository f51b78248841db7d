"""Lessons: what is learnt and practised is told by plain values, and fits into the training context."""

import json
from dataclasses import replace

import pytest

from lengthen.interventions import intervention_named
from lengthen.studies.lessons import BEFORE, LESSONS
from lengthen.tasks import TASKS, Codec
from lengthen.tasks.prompts import Wanted


@pytest.mark.parametrize("name", LESSONS)
def test_every_lesson_has_a_control_a_task_and_arms_that_can_be_made(name):
    lesson = LESSONS[name]
    assert lesson.name == name and lesson.question.endswith("?") and lesson.task in TASKS
    assert lesson.arms["control"] == "zero" and len(lesson.arms) >= 2 and set(lesson.long_stories) <= set(lesson.arms)
    for text in lesson.arms.values():
        intervention_named(text, 0)


@pytest.mark.parametrize("name", LESSONS)
def test_lengths_begin_within_the_training_context_and_go_far_beyond_it(name):
    lesson = LESSONS[name]
    assert list(lesson.lengths) == sorted(set(lesson.lengths))
    assert lesson.lengths[0] <= lesson.train_context < lesson.lengths[-1] / 4
    if lesson.task in ("copying", "associative-recall"):
        TASKS[lesson.task].group(Wanted(lesson.train_context, Codec("bytes"), answered=True))


@pytest.mark.parametrize("name", LESSONS)
def test_each_arm_is_told_apart_and_shares_what_was_learnt(name):
    lesson = LESSONS[name]
    told = {arm: json.dumps(lesson.describe(arm), sort_keys=True) for arm in (BEFORE, *lesson.arms)}
    assert len(set(told.values())) == len(told)
    assert all(lesson.learnt().items() <= lesson.describe(arm).items() for arm in told)


def test_practice_changes_the_arms_and_not_what_was_learnt():
    lesson = LESSONS["learn-copying"]
    other = replace(lesson, practice=lesson.practice + 1)
    assert other.learnt() == lesson.learnt() and other.describe(BEFORE) == lesson.describe(BEFORE)
    assert other.describe("control") != lesson.describe("control")
    assert replace(lesson, steps=1).learnt() != lesson.learnt()
