"""The convolution in front of a recurrence: its sums, its window over segments and resets, and whose activation follows."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import ACT2FN

from lengthen.models.call import Marks
from lengthen.models.convolution import convolved

X = torch.randn(2, 9, 6, generator=torch.Generator().manual_seed(0))


def layer(activation="silu", width=4, bias=True, **more):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        convolution = nn.Conv1d(6, 6, width, groups=6, padding=width - 1, bias=bias)
    return SimpleNamespace(conv1d=convolution, activation=activation, **more)


def expected(layer, x):
    """As the library's layers write it: the convolution of the whole text, cut to its length, and the activation."""
    return ACT2FN[layer.activation](layer.conv1d(x.mT)[..., : x.shape[1]].mT)


@torch.no_grad()
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["silu", "swish", "gelu", "relu"])
def test_the_output_is_the_layer_s_own_convolution_and_activation(activation, bias):
    made = layer(activation, bias=bias)
    y, window = convolved(made, X, {}, Marks())
    torch.testing.assert_close(y, expected(made, X))
    assert torch.equal(window, X[:, -3:].mT)


@torch.no_grad()
def test_the_function_that_a_layer_holds_is_used_rather_than_one_of_that_name():
    held = layer("gelu", act=torch.tanh)
    torch.testing.assert_close(convolved(held, X, {}, Marks())[0], torch.tanh(held.conv1d(X.mT)[..., : X.shape[1]].mT))
    without = layer("gelu")
    torch.testing.assert_close(convolved(without, X, {}, Marks())[0], F.gelu(without.conv1d(X.mT)[..., :9].mT))


@torch.no_grad()
@pytest.mark.parametrize("activation", ["silu", "gelu"])
@pytest.mark.parametrize("cut", [1, 2, 8])
def test_two_segments_are_one(cut, activation):
    made = layer(activation)
    first, window = convolved(made, X[:, :cut], {}, Marks())
    second, last = convolved(made, X[:, cut:], {"window": window, "recurrent": torch.zeros(2, 1)}, Marks())
    whole, final = convolved(made, X, {}, Marks())
    torch.testing.assert_close(torch.cat([first, second], 1), whole)
    assert torch.equal(last, final)
    assert torch.equal(window[0, :, -1], X[0, cut - 1]) and (cut > 2 or not window[..., 0].any())


@torch.no_grad()
def test_nothing_before_a_reset_and_no_padding_is_seen():
    made, reset = layer("gelu"), torch.zeros(2, 9, dtype=torch.bool)
    reset[0, 4] = True
    y, window = convolved(made, X, {"window": torch.ones(2, 6, 3)}, Marks(reset, torch.tensor([6, 9])))
    alone, end = convolved(made, X[:1, 4:6], {}, Marks())
    torch.testing.assert_close(y[:1, 4:6], alone)
    assert torch.equal(window[:1], end) and torch.equal(window[1], X[1, -3:].mT)


@torch.no_grad()
def test_a_convolution_of_one_tap_has_an_empty_window():
    made = layer(width=1)
    y, window = convolved(made, X, {"window": torch.zeros(2, 6, 0)}, Marks())
    torch.testing.assert_close(y, expected(made, X))
    assert window.shape == (2, 6, 0)
