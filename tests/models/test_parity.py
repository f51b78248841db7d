"""The parity gate passes what is right, and each check catches the fault it is named after."""

import contextlib
import dataclasses

import pytest
import torch

from lengthen import check, wrap
from lengthen.models import families, forward_pass, language_models, mamba2, parity, wrapping
from lengthen.models.call import Marks
from lengthen.models.modes import HeldChoices
from tests.conftest import tiny_mamba2
from tests.models.family_properties import builder


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_passes(shaped_mamba2, dtype):
    result = check(shaped_mamba2.to(dtype))
    assert result.passed, [c for c in result.checks if not c.passed]
    assert result.family == "mamba2" and len(result.checks) == 18 + (dtype == torch.bfloat16)
    assert not wrapping.is_wrapped(shaped_mamba2)  # wrapped for the check only


@pytest.mark.parametrize(
    "name, options",
    [
        ("Mamba", {"conv_kernel": 1}),
        ("Bamba", {"mamba_d_conv": 1}),
        ("Qwen3Next", {"linear_conv_kernel_dim": 1}),
        ("RecurrentGemma", {"conv1d_width": 1, "attention_window_size": 1}),
    ],
)
def test_a_window_of_no_inputs_passes(name, options):
    """A convolution over one position, or attention to its own position alone, has a past without entries."""
    result = check(builder(name, options)())
    assert result.passed, [c for c in result.checks if not c.passed]


def failed(monkeypatch, forward):
    kind = dataclasses.replace(families.KINDS["mamba2"], forward=forward)
    monkeypatch.setitem(families.KINDS, "mamba2", kind)
    return {c.name for c in check(tiny_mamba2()).checks if not c.passed}


def test_a_dropped_state_is_caught(monkeypatch):
    found = failed(monkeypatch, lambda layer, x, state, marks: mamba2.forward(layer, x, None, marks))
    assert {"segments", "token-by-token", "random-state", "gradient-into-state", "gradient-through-state"} <= found


def test_a_dropped_window_is_caught(monkeypatch):
    def forward(layer, x, state, marks):
        state = None if state is None else {**state, "window": torch.zeros_like(state["window"])}
        return mamba2.forward(layer, x, state, marks)

    assert {"segments", "token-by-token"} <= failed(monkeypatch, forward)


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


def test_ignored_resets_are_caught(monkeypatch):
    found = failed(
        monkeypatch, lambda layer, x, state, marks: mamba2.forward(layer, x, state, Marks(None, marks.lengths))
    )
    assert found == {"packing", "packing-with-padding", "reset-at-start"}


def test_padding_in_the_state_is_caught(monkeypatch):
    found = failed(
        monkeypatch, lambda layer, x, state, marks: mamba2.forward(layer, x, state, Marks(marks.reset, None))
    )
    assert found == {"left-padding", "right-padding", "padding-identity", "packing-with-padding"}


def test_resets_ignored_beside_padding_are_caught(monkeypatch):
    def forward(layer, x, state, marks):
        return mamba2.forward(layer, x, state, Marks(marks.reset if marks.lengths is None else None, marks.lengths))

    assert failed(monkeypatch, forward) == {"packing-with-padding"}


def test_rows_mixed_up_in_larger_batches_are_caught(monkeypatch):
    def forward(layer, x, state, marks):
        y, final = mamba2.forward(layer, x, state, marks)
        return (y.flip(0), final) if len(y) > 2 else (y, final)

    assert failed(monkeypatch, forward) == {"rows"}


def test_an_error_in_long_runs_is_caught(monkeypatch):
    def forward(layer, x, state, marks):
        y, final = mamba2.forward(layer, x, state, marks)
        return torch.cat([y[:, :256], y[:, 256:] * 1.01], 1), final

    assert "segments" in failed(monkeypatch, forward)


def test_mixed_rows_are_caught(monkeypatch):
    def forward(layer, x, state, marks):
        y, final = mamba2.forward(layer, x, state, marks)
        return y + 1e-2 * y.mean(0, keepdim=True), final

    assert "rows" in failed(monkeypatch, forward)


def test_a_look_ahead_is_caught(monkeypatch):
    def forward(layer, x, state, marks):
        y, final = mamba2.forward(layer, x, state, marks)
        return y + 1e-2 * y.mean(1, keepdim=True), final

    assert "causal" in failed(monkeypatch, forward)


def test_a_state_written_in_place_is_caught(monkeypatch):
    def forward(layer, x, state, marks):
        y, final = mamba2.forward(layer, x, state, marks)
        if state is not None and not torch.is_grad_enabled():
            state["recurrent"].copy_(final["recurrent"])
        return y, final

    assert "state-unchanged" in failed(monkeypatch, forward)


def test_a_state_dropped_in_training_is_caught(monkeypatch):
    def forward(layer, x, state, marks):
        return mamba2.forward(layer, x, None if layer.training else state, marks)

    assert "train-mode" in failed(monkeypatch, forward)


def test_a_state_dropped_by_checkpointing_is_caught(monkeypatch):
    monkeypatch.setattr(forward_pass, "keep_call_in_checkpoints", lambda model: None)
    with pytest.raises(RuntimeError, match="outside its call"):
        check(tiny_mamba2())


def test_a_swallowed_keyword_is_caught(monkeypatch):
    monkeypatch.setattr(
        language_models,
        "_named",
        lambda cls, library, model, args, kwargs: {k: v for k, v in kwargs.items() if k in library.parameters},
    )
    assert {c.name for c in check(tiny_mamba2()).checks if not c.passed} == {"unknown-keyword"}


def test_a_rounded_state_is_caught(monkeypatch):
    def rounded(layer, x, state, marks):
        y, final = mamba2.forward(layer, x, state, marks)
        return y, {**final, "recurrent": final["recurrent"].bfloat16().float()}

    assert {"segments", "token-by-token"} <= failed(monkeypatch, rounded)


def test_a_state_dropped_in_half_precision_alone_is_caught(monkeypatch):
    def forward(layer, x, state, marks):
        return mamba2.forward(layer, x, None if x.dtype == torch.bfloat16 else state, marks)

    kind = dataclasses.replace(families.KINDS["mamba2"], forward=forward)
    monkeypatch.setitem(families.KINDS, "mamba2", kind)
    assert {c.name for c in check(tiny_mamba2().bfloat16()).checks if not c.passed} == {
        "half-precision",
        "padding-identity",
    }


@pytest.mark.parametrize("name", ["MiniMax", "KimiLinear", "GraniteMoeHybrid"])
def test_in_half_precision_experts_chosen_otherwise_are_no_fault(name):
    model = builder(name, {})().bfloat16()
    result = check(model)
    assert result.passed, [c for c in result.checks if not c.passed]
    assert all(p.dtype == torch.bfloat16 for n, p in model.named_parameters() if n.endswith("q_proj.weight"))


def test_a_fault_below_half_precision_s_rounding_is_caught(monkeypatch):
    def forward(layer, x, state, marks):
        return mamba2.forward(layer, x, state and {n: t * 1.001 for n, t in state.items()}, marks)

    kind = dataclasses.replace(families.KINDS["mamba2"], forward=forward)
    monkeypatch.setitem(families.KINDS, "mamba2", kind)
    assert "segments" in {c.name for c in check(tiny_mamba2().bfloat16()).checks if not c.passed}


def test_the_slope_of_a_mixture_is_taken_with_its_experts_held(monkeypatch):
    """Where experts change within every step of the difference, it says nothing of the slope."""
    model = wrap(builder("MiniMax", {"layer_types": ["linear_attention", "full_attention", "linear_attention"]})())
    assert parity._Probe(model, 0).gradient_into_state().value < 2e-3
    monkeypatch.setattr(parity, "HeldChoices", contextlib.nullcontext)
    assert parity._Probe(model, 0).gradient_into_state().value > 0.1


@torch.no_grad()
def test_choices_are_held():
    scores, others = torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([[5.0, 1.0, 4.0]])
    held = HeldChoices()
    with held:
        first = torch.topk(scores, 2, dim=-1)
        rows = scores.topk(1, 0)
    with held:
        again = torch.topk(others, 2, dim=-1)
        assert torch.equal(others.topk(1, 0).values, others) and torch.equal(rows.indices, torch.zeros(1, 3).long())
    assert first.indices.tolist() == again.indices.tolist() == [[1, 2]] and again.values.tolist() == [[1, 4]]
    assert torch.topk(others, 2).indices.tolist() == [[0, 2]]
