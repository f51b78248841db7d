"""Recurrences that the benchmark times: both sides compute the same."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from lengthen.errors import InputError
from lengthen.studies import benchmark_cases, benchmark_layers, benchmark_recurrences
from lengthen.studies.benchmark_pairs import Case

RECURRENCES = [case for case in benchmark_cases.cases() if case.build.__module__ == benchmark_recurrences.__name__]


def unless_missing(case: Case, length: int) -> Any:
    try:
        return case.build(replace(case, length=length))
    except (InputError, ImportError) as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    "case", RECURRENCES + [c for c in benchmark_cases.cases() if c.op == "rwkv-7 layer"], ids=lambda case: case.name
)
def test_both_sides_of_a_recurrence_compute_the_same(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    # The steps' own results are thrown away: catch what their functions return.
    for module in (benchmark_recurrences, benchmark_layers):
        monkeypatch.setattr(module, "steps", lambda case, ours, peer, inputs: (ours, peer, inputs))
    torch.manual_seed(0)
    function, other, inputs = unless_missing(case, 128)  # whole chunks of every peer
    with torch.no_grad():
        value, expected = function(*inputs), other(*inputs)
    assert value.shape == expected.shape
    assert (value - expected).abs().max() <= 1e-4 * expected.abs().max()
