"""How far apart two runs are: errors worked out by hand, and what may not be hidden in one number."""

import pytest
import torch

from lengthen.models.agreement import gradient_error, relative_error, state_error
from lengthen.state import RecurrentState, TensorSpec


def state(first, second):
    tensors = {"one": {"h": torch.tensor([first])}, "two": {"h": torch.tensor([second])}}
    return RecurrentState(tensors, {layer: {"h": TensorSpec("recurrent")} for layer in tensors}, "test")


def test_the_error_is_the_larger_of_the_two_norms():
    by_the_largest = relative_error(torch.tensor([3.0, 5.0]), torch.tensor([3.0, 4.0]))  # 1 / 5 and 1 / 4
    by_the_sum = relative_error(torch.tensor([5.0, 1, 1, 1]), torch.tensor([4.0, 0, 0, 0]))  # 2 / 4 and 1 / 4
    assert by_the_largest == 0.25 and by_the_sum == 0.5


def test_a_difference_below_the_precision_of_a_tensor_s_type_is_counted_in_float64():
    found, expected = torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.float64) + 1e-12
    assert relative_error(found, expected) == pytest.approx(1e-12, rel=1e-3)


def test_an_error_against_zero_is_large_but_a_number():
    assert relative_error(torch.zeros(3), torch.zeros(3)) == 0
    assert 1e20 < relative_error(torch.full((3,), 1e-8), torch.zeros(3)) < float("inf")


@pytest.mark.parametrize("entry", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_infinitely_far_off(entry):
    assert relative_error(torch.tensor([1.0, entry]), torch.ones(2)) == float("inf")
    assert relative_error(torch.tensor([1.0, entry]), torch.tensor([1.0, entry])) == float("inf")


def test_tensors_without_entries_agree():
    assert relative_error(torch.zeros(2, 3, 0), torch.zeros(2, 3, 0)) == 0


def test_the_error_of_a_state_is_that_of_its_worst_tensor():
    assert state_error(state([4.0], [8.0]), state([4.0], [10.0])) == pytest.approx(0.2)
    assert state_error(state([5.0], [10.0]), state([4.0], [10.0])) == 0.25


def test_gradients_are_one_vector_in_which_small_ones_count_little():
    found = [torch.tensor([3.0, 4.0]), None, torch.tensor([[0.5]])]
    expected = [torch.tensor([3.0, 4.0]), None, torch.tensor([[0.0]])]
    assert gradient_error(found, expected) == 0.125  # 0.5 / 4


def test_a_missing_gradient_is_infinitely_far_off():
    gradient = torch.ones(2)
    assert gradient_error([gradient, None], [gradient, gradient]) == float("inf")
    assert gradient_error([gradient, gradient], [gradient, None]) == float("inf")
