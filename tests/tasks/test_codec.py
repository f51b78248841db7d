"""Text to ids and back: nothing added, letters with ids of their own, and tokenizers that lose digits refused."""

import numpy as np
import pytest

from lengthen.errors import InputError
from lengthen.tasks import Codec
from lengthen.tasks.codec import plain
from tests.tasks.conftest import KINDS


def test_a_tokenizer_without_digits_is_refused():
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<unk>": 0, "the": 1}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(InputError, match="no answer could be right; use one that encodes digits"):
        Codec(PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_comes_back_from_its_ids_and_nothing_is_added(codecs, kind):
    codec = codecs[kind]
    text = "The pass key is 48215."
    ids = codec.encode(text)
    assert ids.dtype == np.int64 and 0 <= ids.min() <= ids.max() < codec.vocabulary_size
    assert plain(codec.decode(ids)) == plain(text)
    assert not len(codec.before) or not np.array_equal(ids[: len(codec.before)], codec.before)


def test_only_a_tokenizer_that_begins_texts_has_ids_before(codecs):
    assert len(codecs["bpe"].before) == 1 and codecs["bpe"].end is not None
    assert len(codecs["bytes"].before) == len(codecs["unigram"].before) == 0 and codecs["bytes"].end is None


def test_bytes_that_are_no_text_and_ids_beyond_them_do_no_harm(by_bytes):
    assert by_bytes.decode([0xE2, 0x82, 0xAC, 0x41]) == "€A"
    assert by_bytes.decode([0xFF, 0x41, 300]) == "\ufffdA"


@pytest.mark.parametrize("kind", KINDS)
def test_letters_and_marks_are_ids_of_their_own(codecs, kind):
    codec = codecs[kind]
    assert len(set(codec.letters.tolist())) == len(codec.letters) >= 16
    assert set(codec.marks) == set(".|?") and len(set(codec.marks.values())) == 3
    assert not set(codec.marks.values()) & set(codec.letters.tolist())


def test_codecs_of_one_tokenizer_are_equal(codecs):
    assert Codec("bytes") == codecs["bytes"] and hash(Codec("bytes")) == hash(codecs["bytes"])
    assert codecs["bpe"] != codecs["unigram"] and codecs["bytes"] != "bytes"


def test_plain_drops_what_tokenizers_may_drop():
    assert plain(" A b\n C ") == "abc"
