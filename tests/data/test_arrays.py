"""Corpora from arrays: what they hold, what targets they are given, and what is refused."""

import numpy as np
import pytest

from lengthen.data.arrays import IGNORED, array_corpus
from lengthen.errors import InputError

IDS = [np.array([3, 1, 2]), np.array([5])]
FRAMES = [np.ones((3, 2)), np.zeros((2, 2))]


def test_the_vocabulary_is_what_the_ids_need_unless_given():
    assert array_corpus(IDS, None, None, None).vocabulary_size == 6
    corpus = array_corpus(IDS, None, 100, None)
    assert corpus.vocabulary_size == 100 and corpus.values.tolist() == [3, 1, 2, 5]


def test_frames_keep_their_features():
    assert array_corpus(FRAMES, None, None, None).values.shape == (5, 2)


def test_targets_are_joined_cut_with_the_corpus_and_count_for_its_identity():
    targets = [np.array([1, IGNORED, 0]), np.array([4])]
    corpus = array_corpus(IDS, targets, None, None)
    assert corpus.targets.tolist() == [1, IGNORED, 0, 4]
    assert corpus.content != array_corpus(IDS, None, None, None).content
    cut = array_corpus(IDS, targets, None, 2)
    assert len(cut.values) == len(cut.targets) == 2


@pytest.mark.parametrize(
    ("arrays", "targets", "size", "message"),
    [
        ([np.array([0, -1])], None, None, r"^Array 0 holds the token id -1, outside a vocabulary of 1 ids"),
        (IDS, None, 5, r"^Array 1 holds the token id 5, outside a vocabulary of 5 ids"),
        ([FRAMES[0], np.ones((2, 3))], None, None, r"^Array 1 has shape \(2, 3\)"),
        ([FRAMES[0], np.full((2, 2), np.nan)], None, None, r"^Array 1 holds a value that is not finite at position 0"),
        (IDS, [np.array([1, 2, 3])], None, r"^There are 2 arrays but 1 targets"),
        (
            IDS,
            [np.array([1, 2]), np.array([1])],
            None,
            r"^Target 0 has shape \(2,\) and type int64 against 3 positions",
        ),
        (IDS, [np.array([1, -2, 3]), np.array([1])], None, r"^Target 0 is negative somewhere"),
        (IDS, [np.array([1.0, np.inf, 3]), np.array([1.0])], None, r"^Target 0 holds a value that is not finite"),
    ],
)
def test_what_no_model_could_be_trained_on_is_refused(arrays, targets, size, message):
    with pytest.raises(InputError, match=message):
        array_corpus(arrays, targets, size, None)
