"""Decays slowed in heads that remember long: which those are, and what becomes of them."""

import math

import pytest
import torch

from lengthen.errors import InputError
from lengthen.models.agreement import relative_error
from lengthen.models.hooked_layers import hooked
from lengthen.models.hooks import LayerView
from lengthen.training_free import Calibration, method_of
from lengthen.training_free.decay_matching import DecayScaling, mean_log_decays
from lengthen.training_free.decay_totals import decay_totals
from lengthen.training_free.weight_edits import edited, rates
from tests.training_free.small_models import CALIBRATION, IDS, logits, small_model


def calibration():
    return Calibration(train_context=32, length=128, text=CALIBRATION)


@torch.no_grad()
def test_decay_matching_by_hand():
    """Heads that forget within 2 tokens and within 100, T0 = 32 and L = 128: the second decays at a quarter of its rate."""
    model = small_model("Mamba2")
    for block in model.backbone.layers:
        block.mixer.in_proj.weight[-block.mixer.num_heads :] = 0
        block.mixer.dt_bias.fill_(math.log(math.expm1(0.1)))  # a step of 0.1
        block.mixer.A_log.copy_(torch.tensor([5.0, 0.1, 0.1, 5.0]).log())
    layer = "backbone.layers.0.mixer"
    means = mean_log_decays(model, calibration())[layer]
    torch.testing.assert_close(means, torch.tensor([-0.5, -0.01, -0.01, -0.5]))
    fitted = method_of("decay-matching:share=0.25").fit(model, calibration())  # 8 tokens
    assert fitted.tensors[layer].tolist() == [1, 0.25, 0.25, 1]
    view = LayerView(layer="layer", kind="mamba2", specs={}, real=None, memory={})
    log_decay, gain = fitted.method.hook({"layer": fitted.tensors[layer]}).gates(
        view, means.view(1, 1, 4), torch.ones(1, 1, 4)
    )
    torch.testing.assert_close(log_decay[0, 0], torch.tensor([-0.5, -0.0025, -0.0025, -0.5]))
    assert gain.tolist() == [[[1, 1, 1, 1]]]


@torch.no_grad()
def test_mamba_1_s_time_scale_is_its_slowest_state_s():
    model = small_model("Mamba")
    mixer = model.backbone.layers[0].mixer
    mixer.dt_proj.weight.fill_(0)
    mixer.dt_proj.bias.fill_(math.log(math.expm1(0.1)))
    mixer.A_log.copy_(torch.arange(2.0, 10.0).log().expand_as(mixer.A_log))
    means = mean_log_decays(model, calibration())["backbone.layers.0.mixer"]
    torch.testing.assert_close(means, torch.full_like(means, -0.2))


@torch.no_grad()
@pytest.mark.parametrize("name", ["Mamba", "Mamba2", "Qwen3Next"])
def test_the_same_scaling_as_a_weight_edit_and_token_by_token(name):
    """A times 0.6 is every log-decay times 0.6, whatever is written."""
    model = small_model(name)
    log_rates = rates("a method", model)
    with edited(model, {n: p + math.log(0.6) for n, p in log_rates.items()}):
        expected = logits(model(IDS))
    layers = {n.removesuffix(".A_log"): torch.tensor(0.6) for n in log_rates}
    with hooked(model, DecayScaling("a method", layers)):
        found = logits(model(IDS))
    assert relative_error(found, expected) < 1e-6 and relative_error(found, logits(model(IDS))) > 1e-3


@torch.no_grad()
def test_in_all_heads_a_long_run_decays_by_what_a_short_one_did():
    """The same tokens over and over, L = 4 T0, in a layer whose decays depend on the token alone."""
    model = small_model("GLA")
    layer = "model.layers.0.attn"
    fitted = method_of("decay-matching:share=0").fit(model, Calibration(4, 16, CALIBRATION[:, :5]))
    assert (fitted.tensors[layer] == 0.25).all()
    with decay_totals(model) as short:
        model(IDS[:, :4])
    with fitted.apply(model), decay_totals(model) as long:
        model(IDS[:, :4].repeat(1, 4))
    assert relative_error(long[layer], short[layer]) < 1e-5


def test_a_share_below_zero_is_refused():
    with pytest.raises(InputError, match=r"^The share of decay-matching is -1; give 0 \(all heads\) or more\."):
        method_of("decay-matching:share=-1")
