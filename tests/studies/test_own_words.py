"""A tokenizer of a task's own words: digits one by one, any text, and the same whenever it is made."""

import pytest

from lengthen.studies.own_words import START, VOCABULARY, own_tokenizer
from lengthen.tasks.codec import Codec


def test_places_people_and_digits_are_single_tokens_after_a_start_mark():
    codec = Codec(own_tokenizer("babilong-qa1"))
    assert len(codec.encode(" library")) == len(codec.encode(" Anna")) == 1
    assert len(codec.encode("97")) == 2 and codec.decode(codec.encode("A key: 97.")) == "A key: 97."
    assert codec.before.tolist() == codec.encode(START).tolist()


def test_digits_stay_apart_even_where_a_task_has_many():
    tokenizer = own_tokenizer("passkey")
    digits = [token for token in tokenizer.get_vocab() if any(character.isdecimal() for character in token)]
    assert sorted(digits) == list("0123456789")


@pytest.mark.parametrize("task", ["copying", "passkey"])
def test_any_text_can_be_told_and_read_back(task):
    tokenizer, text = own_tokenizer(task), "Zürich, €5:\n\t日本 <&>"
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text
    assert len(tokenizer) <= VOCABULARY


def test_a_tokenizer_made_again_is_the_same():
    again = own_tokenizer.__wrapped__("passkey")
    assert again.get_vocab() == own_tokenizer("passkey").get_vocab() and own_tokenizer("passkey") is not again
