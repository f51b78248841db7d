"""Lanes of a sequence: as many rows inside the model, one row outside, and at each position the oldest is read."""

import pytest
import torch

from lengthen import wrap
from lengthen.errors import InputError
from lengthen.models.hooks import POSITIONS, Hook, lane_name
from lengthen.models.staggered import Staggered, offset
from lengthen.training_free import method_of
from tests.conftest import tiny_mamba2

IDS = torch.randint(256, (2, 10), generator=torch.Generator().manual_seed(0))


class Three(Hook):
    period, lanes = 6, 3


@pytest.fixture(scope="module")
def model():
    return wrap(tiny_mamba2())


def test_lanes_begin_evenly_within_a_period():
    assert [offset(Three(), lane) for lane in range(3)] == [0, 2, 4]


def test_a_model_without_lanes_is_left_as_it_is(model):
    state = object()
    assert Staggered.begin(model, IDS, state, None) == (None, state)


def test_at_each_position_the_lane_is_read_whose_period_began_first(model):
    with method_of("staggered-lanes:window=6").fit(model).apply(model):
        lanes, state = Staggered.begin(model, IDS, None, None)
        assert lanes.hook.lanes == 2 and state.rows == 4
        # lane 0 begins at 0, 6, 12, ..., lane 1 at 3, 9, ...: the one that is further on in its period
        ages = [[t % 6, (t + 3) % 6] for t in range(10)]
        expected = [max(range(2), key=age.__getitem__) for age in ages]
        assert lanes.read.tolist() == [expected, expected]
        with pytest.raises(InputError, match=r"^staggered-lanes runs rows of its own, which packed rows cannot;"):
            Staggered.begin(model, IDS, None, IDS > 300)


def lanes_of_three():
    return Staggered(None, Three(), torch.tensor([[0, 1, 2, 0], [2, 2, 1, 1]]))


def test_rows_are_spread_lane_by_lane_and_chosen_again():
    lanes = lanes_of_three()
    x = torch.arange(8.0).view(2, 4)
    spread = lanes.spread(x)
    assert spread.shape == (6, 4) and torch.equal(lanes.chosen(spread), x)
    marked = spread + 100 * torch.arange(3.0).repeat_interleave(2)[:, None]
    assert ((lanes.chosen(marked) - x) / 100).tolist() == lanes.read.tolist()
    features, both = torch.randn(6, 4, 5), (marked, marked[..., None])
    assert lanes.chosen(features).shape == (2, 4, 5)
    assert [part.shape for part in lanes.chosen(both)] == [(2, 4), (2, 4, 1)]


def test_a_state_of_all_lanes_is_one_row_a_sequence_and_comes_back():
    lanes = lanes_of_three()
    state = {"h": torch.randn(6, 2, 3), POSITIONS: torch.arange(6)}
    outside = lanes.one_row(state)
    assert set(outside) == {"h", lane_name(1, "h"), lane_name(2, "h"), POSITIONS}
    assert all(len(t) == 2 for t in outside.values())
    inside = lanes._rows(outside)
    assert torch.equal(inside["h"], state["h"])
    assert inside[POSITIONS].tolist() == [0, 1, 2, 3, 4, 5]  # of each lane: the first's, and its offset
