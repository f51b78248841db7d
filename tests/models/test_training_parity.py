"""Each check of what training adds catches the fault it is named after."""

import contextlib

import pytest

from lengthen import check, wrap
from lengthen.models import forward_pass, mamba2, training_parity
from lengthen.models.parity_probe import Probe
from tests.conftest import tiny_mamba2
from tests.models.family_properties import builder
from tests.models.faulty_mamba2 import failed


def test_a_detached_final_state_is_caught(monkeypatch):
    def forward(layer, x, state, marks):
        y, final = mamba2.forward(layer, x, state, marks)
        return y, {name: t.detach() for name, t in final.items()}

    assert failed(monkeypatch, forward) == {"gradient-through-state"}


def test_a_detached_initial_state_is_caught(monkeypatch):
    def forward(layer, x, state, marks):
        return mamba2.forward(layer, x, state and {n: t.detach() for n, t in state.items()}, marks)

    assert {"gradient-into-state", "gradient-through-state"} <= failed(monkeypatch, forward)


def test_a_halved_gradient_is_caught(monkeypatch):
    def forward(layer, x, state, marks):
        return mamba2.forward(layer, x, state and {n: (t + t.detach()) / 2 for n, t in state.items()}, marks)

    assert {"gradient-into-state", "gradient-through-state"} <= failed(monkeypatch, forward)


def test_a_state_dropped_in_training_is_caught(monkeypatch):
    def forward(layer, x, state, marks):
        return mamba2.forward(layer, x, None if layer.training else state, marks)

    assert "train-mode" in failed(monkeypatch, forward)


def test_a_state_dropped_by_checkpointing_is_caught(monkeypatch):
    monkeypatch.setattr(forward_pass, "keep_call_in_checkpoints", lambda model: None)
    with pytest.raises(RuntimeError, match="outside its call"):
        check(tiny_mamba2())


def test_the_slope_of_a_mixture_is_taken_with_its_experts_held(monkeypatch):
    """Where experts change within every step of the difference, it says nothing of the slope."""
    model = wrap(builder("MiniMax", {"layer_types": ["linear_attention", "full_attention", "linear_attention"]})())
    assert training_parity.gradient_into_state(Probe(model, 0)).value < 2e-3
    monkeypatch.setattr(training_parity, "HeldChoices", contextlib.nullcontext)
    assert training_parity.gradient_into_state(Probe(model, 0)).value > 0.1
