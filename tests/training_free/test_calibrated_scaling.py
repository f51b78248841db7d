"""Scales searched for on long calibration text: what a fit costs and gains, and identities of scaled steps."""

import pytest
import torch
import torch.nn.functional as F
from transformers.models.mamba2 import modeling_mamba2

from lengthen import stream, unwrap
from lengthen.errors import InputError
from lengthen.models import weights_fingerprint
from lengthen.models.agreement import relative_error
from lengthen.models.hooked_layers import hooked
from lengthen.models.hooks import LayerView
from lengthen.training_free import Calibration, method_of
from lengthen.training_free.weight_edits import edited, rates
from tests.training_free.small_models import CALIBRATION, IDS, TEXT, logits, small_model

LONG = torch.randint(3, 64, (2, 65), generator=torch.Generator().manual_seed(5))
SUITS = [
    ("mamba-extend", "Mamba"),
    ("mamba-extend", "Mamba2"),
    ("mamba-modulation", "Mamba"),
    ("mamba-modulation", "RecurrentGemma"),
]


def calibration():
    return Calibration(long_text=LONG)


def run(model, **options):
    return torch.cat([part.losses for part in stream(model, TEXT[:, :26], **options)], 1)


@pytest.mark.parametrize("name, model_name", SUITS)
@pytest.mark.parametrize("search", ["spsa", "gradient"])
def test_a_fit_lowers_the_loss_on_its_own_text_and_leaves_the_model(name, model_name, search):
    model = small_model(model_name)
    weights, before = weights_fingerprint(model), run(model)
    fitted = method_of(f"{name}:search={search},steps=3").fit(model, calibration())
    assert weights_fingerprint(model) == weights and torch.equal(run(model), before)
    assert all(p.grad is None for p in model.parameters()) and not model.training
    untouched = torch.cat([part.losses for part in stream(model, LONG)], 1).mean()
    with fitted.apply(model):
        assert torch.cat([part.losses for part in stream(model, LONG)], 1).mean() < untouched
        whole = run(model)
        for segment in (1, 7):
            assert relative_error(run(model, segment=segment), whole) < 1e-5
    assert relative_error(whole, before) > 1e-5
    assert weights_fingerprint(model) == weights and torch.equal(run(model), before)
    with hooked(model, fitted.method.hook({layer: torch.tensor(1.0) for layer in fitted.tensors})):
        assert torch.equal(run(model), before)


def test_every_forward_and_token_of_a_search_is_counted():
    """Start and end and two a step for spsa, one a step and the end for a gradient; the long text is 2 x 64 tokens."""
    model = small_model("Mamba2")
    for text, forwards in (("mamba-extend:steps=4", 10), ("mamba-modulation:search=gradient,steps=4", 5)):
        fitted = method_of(text).fit(model, calibration())
        assert (fitted.forwards, fitted.tokens_read) == (forwards, forwards * 128)


@torch.no_grad()
def test_a_long_text_is_read_in_segments_as_in_one_run(monkeypatch):
    model, whole, parts = small_model("Mamba2"), calibration(), calibration()
    expected = whole.long_losses(model)
    monkeypatch.setattr("lengthen.training_free.fitting.SEGMENT", 24)
    assert relative_error(parts.long_losses(model), expected) < 1e-5
    assert (whole.forwards, parts.forwards) == (1, 3) and whole.tokens_read == parts.tokens_read == 128


def test_only_the_long_text_is_read():
    """Whatever text is there for other methods, and for judging, has no part in it."""
    model = small_model("Mamba2")
    alone = method_of("mamba-extend:steps=2").fit(model, calibration())
    beside = Calibration(train_context=32, length=64, text=CALIBRATION, long_text=LONG)
    found = method_of("mamba-extend:steps=2").fit(model, beside)
    assert found.tensors == alone.tensors and beside.tokens_read == alone.tokens_read


def test_one_scale_by_hand():
    """A head at rate -2 with a step of 0.3, scaled by 0.5: steps decay by exp(-0.3) and write half; decays alone all."""
    view = LayerView(layer="layer", kind="mamba2", specs={}, real=None, memory={})
    for name, written in (("mamba-extend", 0.5), ("mamba-modulation", 1.0)):
        hook = method_of(name).hook({"layer": torch.tensor(0.5)})
        log_decay, gain = hook.gates(view, torch.tensor([[[-0.6]]]), torch.ones(1, 1, 1))
        assert log_decay.item() == pytest.approx(-0.3) and gain.item() == written


@torch.no_grad()
def test_modulated_decays_are_an_edit_of_the_rates():
    model = small_model("Mamba2")
    fitted = method_of("mamba-modulation:steps=2").fit(model, calibration())
    with fitted.apply(model):
        found = logits(model(IDS))
    weights = {name: p + fitted.tensors[name.removesuffix(".A_log")].log() for name, p in rates("it", model).items()}
    with edited(model, weights):
        assert relative_error(found, logits(model(IDS))) < 1e-6


def unscaled(dt, bias, factor):
    """What stands for dt before softplus in a layer whose step is to be softplus(dt + bias) times a factor."""
    return torch.log(torch.expm1(F.softplus(dt + bias) * factor)) - bias


@torch.no_grad()
@pytest.mark.parametrize("name, factor", [("constant-delta", 0.5), ("constant-delta", 1.7), ("mamba-modulation", 0.5)])
def test_a_kernel_that_knows_no_scaling_computes_it_from_other_inputs(name, factor, monkeypatch):
    """The library's own Mamba-2. Scaled steps: softplus of log(expm1(s step)) - bias. Scaled decays: the same, x over s."""
    model = small_model("Mamba2")
    if name == "constant-delta":
        hook = method_of(f"{name}:ratio={factor}").hook({"ratio": torch.tensor(factor)})
    else:
        layers = [f"backbone.layers.{i}.mixer" for i in range(len(model.backbone.layers))]
        hook = method_of(name).hook(dict.fromkeys(layers, torch.tensor(factor)))
    before = logits(model(IDS))
    with hooked(model, hook):
        expected = logits(model(IDS))

    def scaled(x, dt, *inputs, dt_bias, D, **options):
        dt = torch.log(torch.expm1(F.softplus(dt + dt_bias) * factor)) - dt_bias
        if name == "mamba-modulation":
            x, D = x / factor, D * factor  # D x passes by the state
        return kernel(x, dt, *inputs, dt_bias=dt_bias, D=D, **options)

    kernel = modeling_mamba2.mamba2_chunk_scan
    monkeypatch.setattr(modeling_mamba2, "mamba2_chunk_scan", scaled)
    assert (
        relative_error(unwrap(model)(IDS, use_cache=False).logits, expected)
        < 1e-5
        < 1e-3
        < relative_error(before, expected)
    )


def test_refusals():
    with pytest.raises(InputError, match=r"mamba-extend changes the step size, .* has none; choose another method"):
        method_of("mamba-extend").fit(small_model("RecurrentGemma"), calibration())
    with pytest.raises(InputError, match="mamba-extend needs calibration text as long as the length in use"):
        method_of("mamba-extend").fit(small_model("Mamba2"), Calibration(32, 128, CALIBRATION))
    for setting, sentence in (
        ("search=newton", "The search of mamba-extend is 'newton'; choose one of spsa, gradient."),
        ("steps=0", "The setting steps of mamba-extend is 0; give a whole number, at least 1."),
        ("steps=1.5", "The setting steps of mamba-extend is 1.5; give a whole number"),
        ("rate=0", "The rate of mamba-extend is 0; give a number above 0."),
    ):
        with pytest.raises(InputError, match=sentence):
            method_of(f"mamba-extend:{setting}")
    assert method_of("mamba-extend").needs == {"long-calibration"}
    assert method_of("mamba-extend:search=gradient").needs == {"long-calibration", "gradients"}
