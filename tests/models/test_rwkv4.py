"""RWKV-4: transformers' Rwkv, whose library rescales weights in place and writes into the state it is given."""

import copy
import pickle

import pytest
import torch
from transformers import AutoModelForCausalLM

from lengthen import check, unwrap, wrap, zero_state
from lengthen.models.agreement import relative_error, state_error
from lengthen.models.binding import weights_fingerprint
from tests.models.family_properties import *  # noqa: F403
from tests.models.family_properties import IDS, PLAIN, builder

CLASSES = {
    "Rwkv": {
        "wide channel mix": {"rescale_every": 0},
        "narrow channel mix, tied": {
            "rescale_every": 0,
            "num_hidden_layers": 2,
            "intermediate_size": 40,
            "layer_norm_epsilon": 1e-3,
            "tie_word_embeddings": True,
        },
    },
}


@pytest.fixture
def library_heeds_masks():
    return False


@pytest.fixture
def library_states():
    """The third of five lists, by layer: the numerators."""
    return lambda _, output: output.state[2].unbind(2)


@pytest.fixture
def adapted_layers():
    return ["key", "receptance"]


@pytest.fixture
def recurrence_parameter():
    return "time_decay"


@pytest.fixture
def rescaled():
    """A model whose library halves hidden states, and with them weights, after the second of three layers."""
    return builder("Rwkv", {"rescale_every": 2})()


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def differing(one, other):
    return {name.rsplit(".", 2)[1] for name, tensor in one.items() if not torch.equal(tensor, other[name])}


@torch.no_grad()
def test_no_mode_changes_the_weights(rescaled, tmp_path):
    """The library's own evaluation changes them, so that what it saves afterwards is another model."""
    saved = weights(rescaled)
    expected = rescaled.train()(IDS, **PLAIN).logits
    assert relative_error(rescaled.eval()(IDS, **PLAIN).logits, expected) < 1e-4
    assert differing(weights(rescaled), saved) == {"output", "value"}
    rescaled.save_pretrained(tmp_path / "library")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "library")
    assert relative_error(again(IDS, **PLAIN).logits, expected) > 1e-2

    wrap(rescaled)  # while rescaled
    fingerprint = weights_fingerprint(rescaled)
    for training in (True, False, True, False):
        assert relative_error(rescaled.train(training)(IDS).logits, expected) < 1e-6
        rescaled.train(training)(IDS, use_cache=True)
        assert not differing(weights(rescaled), saved) and weights_fingerprint(rescaled) == fingerprint
    rescaled.save_pretrained(tmp_path / "lengthen")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "lengthen")
    assert relative_error(again(IDS, **PLAIN).logits, expected) < 1e-4  # rescaled: the norms' epsilon weighs more


@torch.no_grad()
def test_copies_keep_their_weights_and_unwrap_lets_the_library_rescale_again(rescaled):
    wrap(rescaled)
    before = weights(rescaled)
    for copied in (copy.deepcopy(rescaled), pickle.loads(pickle.dumps(rescaled))):
        assert torch.equal(copied(IDS).logits, rescaled(IDS).logits)
        assert not differing(weights(copied), before)
    expected = rescaled(IDS).logits
    assert relative_error(unwrap(rescaled)(IDS, **PLAIN).logits, expected) < 1e-4
    assert differing(weights(rescaled), before) == {"output", "value"}


def test_nothing_is_written_into_a_state_and_gradients_flow_through_it(rescaled):
    """The library writes into the state it is given, so that training through it fails."""
    output = rescaled(IDS[:, :20], use_cache=True)
    held = [tensor.clone() for tensor in output.state]
    with pytest.raises(RuntimeError, match="inplace"):
        rescaled(IDS[:, 20:], state=output.state, use_cache=True).logits.sum().backward()
    assert not any(torch.equal(a, b) for a, b in zip(output.state, held))

    wrap(rescaled)
    first_state = rescaled(IDS[:, :20]).final_state
    held = first_state.clone()
    rescaled(IDS[:, 20:], initial_state=first_state).logits.square().mean().backward()
    assert state_error(first_state, held) == 0
    assert rescaled.rwkv.blocks[0].attention.time_decay.grad.abs().sum() > 0


def test_the_library_s_state_and_ours_are_not_mixed(rescaled):
    wrap(rescaled)
    state = rescaled(IDS[:, :20], use_cache=True).state
    assert len(state) == 5
    with pytest.raises(TypeError, match="both state and an initial state"):
        rescaled(IDS, state=state, initial_state=zero_state(rescaled, 3))
    with pytest.raises(TypeError, match="its cache is called 'state'"):
        rescaled(IDS, cach=state)


def test_a_time_mix_of_another_width_than_the_model_passes_the_gate():
    """The library's own state has no room for it."""
    model = builder("Rwkv", {"attention_hidden_size": 48})()
    with torch.no_grad():
        expected = model.train()(IDS, **PLAIN).logits
        assert relative_error(wrap(model)(IDS).logits, expected) < 1e-6
    result = check(model)
    assert result.passed, [c for c in result.checks if not c.passed]
