"""What a state looks like at a position: the statistics of every head over its entries and over all rows."""

import math

import numpy as np
import pytest
import torch

from lengthen import diagnose, wrap
from lengthen.diagnosis.states import head_states, head_statistics, heads
from lengthen.state import RecurrentState, TensorSpec
from tests.conftest import tiny_mamba2


def test_state_spread_equals_the_state():
    model = wrap(tiny_mamba2())
    tokens = np.random.default_rng(0).integers(256, size=(16, 65))
    found = diagnose(model, tokens, train_context=32, max_length=64)
    with torch.no_grad():
        state = model(torch.as_tensor(tokens[:, :32])).final_state
    for entry in (s for s in found.states if s.position == 32):
        head = state.tensors[entry.layer][entry.tensor][:, entry.head].double()
        assert entry.mean == pytest.approx(float(head.mean()), abs=1e-9)
        assert entry.std == pytest.approx(float(head.std(unbiased=False)), rel=1e-6)
        assert entry.norm == pytest.approx(float(head.flatten(1).norm(dim=1).square().mean().sqrt()), rel=1e-6)
        assert entry.largest == pytest.approx(float(head.abs().max()), rel=1e-6)


def random_state(rows=5):
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "first": {"matrix": torch.randn(rows, 3, 4, 2, generator=generator), "window": torch.ones(rows, 2)},
        "second": {"vector": torch.randn(rows, 6, generator=generator) + 3},
    }
    specs = {
        "first": {"matrix": TensorSpec("recurrent", head_axis=1), "window": TensorSpec("window")},
        "second": {"vector": TensorSpec("recurrent")},
    }
    return RecurrentState(tensors, specs, "toy")


def test_heads_are_those_of_recurrent_tensors_in_the_order_of_their_statistics():
    state = random_state()
    assert heads(state) == [*(("first", "matrix", head) for head in range(3)), ("second", "vector", 0)]
    found = head_statistics(state)
    assert found.shape == (5, 4, 4) and found.dtype == np.float64
    entries = state.tensors["first"]["matrix"][4, 2].double()
    expected = [entries.mean(), entries.std(unbiased=False), entries.abs().max(), entries.norm()]
    assert found[4, 2].tolist() == pytest.approx([float(x) for x in expected])


def test_one_entry_a_head_tells_all_rows_together():
    state = random_state()
    told = head_states(7, heads(state), head_statistics(state))
    entries = state.tensors["second"]["vector"].double()
    last = told[-1]
    assert len(told) == 4 and (last.position, last.layer, last.tensor, last.head) == (7, "second", "vector", 0)
    assert last.mean == pytest.approx(float(entries.mean())) and last.largest == float(entries.abs().max())
    assert last.std == pytest.approx(float(entries.std(unbiased=False)))
    assert last.norm == pytest.approx(float(entries.norm(dim=1).square().mean().sqrt()))


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_state_that_overflowed_is_told_and_not_hidden(value):
    """Its spread too is no number, least of all 0."""
    state = random_state()
    state.tensors["second"]["vector"][0, 0] = value
    with np.errstate(invalid="raise"):
        last = head_states(1, heads(state), head_statistics(state))[-1]
    assert last.largest == pytest.approx(value, nan_ok=True) and math.isnan(last.std)
