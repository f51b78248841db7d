"""Constant steps: their arithmetic, and a model whose own steps are as long."""

import math

import pytest
import torch

from lengthen.errors import InputError
from lengthen.models.agreement import relative_error
from lengthen.models.hooks import LayerView
from lengthen.training_free import Calibration, method_of
from tests.training_free.small_models import IDS, logits, small_model


def test_constant_delta_by_hand():
    """A head at rate -2 with a step of 0.3 decays by exp(-0.6) and writes 0.3 w; at half the step exp(-0.3), 0.15 w."""
    hook = method_of("constant-delta:ratio=0.5").hook({"ratio": torch.tensor(0.5)})
    view = LayerView(layer="layer", kind="mamba2", specs={}, real=None, memory={})
    log_decay, gain = hook.gates(view, torch.tensor([[[-0.6]]]), torch.ones(1, 1, 1))
    assert log_decay.item() == pytest.approx(-0.3) and 0.3 * gain.item() == pytest.approx(0.15)
    fitted = method_of("constant-delta").fit(small_model("Mamba2"), Calibration(train_context=512, length=2048))
    assert fitted.tensors["ratio"] == 0.25


@torch.no_grad()
@pytest.mark.parametrize("name", ["Mamba", "Mamba2"])
def test_halved_steps_are_the_model_s_own_with_halved_steps(name):
    """Through the whole model: softplus(dt + bias) / 2 from a bias that gives it, for a model with one step for all."""
    model = small_model(name)
    mixer = model.backbone.layers[0].mixer
    for block in model.backbone.layers:
        parameters = (
            [block.mixer.dt_bias] if name == "Mamba2" else [block.mixer.dt_proj.bias, block.mixer.dt_proj.weight]
        )
        for parameter in parameters:
            parameter.fill_(0)
        if name == "Mamba2":
            block.mixer.in_proj.weight[-mixer.num_heads :] = 0
    with method_of("constant-delta:ratio=0.5").fit(model).apply(model):
        found = logits(model(IDS))
    for block in model.backbone.layers:  # softplus(0) / 2 = log(2) / 2 = softplus(log(sqrt(2) - 1))
        bias = block.mixer.dt_bias if name == "Mamba2" else block.mixer.dt_proj.bias
        bias.fill_(math.log(math.sqrt(2) - 1))
    assert relative_error(found, logits(model(IDS))) < 1e-6


def test_a_ratio_that_is_given_needs_nothing_else():
    assert method_of("constant-delta").needs == {"train-context", "length"}
    given = method_of("constant-delta:ratio=0.3")
    fitted = given.fit(small_model("Mamba2"), Calibration(train_context=512, length=2048))
    assert given.needs == frozenset() and fitted.tensors["ratio"].item() == pytest.approx(0.3)
    with pytest.raises(InputError, match=r"^The ratio of constant-delta is 0; give a number above 0\."):
        method_of("constant-delta:ratio=0")
