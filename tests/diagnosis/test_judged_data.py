"""What a diagnosis judges by: sequences cut to length, and refused where the model cannot read them."""

import numpy as np
import pytest

from lengthen import wrap
from lengthen.data import HeldOutSequences, load_corpus
from lengthen.diagnosis.judged_data import judged_sequences
from lengthen.errors import InputError
from tests.conftest import tiny_mamba2
from tests.models.plain_models import Regressor

TOKENS = np.random.default_rng(0).integers(256, size=(5, 40))


@pytest.fixture(scope="module")
def model():
    return wrap(tiny_mamba2())


def judged(model, data, length=16, n=4, tokenizer=None, join=False, seed=0):
    return judged_sequences(model, data, length, n, tokenizer, join, seed)


def test_sequences_are_cut_to_the_length_and_a_target_and_kept_all(model):
    assert np.array_equal(judged(model, TOKENS), TOKENS[:, :17])
    held_out = HeldOutSequences(load_corpus(["a text " * 40]), length=32, count=3)
    assert np.array_equal(judged(model, held_out)[:, :], held_out[:, :17])


def test_a_text_and_a_corpus_give_the_same_sequences(model):
    texts = ["so be it " * 30, "or not so " * 30]
    first, second = judged(model, texts, tokenizer="bytes"), judged(model, load_corpus(texts))
    assert first.shape == (4, 17) and np.array_equal(first[:, :], second[:, :])
    assert not np.array_equal(first[:, :], judged(model, texts, tokenizer="bytes", seed=1)[:, :])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (TOKENS[:, :16], r"^The sequences have 16 positions, but 17 are needed\.$"),
        (TOKENS.astype(float), r"^The data are float64 of shape \(5, 17\), but a language model reads token ids"),
        (np.zeros((2, 20, 3)), r"^The data are float64 of shape \(2, 17, 3\)"),
        (TOKENS + 10, r"^The tokens run from 1\d to 26\d, but the model has ids 0 to 255\.$"),
        (TOKENS % 3 - 1, r"^The tokens run from -1 to"),
    ],
)
def test_what_a_language_model_cannot_read_is_refused(model, data, message):
    with pytest.raises(InputError, match=message):
        judged(model, data)


def test_a_corpus_of_another_vocabulary_is_refused(model):
    corpus = load_corpus([np.arange(300, 340)], vocabulary_size=1000)
    with pytest.raises(InputError, match=r"^The data hold token id 339, but the model's vocabulary has 256 ids;"):
        judged(model, corpus)


@pytest.mark.parametrize(
    ("corpus", "message"),
    [
        (
            load_corpus([np.arange(300, 340)], vocabulary_size=1000),
            r"^The tokens run from 30\d to 3[123]\d, but the model",
        ),
        (load_corpus([np.zeros((40, 3), np.float32)]), r"^The data are float32 of shape \(2, 17, 3\), but a language"),
    ],
)
def test_held_out_sequences_of_another_model_are_refused_too(model, corpus, message):
    with pytest.raises(InputError, match=message):
        judged(model, HeldOutSequences(corpus, length=18, count=2))


def test_the_last_input_with_a_target_of_its_own_may_end_the_corpus(model):
    inputs = np.arange(64).reshape(2, 32)
    corpus = load_corpus([*inputs], targets=[*(255 - inputs)])
    found = judged(model, corpus, length=32, n=2)
    assert judged(model, found, length=32).shape == (2, 33)
    assert np.array_equal(found.targets[:, 0:32], 255 - found[:, 0:32])


def test_frames_are_for_a_module_that_takes_them():
    frames = np.random.default_rng(0).normal(size=(2, 40, 5)).astype(np.float32)
    assert judged(wrap(Regressor()), frames).shape == (2, 17, 5)
