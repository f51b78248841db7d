"""Draws belong to (seed, step, lane): the same wherever a row lies, different wherever one of the three differs."""

import torch

from lengthen.interventions.draws import is_noisy, standard_normal, uniform
from tests.interventions.states import SPECS, rows, zero


def test_a_uniform_draw_is_its_seed_step_and_lane_and_nothing_else():
    torch.manual_seed(1)
    one = uniform(0, 3, 5)
    torch.manual_seed(2)
    assert uniform(0, 3, 5) == one
    assert len({one, uniform(1, 3, 5), uniform(0, 4, 5), uniform(0, 3, 6), uniform(0, 35, 0), uniform(0, 0, 35)}) == 6


def test_uniform_draws_are_uniform():
    drawn = torch.tensor([uniform(0, step, lane) for step in range(20) for lane in range(100)])
    assert drawn.min() >= 0 and drawn.max() < 1
    tenths = torch.histc(drawn, 10, 0, 1)
    assert (tenths - 200).abs().max() < 60  # of 2,000 draws: four and a half standard deviations


def test_a_row_draws_the_same_in_any_company_and_from_any_origin():
    def drawn(lanes, origin=0):
        batch = rows(lanes, step=2, total=8)
        return standard_normal(batch.__class__(**{**vars(batch), "origin": origin}), 7, zero(len(lanes)))

    whole, part = drawn(range(8)), drawn([6, 2])
    for key, tensor in whole.items():
        assert torch.equal(part[key], tensor[[6, 2]])
        assert torch.equal(drawn([2, 0], origin=4)[key], tensor[[6, 4]])


def test_draws_are_standard_normal_in_the_shape_of_every_recurrent_tensor():
    drawn = standard_normal(rows(range(50)), 0, zero(50))
    assert set(drawn) == {("l", "h")} and drawn["l", "h"].shape == (50, 2, 30, 40)
    assert abs(drawn["l", "h"].mean()) < 0.02 and abs(drawn["l", "h"].std() - 1) < 0.02
    assert not torch.equal(drawn["l", "h"][:, 0], drawn["l", "h"][:, 1])


def test_windows_and_maxima_have_no_noise():
    assert [name for name, spec in SPECS["l"].items() if is_noisy(spec)] == ["h"]


def test_drawing_leaves_the_global_generator_where_it_was():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    standard_normal(rows(range(3)), 0, zero(3))
    assert torch.equal(torch.get_rng_state(), before)
