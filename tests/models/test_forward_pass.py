"""Around every forward: what does not fit is refused, padding goes behind, and every layer's final state is collected."""

import pytest
import torch
from torch import nn

from lengthen import wrap, zero_state
from lengthen.errors import InputError
from lengthen.models.call import current_call
from lengthen.models.forward_pass import ForwardPass
from lengthen.models.hooked_layers import hooked
from lengthen.models.hooks import Hook
from tests.conftest import tiny_mamba2
from tests.models.plain_models import Regressor, frames

X = frames(3, 8)
MASK = torch.ones(3, 8, dtype=torch.long)
MASK[0, :3] = MASK[1, 2:4] = MASK[2, 7] = 0


@pytest.fixture
def model():
    return wrap(Regressor())


class Lanes(Hook):
    name, period, lanes = "lanes", 4, 2


def begin(model, x=X, state=None, reset=None, mask=None):
    return ForwardPass.begin(model, x, state, reset, mask)


def ended(step, value=1.0):
    """The step after its layers were run, each of which ended with this value throughout."""
    with step.running():
        for layer, named in zero_state(step.target, step.rows).tensors.items():
            step.call.collect(layer, {name: torch.full_like(t, value) for name, t in named.items()})
    return step


def test_what_does_not_fit_the_input_is_refused(model):
    with pytest.raises(InputError, match=r"^The input has no positions; give at least one token\.$"):
        begin(model, X[:, :0])
    for name in ("reset", "mask"):
        with pytest.raises(InputError, match=r"has shape \(3, 7\), the input 3 rows of 8 positions\.$"):
            begin(model, **{name: torch.zeros(3, 7, dtype=torch.bool)})
    with pytest.raises(InputError, match=r"^initial_state has 2 rows, the input 3; use initial_state\.index\.$"):
        begin(model, state=zero_state(model, 2))
    with pytest.raises(InputError, match="is of another model than the one expected"):
        begin(model, state=zero_state(wrap(Regressor("LSTM")), 3))


def test_a_state_that_does_not_fit_is_refused_by_the_model_s_forward():
    model, ids = wrap(tiny_mamba2()), torch.ones(3, 20, dtype=torch.long)
    with pytest.raises(InputError, match="another model"):
        model(ids, initial_state=zero_state(wrap(tiny_mamba2(state_size=8)), 3))
    with pytest.raises(InputError, match="2 rows"):
        model(ids, initial_state=zero_state(model, 2))
    with pytest.raises(InputError, match="bool"):
        model(ids, reset=torch.zeros_like(ids))
    with pytest.raises(InputError, match="positions"):
        model(ids[:, :0])


def test_real_positions_are_packed_in_front_and_come_back_to_their_places(model):
    step = begin(model, mask=MASK)
    packed = step.pack(X)
    for row, length in enumerate([5, 6, 7]):
        assert torch.equal(packed[row, :length], X[row, MASK[row].bool()])
    assert step.call.marks.lengths.tolist() == [5, 6, 7]
    assert torch.equal(step.unpack(packed), X) and torch.equal(step.unpack((packed, packed))[1], X)


def test_without_padding_nothing_is_moved(model):
    state = zero_state(model, 3)
    step = begin(model, state=state, mask=torch.ones(3, 8))
    assert step.pack(X) is X and step.unpack(X) is X and step.call.marks.lengths is None
    assert step.call.initial_state is state and step.rows == 3


def test_layers_see_the_call_while_it_runs_and_what_they_collect_is_the_final_state(model):
    step = begin(model)
    with step.running():
        assert current_call() is step.call and not step.call.finished
    assert current_call() is None and step.call.finished
    step = ended(begin(model))
    step.call.collect("layer", {"hidden": torch.zeros(3, 1, 12)})  # as a recomputation would
    final = step.final_state()
    assert (final.tensors["layer"]["hidden"] == 1).all() and final.layout == zero_state(model, 3).layout


def test_a_row_reset_behind_its_last_token_ends_with_zero(model):
    reset = torch.zeros(3, 8, dtype=torch.bool)
    reset[1, 7] = reset[2, 7] = True  # the last position of row 1 is real, that of row 2 is not
    final = ended(begin(model, reset=reset, mask=MASK)).final_state().tensors["layer"]["hidden"]
    assert [row.unique().tolist() for row in final] == [[1], [1], [0]]


def test_a_layer_that_was_not_run_is_named():
    model = wrap(nn.Sequential(Regressor(), nn.Linear(3, 5), Regressor("RNN")))
    step = begin(model)
    with step.running():
        step.call.collect("0.layer", {"hidden": torch.zeros(3, 1, 12)})
    with pytest.raises(InputError, match=r"^The recurrent layer 2\.layer was not run in this forward of Sequential"):
        step.final_state()


def test_a_hook_s_lanes_run_as_further_rows_of_each_sequence(model):
    with hooked(model, Lanes()):
        mask = torch.ones(3, 8)
        mask[1, :2] = 0
        step = begin(model, mask=mask)
        packed = step.pack(X)
        assert step.rows == 6 and torch.equal(packed[:3], packed[3:]) and torch.equal(packed[0], X[0])
        assert step.call.marks.lengths.tolist() == [8, 6, 8, 8, 6, 8]
        assert step.call.initial_state.rows == 6 and torch.equal(step.unpack(packed), X)
