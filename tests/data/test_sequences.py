"""Held-out sequences read piece by piece are what an array of them would be."""

import numpy as np
import pytest

from lengthen.data import load_corpus
from lengthen.data.arrays import IGNORED
from lengthen.data.sequences import HeldOutSequences
from lengthen.errors import InputError
from tests.data.random_corpora import numbered


def test_columns_are_contiguous_positions_of_the_corpus():
    found = HeldOutSequences(numbered([40, 40]), length=15, count=4)
    assert found.shape == (4, 16) and len(found) == 4 and found.targets is None
    whole = found[:, :]
    assert whole.dtype == np.int64 and (np.diff(whole) == 1).all()
    pieces = [found[:, low : low + 5] for low in range(0, 16, 5)]
    assert np.array_equal(np.concatenate(pieces, 1), whole) and pieces[-1].shape == (4, 1)
    assert np.array_equal(found[1:3, 2:4], whole[1:3, 2:4])


def test_shorter_ones_begin_where_the_long_ones_do_and_overlap_less():
    found = HeldOutSequences(numbered([20]), length=15, count=2)
    short = found.first(7)
    assert short.shape == (2, 8) and found.shape == (2, 16)
    assert np.array_equal(short[:, :], found[:, :8])
    assert found.overlap > 0 and short.overlap == max(0, found.overlap - 8)


def test_own_targets_lie_beside_their_inputs_and_a_missing_one_is_refused_where_it_is_read():
    values, targets = np.arange(30), np.arange(30) + 100
    targets[5:] = IGNORED
    corpus = load_corpus([values], targets=[targets])
    found = HeldOutSequences(corpus, length=30, count=1)
    assert found.targets[:, 1:4].tolist() == [[101, 102, 103]]
    with pytest.raises(InputError, match=r"^A held-out sequence has no target at position 5,"):
        found.targets[:, 3:8]
