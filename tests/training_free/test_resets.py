"""States cut down at every period: what is cut, what stays, and when."""

import pytest
import torch

from lengthen import stream
from lengthen.errors import InputError
from lengthen.models.agreement import relative_error
from lengthen.models.hooked_layers import hooked
from lengthen.streaming import reset_losses
from lengthen.training_free import Calibration, method_of
from lengthen.training_free.resets import HardReset
from tests.training_free.small_models import IDS, TEXT, small_model


def run(model, tokens=TEXT, **options):
    return torch.cat([part.losses for part in stream(model, tokens, **options)], 1)


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


@torch.no_grad()
@pytest.mark.parametrize("name", ["Mamba", "Mamba2", "RecurrentGemma", "xLSTM", "RWKV7", "RetNet", "LSTM"])
def test_a_state_zeroed_at_each_period_is_a_run_of_its_own(name):
    """The attention of RecurrentGemma sees on, and so has a window that ends where each run begins."""
    model = small_model(name)
    expected = torch.cat([losses for _, losses in reset_losses(model, TEXT, 8)], 1)
    with hooked(model, HardReset(8).hook({"period": torch.tensor(8)})):
        found = run(model, segment=13)
    if name == "RecurrentGemma":
        assert relative_error(found[:, :8], expected[:, :8]) < 1e-5
    else:
        assert relative_error(found, expected) < 1e-5


@torch.no_grad()
def test_a_soft_reset_that_keeps_everything_changes_nothing():
    model = small_model("GRU")
    before = run(model)
    with method_of("soft-reset:period=8,keep=1").fit(model).apply(model):
        assert torch.equal(run(model), before)


def test_the_period_is_the_training_context_unless_given():
    model = small_model("GRU")
    for name in ("hard-reset", "soft-reset"):
        assert method_of(name).needs == {"train-context"} and method_of(f"{name}:period=5").needs == frozenset()
        assert method_of(name).fit(model, Calibration(train_context=7)).tensors["period"] == 7
        assert method_of(f"{name}:period=5").fit(model, Calibration(train_context=7)).tensors["period"] == 5


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("hard-reset:period=2.5", "The setting period of hard-reset is 2.5; give a whole number, at least 1."),
        ("soft-reset:period=0", "The setting period of soft-reset is 0; give a whole number, at least 1."),
        ("soft-reset:keep=0", "The setting keep of soft-reset is 0; give a number above 0, at most 1."),
        ("soft-reset:keep=1.5", "The setting keep of soft-reset is 1.5; give a number above 0, at most 1."),
    ],
)
def test_settings_out_of_range_are_refused(text, sentence):
    with pytest.raises(InputError) as caught:
        method_of(text)
    assert str(caught.value) == sentence
