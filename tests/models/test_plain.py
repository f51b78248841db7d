"""Whether a linear layer's weights may be read instead of calling it."""

import pytest
import torch
from torch import nn

from lengthen.models.plain import is_plain_linear


def hooked(linear):
    linear.register_forward_hook(lambda *_: None)
    return linear


def pre_hooked(linear):
    linear.register_forward_pre_hook(lambda *_: None)
    return linear


def replaced(linear):
    linear.forward = lambda x: x
    return linear


def derived(linear):
    class Quantised(nn.Linear):
        pass

    return Quantised(linear.in_features, linear.out_features)


def test_a_linear_layer_is_plain_in_any_dtype_and_with_or_without_bias():
    assert is_plain_linear(nn.Linear(2, 3)) and is_plain_linear(nn.Linear(2, 3, bias=False).to(torch.bfloat16))


@pytest.mark.parametrize("taken", [hooked, pre_hooked, replaced, derived, torch.nn.utils.parametrizations.weight_norm])
def test_what_has_taken_a_layer_over_is_seen(taken):
    assert not is_plain_linear(taken(nn.Linear(2, 3)))


def test_other_modules_are_not_linear():
    assert not is_plain_linear(nn.Identity()) and not is_plain_linear(nn.Conv1d(2, 2, 1))
