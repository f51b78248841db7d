"""A tokenizer of a task's own words."""

from lengthen.studies.own_words import START, own_tokenizer
from lengthen.tasks.codec import Codec


def test_places_people_and_digits_are_single_tokens_after_a_start_mark():
    codec = Codec(own_tokenizer("babilong-qa1"))
    assert len(codec.encode(" library")) == len(codec.encode(" Anna")) == 1
    assert len(codec.encode("97")) == 2 and codec.decode(codec.encode("A key: 97.")) == "A key: 97."
    assert codec.before.tolist() == codec.encode(START).tolist()
