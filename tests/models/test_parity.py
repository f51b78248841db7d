"""The parity gate passes what is right, in every precision, and is not fooled by half precision's rounding."""

import pytest
import torch

from lengthen import check
from lengthen.models import mamba2, wrapping
from tests.models.family_properties import builder
from tests.models.faulty_mamba2 import failed


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


@pytest.mark.parametrize("name", ["MiniMax", "KimiLinear", "GraniteMoeHybrid"])
def test_in_half_precision_experts_chosen_otherwise_are_no_fault(name):
    model = builder(name, {})().bfloat16()
    result = check(model)
    assert result.passed, [c for c in result.checks if not c.passed]
    assert all(p.dtype == torch.bfloat16 for n, p in model.named_parameters() if n.endswith("q_proj.weight"))


def test_a_fault_below_half_precision_s_rounding_is_caught(monkeypatch):
    def forward(layer, x, state, marks):
        return mamba2.forward(layer, x, state and {n: t * 1.001 for n, t in state.items()}, marks)

    assert "segments" in failed(monkeypatch, forward, torch.bfloat16)
