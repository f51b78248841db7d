"""Tokens with small steps are skipped in global heads: thresholds in numbers, and what the model does with them."""

import pytest
import torch

from lengthen import stream
from lengthen.errors import InputError
from lengthen.models import weights_fingerprint
from lengthen.models.agreement import relative_error
from lengthen.models.hooked_layers import hooked
from lengthen.models.hooks import Hook, LayerView
from lengthen.training_free import Calibration, method_of
from lengthen.training_free.step_thresholds import step_threshold
from tests.training_free.small_models import CALIBRATION, TEXT, recurrent_tensors, small_model


def calibration(length=128):
    return Calibration(train_context=32, length=length, text=CALIBRATION)


def run(model, **options):
    return torch.cat([part.losses for part in stream(model, TEXT[:, :26], **options)], 1)


@torch.no_grad()
@pytest.mark.parametrize("name", ["Mamba", "Zamba", "Mamba2"])
def test_segments_equal_one_run_and_the_model_comes_back_bit_for_bit(name):
    model = small_model(name)
    weights, before = weights_fingerprint(model), run(model)
    fitted = method_of("long-mamba:theta=0").fit(model, calibration())
    assert (fitted.tokens_read, fitted.forwards) == (96, 1) and torch.equal(run(model), before)
    with fitted.apply(model):
        whole = run(model)
        for segment in (1, 7):
            assert relative_error(run(model, segment=segment), whole) < 1e-5
    assert relative_error(whole, before) > 1e-4
    assert weights_fingerprint(model) == weights and torch.equal(run(model), before)
    for text, length in (("long-mamba:theta=1", 128), ("long-mamba:theta=0", 32), ("long-mamba:theta=0", 16)):
        with method_of(text).fit(model, calibration(length)).apply(model):
            assert torch.equal(run(model), before)


def test_thresholds_by_hand():
    """Steps 4, 3, 2, 1 in T0 = 4 sum to 10. Over L = 8 they come twice each: 4, 4, 3 pass 10, so that 3 is the least
    kept, and the threshold a thousandth below it. Over 16 four times each: 4, 4, 4 pass it. At T0 all are kept."""
    steps = torch.tensor([1.0, 4.0, 2.0, 3.0]).view(1, 4, 1)
    found = [step_threshold(steps, 4 / length).item() for length in (2, 4, 8, 16, 1000)]
    assert found == pytest.approx([0, 0, 2.997, 3.996, 3.996])
    two = torch.cat([steps, 10 * steps.flip(1)], 2).repeat(3, 1, 1)  # three texts, two heads
    assert step_threshold(two, 0.5).tolist() == pytest.approx([2.997, 29.97])


def test_a_clamp_leaves_thresholds_where_they_are():
    """Half of the steps count as 3, the least of them: from L = 2 T0 on nothing above 3 is told apart."""
    steps = torch.tensor([1.0, 4.0, 2.0, 3.0]).view(1, 4, 1)
    assert [step_threshold(steps, s, clamp=0.5).item() for s in (0.8, 0.4, 0.1)] == pytest.approx([1.998, 2.997, 2.997])
    steps = torch.rand(5, 400, 3, generator=torch.Generator().manual_seed(0)) ** 3
    frozen = [step_threshold(steps, s, clamp=0.05) for s in (0.05, 0.02, 0.01)]
    assert torch.equal(frozen[0], frozen[1]) and torch.equal(frozen[1], frozen[2])
    for shortening in (0.5, 0.05, 0.02):
        kept = (steps * (steps > step_threshold(steps, shortening))).sum((0, 1)) / steps.sum((0, 1)) / shortening
        assert ((kept >= 1) & (kept < 1.2)).all()  # of 10 steps kept or more, 2 too many
        if shortening < 0.05:
            clamped = (steps * (steps > frozen[0])).sum((0, 1)) / steps.sum((0, 1)) / shortening
            assert (clamped > 5).all()


def test_skipping_by_hand():
    """Steps 0.1, 0.2, 0.3 at a threshold of 0.2: the first two neither decay nor write; a head at 0 skips none."""
    hook = method_of("long-mamba").hook({"layer": torch.tensor([0.2, 0.0])})
    step = torch.tensor([0.1, 0.2, 0.3]).view(1, 3, 1).expand(1, 3, 2)
    view = LayerView(layer="layer", kind="mamba2", specs={}, real=None, memory={}, step=step)
    log_decay, gain = hook.gates(view, -step, torch.ones(1, 3, 2))
    torch.testing.assert_close(log_decay[0], torch.tensor([[0, -0.1], [0, -0.2], [-0.3, -0.3]]))
    assert gain[0].tolist() == [[0, 1], [0, 1], [1, 1]]


@torch.no_grad()
@pytest.mark.parametrize("name", ["Mamba", "Mamba2"])
def test_only_heads_that_keep_more_than_theta_have_a_threshold(name):
    """A channel of Mamba-1 keeps what its slowest state keeps."""
    model = small_model(name)
    sums = {}

    class Sum(Hook):
        def gates(self, view, log_decay, gain):
            slowest = 1 if view.rates is None else view.rates.abs().amin(1)
            sums[view.layer] = torch.exp((log_decay * slowest).sum(1)).mean(0)
            return log_decay, gain

    with hooked(model, Sum()):
        model(CALIBRATION[:, :-1])
    kept = torch.cat(list(sums.values()))
    theta = kept.median().item()
    assert kept.min() < theta < kept.max()
    fitted = method_of(f"long-mamba:theta={theta}").fit(model, calibration())
    for layer, share in sums.items():
        assert torch.equal(fitted.tensors[layer] > 0, share > theta)


@torch.no_grad()
def test_where_all_tokens_are_skipped_the_state_stays_bit_for_bit():
    model = small_model("Mamba2")
    start = model(TEXT[:, :10]).final_state
    layers = {f"backbone.layers.{i}.mixer": torch.full((4,), 1e9) for i in range(len(model.backbone.layers))}
    with hooked(model, method_of("long-mamba").hook(layers)):
        found = model(TEXT[:, 10:], initial_state=start).final_state
    before = recurrent_tensors(start)
    assert all(torch.equal(value, before[key]) for key, value in recurrent_tensors(found).items())


def test_refusals():
    model = small_model("Mamba2")
    with pytest.raises(InputError, match=r"long-mamba changes the step size, .* has none"):
        method_of("long-mamba").fit(small_model("RecurrentGemma"), calibration())
    for lacking, sentence in (
        (Calibration(train_context=32, length=64), "needs calibration text"),
        (Calibration(train_context=32, text=CALIBRATION), "needs the length in use"),
    ):
        with pytest.raises(InputError, match=sentence):
            method_of("long-mamba").fit(model, lacking)
    with pytest.raises(
        InputError, match=r"clamp of long-mamba is 0\.25, .* rise at 128 positions; give less than 0\.25"
    ):
        method_of("long-mamba:clamp=0.25").fit(model, calibration())
    method_of("long-mamba:clamp=0.25").fit(model, calibration(127))
    for setting, sentence in (
        ("theta=2", "The theta of long-mamba is 2; give"),
        ("clamp=1", "The clamp of long-mamba is 1"),
    ):
        with pytest.raises(InputError, match=sentence):
            method_of(f"long-mamba:{setting}")
