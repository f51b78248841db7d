"""Each method: its arithmetic in a worked example, its refusals, and that it acts alike in segments and in one run."""

import math

import pytest
import torch

from lengthen import stream
from lengthen.errors import InputError
from lengthen.models import weights_fingerprint
from lengthen.models.agreement import relative_error
from lengthen.models.hooked_layers import hooked
from lengthen.models.hooks import LayerView
from lengthen.training_free import Calibration, method_of
from lengthen.training_free.decay_matching import DecayScaling, mean_log_decays
from lengthen.training_free.spectrum import winsorised
from lengthen.training_free.weight_edits import edited, rates
from tests.training_free.small_models import CALIBRATION, IDS, TEXT, logits, small_model

SETTINGS = {
    "constant-delta": ("constant-delta:ratio=0.5", "constant-delta:ratio=1"),
    "decay-matching": ("decay-matching:share=0.2", "decay-matching:share=1e9"),
    "reduced-retention": ("reduced-retention", "reduced-retention:decay=1,gain=1"),
    "spectrum-winsorising": ("spectrum-winsorising:quantile=0.2", "spectrum-winsorising:quantile=0"),
    "hard-reset": ("hard-reset:period=9", "hard-reset:period=1000"),
    "soft-reset": ("soft-reset:period=9", "soft-reset:period=1000"),
}
"""Method -> settings that change something, and settings that change nothing."""
SUITS = {
    "constant-delta": ["Mamba", "Zamba", "Mamba2"],
    "decay-matching": ["Mamba", "Mamba2", "GLA", "RWKV6", "RetNet", "RecurrentGemma", "KDA", "Rwkv"],
    "reduced-retention": ["Mamba2", "GLA", "RWKV6", "RetNet", "RecurrentGemma", "xLSTM", "LinearAttention"],
    "spectrum-winsorising": ["Mamba", "Mamba2"],
    "hard-reset": ["Mamba", "RWKV7", "LSTM"],
    "soft-reset": ["Mamba2", "xLSTM", "Rwkv", "GRU"],
}
CASES = [(name, model) for name, models in SUITS.items() for model in models]


def calibration():
    return Calibration(train_context=32, length=128, text=CALIBRATION)


def run(model, **options):
    return torch.cat([part.losses for part in stream(model, TEXT[:, :26], **options)], 1)


def view(**fields):
    return LayerView(layer="layer", kind="mamba2", specs={}, real=None, memory={}, **fields)


@torch.no_grad()
@pytest.mark.parametrize("name, model_name", CASES)
def test_segments_equal_one_run_and_the_model_comes_back_bit_for_bit(name, model_name):
    model = small_model(model_name)
    changing, changing_nothing = SETTINGS[name]
    weights, before = weights_fingerprint(model), run(model)
    fitted = method_of(changing).fit(model, calibration())
    assert weights_fingerprint(model) == weights and torch.equal(run(model), before)
    with fitted.apply(model):
        whole = run(model)
        for segment in (1, 7):
            assert relative_error(run(model, segment=segment), whole) < 1e-5
    assert relative_error(whole, before) > 1e-5
    assert weights_fingerprint(model) == weights and torch.equal(run(model), before)
    with method_of(changing_nothing).fit(model, calibration()).apply(model):
        assert torch.equal(run(model), before)


@pytest.mark.parametrize(
    "text, model_name, sentence",
    [
        (
            "constant-delta:ratio=2",
            "GLA",
            "constant-delta changes the step size, .* but .*GatedLinearAttention.* has none",
        ),
        ("decay-matching", "LSTM", r"decay-matching changes the decay of each token, but mix \(LSTM\) has none"),
        ("reduced-retention", "Mamba", r"log-decay common to all .* but .* \(MambaMixer\) has none"),
        ("spectrum-winsorising", "RetNet", "changes the rates A of Mamba's layers, which .*MultiScaleRetention"),
    ],
)
def test_a_model_without_what_a_method_changes_is_refused(text, model_name, sentence):
    with pytest.raises(InputError, match=sentence):
        method_of(text).fit(small_model(model_name), calibration())


def test_constant_delta_by_hand():
    """A head at rate -2 with a step of 0.3 decays by exp(-0.6) and writes 0.3 w; at half the step exp(-0.3), 0.15 w."""
    hook = method_of("constant-delta:ratio=0.5").hook({"ratio": torch.tensor(0.5)})
    log_decay, gain = hook.gates(view(), torch.tensor([[[-0.6]]]), torch.ones(1, 1, 1))
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
    log_decay, gain = fitted.method.hook({"layer": fitted.tensors[layer]}).gates(
        view(), means.view(1, 1, 4), torch.ones(1, 1, 4)
    )
    torch.testing.assert_close(log_decay[0, 0], torch.tensor([-0.5, -0.0025, -0.0025, -0.5]))
    assert gain.tolist() == [[[1, 1, 1, 1]]]


@torch.no_grad()
def test_mamba_1_s_time_scale_is_its_slowest_state_s():
    model = small_model("Mamba")
    mixer = model.backbone.layers[0].mixer
    mixer.dt_proj.weight.fill_(0)
    mixer.dt_proj.bias.fill_(math.log(math.expm1(0.1)))
    mixer.A_log.copy_(torch.arange(1.0, 9.0).log().expand_as(mixer.A_log))
    means = mean_log_decays(model, calibration())["backbone.layers.0.mixer"]
    torch.testing.assert_close(means, torch.full_like(means, -0.1))


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


def test_reduced_retention_by_hand():
    """A decay of 0.5 becomes 0.49995, and three quarters are written."""
    hook = method_of("reduced-retention").hook({})
    log_decay, gain = hook.gates(view(), torch.tensor([[[math.log(0.5)]]]), torch.ones(1, 1, 1))
    assert math.exp(log_decay.item()) == pytest.approx(0.49995, rel=1e-6) and gain.item() == 0.75


def test_winsorising_by_hand():
    """Decays 0.1, 0.2, ..., 0.9 clipped at their quartiles are 0.3, 0.3, 0.3, 0.4, ..., 0.7, 0.7, 0.7."""
    decays = torch.arange(1, 10, dtype=torch.float64) / 10
    log_rates = decays.log().neg().log().float()
    found = winsorised(log_rates, 0.25)
    torch.testing.assert_close(torch.exp(-torch.exp(found.double())), decays.clamp(0.3, 0.7), rtol=0, atol=1e-6)
    assert torch.equal(found[3:6], log_rates[3:6])


@torch.no_grad()
def test_soft_resets_by_hand():
    """After 9 tokens and after 18 the state is halved before it goes on; the window and the maximum are not."""
    model = small_model("xLSTM")
    with method_of("soft-reset:period=9,keep=0.5").fit(model).apply(model):
        found = model(IDS[:, :20]).final_state
    state = None
    for low, high in ((0, 9), (9, 18), (18, 20)):
        if state is not None:
            state = state.map_named(lambda layer, name, t, spec: t if name == "maximum" else t * 0.5)
        state = model(IDS[:, low:high], initial_state=state).final_state
    for layer, named in state.tensors.items():
        for name, t in named.items():
            assert relative_error(found.tensors[layer][name], t) < 1e-6
