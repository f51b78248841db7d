"""A mixture gives each part its share of the lanes, and each part draws for itself."""

import pytest
import torch

from lengthen import TBPTT, FittedNoise, Mixture, RandomNoise, StatePassing, Zero
from lengthen.errors import InputError
from tests.interventions.states import filled, h, rows, zero


def test_mixture_gives_each_part_its_share_of_the_lanes():
    m = Mixture([(StatePassing(zero_fraction=0, p_zero=0), 0.5), (Zero(), 0.25), (RandomNoise(1.0), 0.25)])
    m.observe(rows(range(8)), filled(range(1, 9)))
    given = m.initial_state(rows([7, 6, 5, 4, 3, 2, 1, 0], step=1), zero(8))
    assert h(given)[4:].tolist() == [4, 3, 2, 1] and h(given)[2:4].tolist() == [0, 0]
    assert (given.tensors["l"]["h"][:2].std() - 1).abs() < 0.1
    with pytest.raises(InputError, match="add up"):
        Mixture([(Zero(), 0.5)])
    with pytest.raises(InputError, match="no lane"):
        Mixture([(Zero(), 0.9), (TBPTT(), 0.1)]).initial_state(rows([0, 1]), zero(2))


def test_the_noises_of_a_mixture_are_independent():
    m = Mixture([(RandomNoise(1.0), 0.5), (RandomNoise(1.0), 0.5)])
    drawn = m.initial_state(rows(range(4), step=1), zero(4)).tensors["l"]["h"]
    assert not torch.equal(drawn[:2], drawn[2:])


def test_a_process_without_rows_of_a_part_still_begins_its_steps():
    """Every process reduces the moments of every part, or the others would wait for it for ever."""
    m = Mixture([(FittedNoise(), 0.5), (Zero(), 0.5)])
    begun = []
    m.parts[0][0].advance = lambda step, zero: begun.append(step)
    for step in range(3):
        m.initial_state(rows([4, 5], step=step, total=8), zero(2))
        m.observe(rows([4, 5], step=step, total=8), zero(2))
    assert begun == [0, 1, 2]
