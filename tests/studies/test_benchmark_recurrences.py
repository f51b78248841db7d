"""Recurrences that the benchmark times: both sides compute the same."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from lengthen.errors import InputError
from lengthen.studies import benchmark_cases, benchmark_layers, benchmark_recurrences
from lengthen.studies.benchmark_pairs import BOTH, Case

RECURRENCES = [case for case in benchmark_cases.cases() if case.build.__module__ == benchmark_recurrences.__name__]


def unless_missing(case: Case, length: int) -> Any:
    try:
        return case.build(replace(case, length=length))
    except (InputError, ImportError) as error:
        pytest.skip(str(error))


def functions_of(case: Case, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Our function, the peer's, and their inputs; the steps themselves throw away what these return."""
    for module in (benchmark_recurrences, benchmark_layers):
        monkeypatch.setattr(module, "steps", lambda case, ours, peer, inputs: (ours, peer, inputs))
    torch.manual_seed(0)
    return unless_missing(case, 128)  # whole chunks of every peer


@pytest.mark.parametrize(
    "case", RECURRENCES + [c for c in benchmark_cases.cases() if c.op == "rwkv-7 layer"], ids=lambda case: case.name
)
def test_both_sides_of_a_recurrence_compute_the_same(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    function, other, inputs = functions_of(case, monkeypatch)
    with torch.no_grad():
        value, expected = function(*inputs), other(*inputs)
    assert value.shape == expected.shape
    assert (value - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize("case", [c for c in RECURRENCES if c.mode == BOTH], ids=lambda case: case.name)
def test_both_sides_of_a_recurrence_have_the_same_gradients(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    function, other, inputs = functions_of(case, monkeypatch)
    found, expected = (
        torch.autograd.grad(call(*leaves).square().sum(), leaves)
        for call, leaves in (
            (call, [tensor.clone().requires_grad_() for tensor in inputs]) for call in (function, other)
        )
    )
    for index, (value, wanted) in enumerate(zip(found, expected)):
        assert (value - wanted).norm() <= 1e-4 * wanted.norm(), index
