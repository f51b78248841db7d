"""Methods act alike in segments and in one run, leave the model as it was, and refuse one that lacks what they change."""

import pytest
import torch

from lengthen import stream
from lengthen.errors import InputError
from lengthen.models import weights_fingerprint
from lengthen.models.agreement import relative_error
from lengthen.training_free import Calibration, method_of
from tests.training_free.small_models import CALIBRATION, TEXT, small_model

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
