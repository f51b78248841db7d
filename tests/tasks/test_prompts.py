"""Prompts: exact lengths over any tokenizer, facts exactly where promised, the same for the same seed, and tests that no
training can have shown."""

import re

import numpy as np
import pytest

from lengthen.errors import InputError
from lengthen.tasks import TASKS
from lengthen.tasks.codec import plain
from lengthen.tasks.prompts import Wanted
from tests.tasks.conftest import KINDS

TEXT = [name for name in TASKS if name.startswith(("passkey", "niah", "variable", "babilong"))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TASKS)
def test_every_prompt_has_the_length_asked_for(codecs, kind, name):
    """Also with the answer counted; and with text as the haystack, where the task has one."""
    codec = codecs[kind]
    for length in (1500, 1501):
        for options in ({}, {"answered": True}, {"haystack": "plays", "index": 3}):
            group = TASKS[name].group(Wanted(length, codec, depths=(0.0, 0.3, 1.0), **options))
            for prompt in (p for asked in group.values() for p in asked):
                assert len(prompt.ids) + (len(prompt.answer) if options.get("answered") else 0) == length
                assert np.array_equal(prompt.ids[: len(codec.before)], codec.before)
                assert len(prompt.answer) and int(max(prompt.ids.max(), prompt.answer.max())) < codec.vocabulary_size


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TEXT)
def test_facts_are_whole_in_the_text_of_the_ids(codecs, kind, name):
    """What the ids decode to holds every target as often as without a haystack: once a fact, nowhere in the filler."""
    codec, task = codecs[kind], TASKS[name]
    for haystack in ("noise", "plays"):
        for prompt in next(iter(task.group(Wanted(2500, codec, haystack=haystack)).values())):
            text, bare = plain(codec.decode(prompt.ids)), plain(codec.decode(prompt.ids[-200:]))
            assert plain(prompt.question) in bare
            told = {"passkey": 2, "variable-tracking": 2}.get(name, 1)
            for target in prompt.targets:
                if name.startswith("babilong"):
                    assert plain(target) in text
                else:
                    last = name == "variable-tracking" and target == prompt.targets[-1]
                    assert text.count(plain(target)) == (1 if last else told)


@pytest.mark.parametrize("name", ["passkey", "niah-single"])
def test_the_fact_stands_at_its_depth(by_bytes, name):
    """To within a sentence of the haystack, and exactly at both ends."""
    depths = (0.0, 0.25, 0.5, 0.75, 1.0)
    group = TASKS[name].group(Wanted(4000, by_bytes, depths=depths))
    assert tuple(group) == depths
    for depth, (prompt,) in group.items():
        text = by_bytes.decode(prompt.ids)
        fact = re.search(r"\n(The pass key is|A number of the) [^\n]*\n", text)
        before = fact.start() - text.index("\n") - 1
        filler = len(text) - (text.index("\n") + 1) - len(fact[0]) - (len(text) - text.rindex("\nWhich"))
        assert (
            -60 <= before - depth * filler <= 0.5
        )  # the start of the sentence there; the longest noise has 30 characters
        assert before == {0.0: 0, 1.0: filler}.get(depth, before)
    texts = {
        by_bytes.decode(p.ids).replace(re.search(r"\n(The pass|A num)[^\n]*\n", by_bytes.decode(p.ids))[0], "")
        for (p,) in group.values()
    }
    assert len(texts) == 1  # one haystack, one question


def test_the_same_seed_gives_the_same_prompts(by_bytes):
    for task in TASKS.values():
        first, again, other = (task.group(Wanted(1500, by_bytes, seed=s)) for s in (5, 5, 6))
        for depth in first:
            assert all(np.array_equal(a.ids, b.ids) for a, b in zip(first[depth], again[depth]))
            assert not all(np.array_equal(a.ids, b.ids) for a, b in zip(first[depth], other[depth]))


def _prompts(task, codec, split, count, length):
    made = (task.group(Wanted(length, codec, seed=int(split == "test"), index=i, split=split)) for i in range(count))
    return {p.ids.tobytes() for group in made for asked in group.values() for p in asked}


@pytest.mark.parametrize("name", TASKS)
def test_no_test_is_a_training_sample(by_bytes, name):
    """Neither with the filler equal: at the shortest length every prompt is its facts and its question alone."""
    length = 0 if name in TEXT else 40
    train, test = (_prompts(TASKS[name], by_bytes, split, 500, length) for split in ("train", "test"))
    assert not train & test


@pytest.mark.acceptance
@pytest.mark.parametrize("name", TASKS)
def test_ten_thousand_samples_share_no_prompt(by_bytes, name):
    length = 0 if name in TEXT else 40
    train, test = (_prompts(TASKS[name], by_bytes, split, 10_000, length) for split in ("train", "test"))
    assert not train & test


@pytest.mark.parametrize("name", TASKS)
def test_a_length_too_short_says_what_is_needed(by_bytes, name):
    """And what it says is enough."""
    with pytest.raises(InputError, match="too short for this task, which needs at least") as error:
        TASKS[name].group(Wanted(3, by_bytes))
    needed = int(re.search(r"at least (\d+)", str(error.value))[1])
    assert TASKS[name].group(Wanted(needed, by_bytes))
    with pytest.raises(InputError, match="too short"):
        TASKS[name].group(Wanted(needed - 1, by_bytes))
