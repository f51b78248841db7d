"""The initial states that studies compare: names of the command line, and chains cut short."""

import pytest
import torch

from lengthen import Rows, wrap, zero_state
from lengthen.errors import InputError
from lengthen.interventions import intervention_named
from lengthen.studies.study_interventions import intervention_of
from tests.conftest import tiny_mamba2


def test_a_short_chain_goes_through_fewer_windows_than_its_depth():
    zero = zero_state(wrap(tiny_mamba2(num_hidden_layers=1)), 4)
    chain = intervention_of("short-chains:depth=3", 0)
    ages = []
    for step in range(9):  # a state counts the windows that it has gone through
        rows = Rows(torch.arange(4), torch.zeros(4, dtype=torch.bool), step, 4, True, tokens=1)
        final = chain.initial_state(rows, zero).map(lambda t, spec: t + 1)
        ages.append(final.tensors["backbone.layers.0.mixer"]["recurrent"].flatten(1).amax(1).tolist())
        chain.observe(rows, final)
    later = torch.tensor(ages[3:])
    assert later.min() == 1 and later.max() == 3
    assert all(sorted(column) == [1, 1, 2, 2, 3, 3] for column in later.T.tolist())
    assert len(set(map(tuple, later.T.tolist()))) == 3  # the lanes in turn


def test_all_other_names_are_those_of_the_command_line():
    for text in ("fitted-noise", "random-noise:std=2.0", "state-passing:p_zero=0.5"):
        assert intervention_of(text, 7).describe() == intervention_named(text, 7).describe()
        assert intervention_of(text, 7).seed == 7
    with pytest.raises(InputError, match="no-such-states"):
        intervention_of("no-such-states", 0)


@pytest.mark.parametrize("depth", [2, 5])
def test_one_lane_in_as_many_as_the_depth_starts_from_zero_at_each_step(depth):
    chain = intervention_of(f"short-chains:depth={depth}", 0)
    rows = Rows(torch.arange(2 * depth), torch.zeros(2 * depth, dtype=torch.bool), 7, 2 * depth, True, tokens=1)
    assert int(chain._from_zero(rows).sum()) == 2


def test_no_lane_of_a_short_chain_is_always_zero_however_few_there_are():
    zero = zero_state(wrap(tiny_mamba2(num_hidden_layers=1)), 1)
    chain = intervention_of("short-chains:depth=2", 0)
    sizes = []
    for step in range(4):
        rows = Rows(torch.arange(1), torch.zeros(1, dtype=torch.bool), step, 1, True, tokens=1)
        given = chain.initial_state(rows, zero)
        sizes.append(given.tensors["backbone.layers.0.mixer"]["recurrent"].max().item())
        chain.observe(rows, given.map(lambda t, spec: t + 1))
    assert sizes == [0, 1, 0, 1]
