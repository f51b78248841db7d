"""Passed states: each lane its own, its share of zeros, however rows are batched; documents go on where they stopped."""

import pytest
import torch

from lengthen import TBPTT, StatePassing
from lengthen.errors import InputError
from tests.interventions.states import filled, h, rows, zero


def test_state_passing_hands_each_lane_its_own_state_and_keeps_the_lowest_lanes_at_zero():
    sp = StatePassing(zero_fraction=0.25, p_zero=0)
    assert h(sp.initial_state(rows(range(8)), zero(8))).tolist() == [0] * 8
    sp.observe(rows(range(8)), filled(range(1, 9)))
    given = sp.initial_state(rows([7, 0, 3, 1, 2, 4, 5, 6], step=1), zero(8))
    assert h(given).tolist() == [8, 0, 4, 0, 3, 5, 6, 7]
    assert given.tensors["l"]["w"].abs().sum() == 0  # the window state stays zero unless asked for
    passing = StatePassing(zero_fraction=0, p_zero=0, window_state=True)
    passing.observe(rows([0, 1]), filled([1, 2]))
    assert passing.initial_state(rows([0, 1]), zero(2)).tensors["l"]["w"][1, 0, 0] == 2


def test_state_passing_does_not_depend_on_how_rows_are_batched():
    whole, parts = StatePassing(p_zero=0.5), StatePassing(p_zero=0.5)
    whole.observe(rows(range(8)), filled(range(1, 9)))
    for part in ([4, 5, 6, 7], [0, 1, 2, 3]):
        parts.observe(rows(part, total=8), filled([x + 1 for x in part]))
    one = h(whole.initial_state(rows(range(8), step=3), zero(8)))
    two = torch.cat([h(parts.initial_state(rows(p, step=3, total=8), zero(4))) for p in ([0, 1, 2, 3], [4, 5, 6, 7])])
    assert torch.equal(one, two)
    assert 0 < (one == 0).sum() < 8


def test_state_passing_never_zeroes_no_lane_silently():
    with pytest.raises(InputError, match="at least 4 rows"):
        StatePassing(zero_fraction=0.25).initial_state(rows([0, 1, 2]), zero(3))
    StatePassing(zero_fraction=0).initial_state(rows([0, 1, 2]), zero(3))


def test_p_zero_zeroes_its_share():
    sp = StatePassing(zero_fraction=0, p_zero=0.3)
    sp.observe(rows(range(1000)), filled([1.0] * 1000))
    share = (h(sp.initial_state(rows(range(1000), step=1), zero(1000))) == 0).float().mean()
    assert 0.25 < share < 0.35


@pytest.mark.parametrize("fraction, lanes, zero_lanes", [(0.29, 100, 29), (0.58, 100, 58), (0.25, 7, 1), (1.0, 5, 5)])
def test_the_share_of_zero_lanes(fraction, lanes, zero_lanes):
    sp = StatePassing(zero_fraction=fraction, p_zero=0)
    sp.observe(rows(range(lanes)), filled([1.0] * lanes))
    assert (h(sp.initial_state(rows(range(lanes), step=1), zero(lanes))) == 0).sum() == zero_lanes


def test_tbptt_continues_documents_and_starts_them_from_zero():
    t = TBPTT()
    t.observe(rows([0, 1, 2], shuffled=False, start=[True] * 3), filled([1, 2, 3]))
    given = t.initial_state(rows([0, 1, 2], step=1, shuffled=False, start=[False, True, False]), zero(3))
    assert h(given).tolist() == [1, 0, 3] and given.tensors["l"]["w"][0].abs().sum() > 0
    with pytest.raises(InputError, match="shuffled"):
        t.initial_state(rows([0, 1, 2]), zero(3))
