"""Pieces read columns as the sequences they were cut from do, however many stand one under the other."""

import numpy as np
import pytest

from lengthen import wrap
from lengthen.diagnosis import pieces
from lengthen.diagnosis.pieces import Pieces, rows_together
from lengthen.models import zero_state
from tests.conftest import tiny_mamba2

TOKENS = np.arange(60).reshape(3, 20)


@pytest.mark.parametrize(("firsts", "count", "times"), [([0, 5, 13], None, 1), ([7], 2, 1), ([2, 3], 2, 3)])
def test_pieces_are_slices_one_under_the_other(firsts, count, times):
    found = Pieces(TOKENS, firsts, 6, sequences=count, times=times)
    expected = np.concatenate([TOKENS[:count, first : first + 7] for first in firsts] * times)
    assert found.shape == expected.shape and found.targets is None
    assert np.array_equal(found[:, :], expected)
    assert np.array_equal(found[1:3, 2:5], expected[1:3, 2:5]) and np.array_equal(found[:, -2:], expected[:, -2:])


def test_own_targets_are_cut_with_their_inputs():
    class Sequences(np.ndarray):
        targets = TOKENS[:, :-1] + 100

    found = Pieces(TOKENS.view(Sequences), [4, 9], 5)
    assert np.array_equal(found.targets[:, 0:5], np.asarray(found[:, 0:5]) + 100)


def test_fewer_rows_stand_side_by_side_where_their_states_are_large(monkeypatch):
    model = wrap(tiny_mamba2())
    one = zero_state(model, 1).bytes
    assert rows_together(model, 8) == 8
    monkeypatch.setattr(pieces, "BYTES", 3 * one + one // 2)
    assert (rows_together(model, 8), rows_together(model, 2)) == (3, 2)
    monkeypatch.setattr(pieces, "BYTES", 1)
    assert rows_together(model, 8) == 1
