"""Log-decays summed over a run, under whatever the model runs under."""

import math

import pytest
import torch

from lengthen.training_free import Calibration, method_of
from lengthen.training_free.decay_matching import mean_log_decays
from lengthen.training_free.decay_totals import decay_totals
from tests.training_free.small_models import IDS, TEXT, small_model


@torch.no_grad()
def test_log_decays_are_those_under_the_method():
    model = small_model("Mamba2")
    with decay_totals(model) as plain:
        model(IDS)
    fitted = method_of("constant-delta:ratio=0.5").fit(model)
    with fitted.apply(model), decay_totals(model) as halved:
        model(IDS[:, :20], initial_state=None)
        model(IDS[:, 20:])
    with decay_totals(model) as pieces:
        model(IDS[:, :20])
        model(IDS[:, 20:])
    (first, *_) = plain
    assert torch.allclose(halved[first], pieces[first] / 2) and plain[first].max() < 0
    assert torch.allclose(plain[first], pieces[first], rtol=0.05), (
        "the first layer's inputs but for a convolution's width"
    )


@torch.no_grad()
@pytest.mark.parametrize("name, expected", [("Mamba2", [-19.0, -0.38, -0.38, -19.0]), ("Mamba", [-7.6])])
def test_totals_by_hand(name, expected):
    """38 tokens with a step of 0.1: heads at rates -5 and -0.1; channels that share a state, the slowest at rate -2."""
    model = small_model(name)
    mixer = model.backbone.layers[0].mixer
    if name == "Mamba2":
        mixer.in_proj.weight[-mixer.num_heads :] = 0
        mixer.dt_bias.fill_(math.log(math.expm1(0.1)))
        mixer.A_log.copy_(torch.tensor([5.0, 0.1, 0.1, 5.0]).log())
    else:
        mixer.dt_proj.weight.fill_(0)
        mixer.dt_proj.bias.fill_(math.log(math.expm1(0.1)))
        mixer.A_log.copy_(torch.arange(2.0, 10.0).log().expand_as(mixer.A_log))
    with decay_totals(model) as totals:
        model(IDS)
    found = totals["backbone.layers.0.mixer"]
    assert found.dtype == torch.float64 and found.tolist() == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
def test_key_channels_are_averaged_and_layers_without_decays_left_out():
    model = small_model("GLA")
    with decay_totals(model) as totals:
        model(IDS)
    means = mean_log_decays(model, Calibration(text=TEXT))
    assert totals.keys() == means.keys() and len(totals) == 2
    for layer, mean in means.items():
        torch.testing.assert_close(totals[layer].float(), IDS.shape[1] * mean.mean(-1))
    model = small_model("LSTM")
    with decay_totals(model) as totals:
        model(IDS)
    assert totals == {}


@torch.no_grad()
def test_counting_changes_nothing_and_ends_with_its_block():
    model = small_model("Mamba2")
    before = model(IDS).logits
    with method_of("soft-reset:period=5").fit(model).apply(model):
        under = model(IDS).logits
        with decay_totals(model) as totals:
            assert torch.equal(model(IDS).logits, under)
        assert torch.equal(model(IDS).logits, under)
    counted = {layer: total.clone() for layer, total in totals.items()}
    assert torch.equal(model(IDS).logits, before) and not torch.equal(under, before)
    assert all(torch.equal(totals[layer], counted[layer]) for layer in counted)
