"""Searches over a few scales: what they find, step by step, and where they stop."""

import pytest
import torch

from lengthen.errors import RunError
from lengthen.models.agreement import relative_error
from lengthen.training_free.scale_search import LEAST, descent, spsa


def bowl(scales):
    """Least, and 0, at (0.5, 2)."""
    return ((scales - torch.tensor([0.5, 2.0])) ** 2).sum()


def test_searches_find_the_bottom_of_a_bowl():
    start = torch.ones(2)
    assert relative_error(spsa(bowl, start, steps=60, rate=0.2, seed=0), torch.tensor([0.5, 2.0])) < 0.05
    assert relative_error(descent(bowl, start, steps=60, rate=0.1), torch.tensor([0.5, 2.0])) < 0.05
    assert torch.equal(start, torch.ones(2))


def test_a_step_of_spsa_by_hand():
    """Of one scale: losses at 1.1 and 0.9 are 0.36 and 0.16, so the slope is 1 and a rate of 0.25 takes 1 to 0.75."""
    seen = []

    def loss(scales):
        seen.append(scales.item())
        return (scales[0] - 0.5) ** 2

    assert spsa(loss, torch.ones(1), steps=1, rate=0.25, seed=0).item() == pytest.approx(0.75)
    assert sorted(seen[1:3]) == pytest.approx([0.9, 1.1]) and [seen[0], seen[3]] == pytest.approx([1, 0.75])


def test_scales_stay_above_the_least_and_the_best_met_is_kept():
    assert spsa(lambda s: s.sum(), torch.ones(2), steps=30, rate=1.0, seed=0).min() == pytest.approx(LEAST)
    assert descent(lambda s: s.sum(), torch.ones(2), steps=30, rate=0.1).min() == pytest.approx(LEAST)
    assert spsa(lambda s: ((s - 1) ** 2).sum(), torch.ones(2), steps=3, rate=0.1, seed=0).tolist() == [1, 1]
    with pytest.raises(RunError, match="The loss is nan at the scales"):
        descent(lambda s: (s - 1.5).log().sum(), torch.ones(2), steps=1, rate=0.1)


def test_the_seed_alone_decides_which_scales_are_tried():
    def tried(seed):
        seen = []
        spsa(lambda s: (seen.append(s.tolist()), bowl(s[:2]))[1], torch.ones(6), steps=4, rate=0.1, seed=seed)
        return seen

    torch.manual_seed(0)
    first = tried(3)
    torch.manual_seed(1)
    assert tried(3) == first and tried(4) != first and len(first) == 1 + 2 * 4 + 1
    steps = [(torch.tensor(up) - torch.tensor(down)).abs() for up, down in zip(first[1:-1:2], first[2:-1:2])]
    for step, moved in enumerate(steps):
        torch.testing.assert_close(moved, torch.full((6,), 0.2 / (1 + step) ** 0.1))


def test_a_search_without_gradients_takes_none_and_one_with_them_leaves_none():
    seen = []

    def loss(scales):
        seen.append(torch.is_grad_enabled())
        return bowl(scales)

    spsa(loss, torch.ones(2), steps=1, rate=0.1, seed=0)
    assert seen == [False] * 4
    start = torch.ones(2)
    found = descent(loss, start, steps=2, rate=0.1)
    assert seen[4:] == [True, True, False] and not found.requires_grad and start.grad is None
