"""Weights changed for a while: which, to what, and that all are put back."""

import pytest
import torch

from lengthen.errors import InputError
from lengthen.models import weights_fingerprint
from lengthen.training_free.weight_edits import edited, rates
from tests.training_free.small_models import small_model

NAMES = ("backbone.layers.0.mixer.A_log", "backbone.layers.1.mixer.D")


def test_an_edit_lasts_as_long_as_its_block_whatever_ends_it():
    model = small_model("Mamba2")
    parameters = dict(model.named_parameters())
    before, whole = {name: p.detach().clone() for name, p in parameters.items()}, weights_fingerprint(model)
    wanted = {name: before[name].double() + 0.5 for name in NAMES}
    with pytest.raises(ZeroDivisionError), edited(model, wanted):
        for name, parameter in model.named_parameters():
            assert parameter is parameters[name] and parameter.dtype == torch.float32
            assert torch.equal(parameter, wanted[name].float() if name in NAMES else before[name]), name
        raise ZeroDivisionError
    assert weights_fingerprint(model) == whole and all(torch.equal(p, before[n]) for n, p in parameters.items())


def test_edits_within_edits_are_taken_back_in_turn():
    model = small_model("Mamba2")
    parameter = model.get_parameter(NAMES[0])
    before = parameter.detach().clone()
    with edited(model, {NAMES[0]: before + 1}):
        with edited(model, {NAMES[0]: before + 2}):
            assert torch.equal(parameter, before + 2)
        assert torch.equal(parameter, before + 1)
    assert torch.equal(parameter, before)


def test_a_parameter_that_is_not_there_leaves_the_others():
    model = small_model("Mamba2")
    whole = weights_fingerprint(model)
    with pytest.raises(AttributeError), edited(model, {NAMES[0]: torch.zeros(4), "backbone.layers.0.mixer.B": None}):
        pass
    assert weights_fingerprint(model) == whole


@pytest.mark.parametrize("name", ["Mamba", "Mamba2", "Zamba", "Qwen3Next"])
def test_rates_are_every_recurrent_layer_s_by_the_parameter_s_name(name):
    model = small_model(name)
    expected = {n: p for n, p in model.named_parameters() if n.endswith("A_log")}
    found = rates("a method", model)
    assert expected and found.keys() == expected.keys() and all(found[n] is expected[n] for n in found)


@pytest.mark.parametrize("name, layer", [("GLA", "GatedLinearAttention"), ("LSTM", "LSTM")])
def test_a_layer_without_rates_is_refused_by_name(name, layer):
    with pytest.raises(
        InputError, match=rf"^a method changes the rates A of Mamba's layers, which .*\({layer}\) has not;"
    ):
        rates("a method", small_model(name))
