"""Less kept and less written at every token: the arithmetic, and the state of a whole layer."""

import math

import pytest
import torch

from lengthen.errors import InputError
from lengthen.models.agreement import relative_error
from lengthen.models.hooks import LayerView
from lengthen.training_free import method_of
from tests.training_free.small_models import IDS, recurrent_tensors, small_model


def test_reduced_retention_by_hand():
    """A decay of 0.5 becomes 0.49995, and three quarters are written."""
    hook = method_of("reduced-retention").hook({})
    view = LayerView(layer="layer", kind="mamba2", specs={}, real=None, memory={})
    log_decay, gain = hook.gates(view, torch.tensor([[[math.log(0.5)]]]), torch.ones(1, 1, 1))
    assert math.exp(log_decay.item()) == pytest.approx(0.49995, rel=1e-6) and gain.item() == 0.75


@torch.no_grad()
@pytest.mark.parametrize("name", ["Mamba2", "GLA"])
def test_a_first_layer_s_state_keeps_and_writes_by_so_much_less(name):
    """Without new writes 5 tokens multiply a state by 0.9^5 more; from zero, three quarters of it are written."""
    model = small_model(name)

    def first(settings, tokens, state=None):
        with method_of(f"reduced-retention:{settings}").fit(model).apply(model):
            output = model(tokens, initial_state=state)
        return next(iter(recurrent_tensors(output.final_state).values())), output.final_state

    whole, state = first("decay=1,gain=1", IDS[:, :5])
    assert relative_error(first("decay=1,gain=0.75", IDS[:, :5])[0], 0.75 * whole) < 1e-5
    kept, reduced = (first(f"decay={decay},gain=1e-12", IDS[:, 5:10], state)[0] for decay in (1, 0.9))
    assert kept.abs().max() > 0 and relative_error(reduced, 0.9**5 * kept) < 1e-5


@pytest.mark.parametrize(
    "setting, sentence",
    [
        ("decay=1.1", "The decay of reduced-retention is 1.1; give a number above 0, at most 1."),
        ("decay=0", "The decay of reduced-retention is 0; give a number above 0, at most 1."),
        ("gain=0", "The gain of reduced-retention is 0; give a number above 0."),
    ],
)
def test_settings_out_of_range_are_refused(setting, sentence):
    with pytest.raises(InputError) as caught:
        method_of(f"reduced-retention:{setting}")
    assert str(caught.value) == sentence
