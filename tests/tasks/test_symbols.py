"""Tasks of single tokens: answers follow from the prompt, and each symbol is a token."""

import pytest

from lengthen.errors import InputError
from lengthen.tasks import TASKS
from lengthen.tasks.prompts import Wanted
from lengthen.tasks.symbols import PAIRS, QUERIES, SELECTED
from tests.tasks.conftest import KINDS


def test_answers_of_symbol_tasks_follow_from_the_prompt(by_bytes):
    for index in range(50):
        (copied,) = TASKS["copying"].group(Wanted(40, by_bytes, index=index))[None]
        assert by_bytes.decode(copied.ids) == by_bytes.decode(copied.answer) + "|"
        (selected,) = TASKS["selective-copying"].group(Wanted(40, by_bytes, index=index))[None]
        assert by_bytes.decode(selected.ids).replace(".", "") == by_bytes.decode(selected.answer) + "|"
        for recalled in TASKS["associative-recall"].group(Wanted(60, by_bytes, index=index))[None]:
            body, _, key = by_bytes.decode(recalled.ids).partition("?")
            joined = body.replace(".", "")
            pairs = {joined[i : i + 2]: joined[i + 2] for i in range(0, len(joined), 3)}
            assert len(pairs) == 8 and pairs[key] == by_bytes.decode(recalled.answer)


@pytest.mark.parametrize("kind", KINDS)
def test_symbols_are_letters_in_a_prompt_of_the_length_asked_for(codecs, kind):
    codec = codecs[kind]
    for name in ("copying", "selective-copying", "associative-recall"):
        for answered in (False, True):
            for prompt in TASKS[name].group(Wanted(64, codec, answered=answered))[None]:
                assert len(prompt.ids) + answered * len(prompt.answer) == 64
                assert set(prompt.answer.tolist()) <= set(codec.letters.tolist())
                body = prompt.ids[len(codec.before) :].tolist()
                assert set(body) <= {*codec.letters.tolist(), *codec.marks.values()}


def test_keys_of_a_prompt_are_told_apart(by_bytes):
    for index in range(50):
        asked = TASKS["associative-recall"].group(Wanted(60, by_bytes, index=index))[None]
        keys = [by_bytes.decode(prompt.ids[-2:]) for prompt in asked]
        assert len(keys) == QUERIES == len(set(keys))
        text = by_bytes.decode(asked[0].ids).partition("?")[0].replace(".", "")
        assert len({text[i : i + 2] for i in range(0, len(text), 3)}) == PAIRS


def test_a_prompt_of_nothing_but_symbols_has_no_room_to_spare(by_bytes):
    (prompt,) = TASKS["selective-copying"].group(Wanted(SELECTED + 1, by_bytes))[None]
    assert by_bytes.decode(prompt.ids) == by_bytes.decode(prompt.answer) + "|"
    with pytest.raises(InputError, match=r"too short for this task, which needs at least 9"):
        TASKS["selective-copying"].group(Wanted(SELECTED, by_bytes))
