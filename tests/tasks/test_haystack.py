"""What facts are hidden in: any number of tokens, beginning and parting at sentences."""

import random

import numpy as np
import pytest

from lengthen.errors import InputError
from lengthen.tasks import TASKS
from lengthen.tasks.haystack import SENTENCE_ENDS, Haystack, haystack_named
from lengthen.tasks.prompts import Wanted
from tests.tasks.conftest import KINDS


def test_a_users_text_is_the_haystack(by_bytes, tmp_path):
    (tmp_path / "own.txt").write_text("Quartz is a mineral. It is hard. " * 50)
    (prompt,) = TASKS["niah-single"].group(Wanted(1200, by_bytes, haystack=str(tmp_path / "own.txt")))[0.5]
    assert by_bytes.decode(prompt.ids).count("Quartz") > 20
    with pytest.raises(InputError, match="neither noise nor plays"):
        TASKS["niah-single"].group(Wanted(1200, by_bytes, haystack="nowhere.txt"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("source", ["noise", "plays"])
def test_a_filler_has_any_length_and_parts_between_sentences(codecs, kind, source):
    codec = codecs[kind]
    filler = haystack_named(source, codec, "test")
    for count in (0, 1, 7, 500, 20_001):
        ids, parts = filler.take(random.Random(0), count)
        assert len(ids) == count and parts[0] == 0 and parts[-1] == count and np.all(np.diff(parts) > 0)
        for part in parts[1:-1].tolist()[:50]:
            assert codec.decode(ids[part - 1 : part]).rstrip(" ").endswith(SENTENCE_ENDS)


def test_noise_begins_at_its_first_sentence_and_text_at_any(by_bytes):
    noise = haystack_named("noise", by_bytes, "test")
    assert {by_bytes.decode(noise.take(random.Random(seed), 18)[0]) for seed in range(9)} == {"The hill is quiet."}
    plays = haystack_named("plays", by_bytes, "test")
    begun = {by_bytes.decode(plays.take(random.Random(seed), 40)[0]) for seed in range(9)}
    assert len(begun) == 9 and by_bytes.decode(plays.take(random.Random(0), 40)[0]) in begun


def test_a_text_shorter_than_what_is_asked_for_begins_again(by_bytes):
    filler = Haystack(by_bytes.encode("One.Two."), by_bytes, varied=False)
    ids, parts = filler.take(random.Random(0), 19)
    assert by_bytes.decode(ids) == "One.Two.One.Two.One" and parts.tolist() == [0, 4, 8, 12, 16, 19]


def test_training_and_tests_hide_facts_in_other_plays(by_bytes):
    train, test = (
        haystack_named("plays", by_bytes, split).take(random.Random(1), 300)[0] for split in ("train", "test")
    )
    assert not np.array_equal(train, test)


def test_an_empty_text_is_refused(by_bytes):
    with pytest.raises(InputError, match=r"^The text to hide facts in is empty;"):
        Haystack(by_bytes.encode(""), by_bytes, varied=True)
