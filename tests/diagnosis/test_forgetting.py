"""How long each head remembers: known decays are found, and what never decays is told."""

import math

import numpy as np
import pytest
import torch

from lengthen.diagnosis.forgetting import _crossing, forgetting_times
from lengthen.errors import InputError
from lengthen.training import Mamba2Recipe

T = 16
TOKENS = np.random.default_rng(0).integers(256, size=(16, 64 * T + 1))


def untrained(*decays):
    return Mamba2Recipe(width=16, layers=2, head_dim=8, state_size=8, decay_range=decays).build(seed=0)


def test_forgetting_times_are_those_of_explicit_decays():
    """Where the step does not depend on the input, a head forgets over 1 / (step A) tokens."""
    model = untrained(0.5, 16.0)
    with torch.no_grad():
        for layer in model.backbone.layers:
            layer.mixer.in_proj.weight[-layer.mixer.num_heads :] = 0
    found = forgetting_times(model, TOKENS, T)
    mixers = [layer.mixer for layer in model.backbone.layers]
    expected = [
        1 / float(rate)
        for mixer in mixers
        for rate in torch.nn.functional.softplus(mixer.dt_bias.detach()) * mixer.A_log.detach().exp()
    ]
    assert [f.tokens for f in found] == pytest.approx(expected, rel=0.03)  # float32 sees the slowest lose 5 % in 4 T
    assert [(f.layer, f.head) for f in found[:4]] == [("backbone.layers.0.mixer", head) for head in range(4)]
    assert min(expected) < T < max(expected) and all(f.stderr < 0.03 * f.tokens for f in found)


def test_what_never_decays_has_no_forgetting_time():
    model = untrained(1e-12, 1e-12)
    assert all(f.tokens is None for f in forgetting_times(model, TOKENS, T))


def test_forgetting_needs_two_training_contexts():
    with pytest.raises(InputError, match="past 32 positions"):
        forgetting_times(untrained(0.002, 0.05), TOKENS[:, : 2 * T], T)


@pytest.mark.parametrize(
    ("decays", "crossing"),
    [
        ([-0.25, -0.5, -1.0, -2.0], 4),  # exactly at a cut
        ([-0.5, -0.75, -1.5], 3.0 - 1 / 3),  # between 2 and 4, a third of the way
        ([-2.0], 0.5),  # within the first token
        ([-math.inf], 0.001),
        ([-0.1, -0.2, -0.4], 10),  # never reached: the last rate goes on
        ([0.0, 0.0], None),
        ([0.5, 1.0], None),  # it grows
        ([-1e-5], None),  # float32 cannot tell it from none
    ],
)
def test_the_crossing_is_interpolated_and_past_the_end_extrapolated(decays, crossing):
    found = _crossing([1, 2, 4, 8][: len(decays)], decays)
    assert found == (None if crossing is None else pytest.approx(crossing))
