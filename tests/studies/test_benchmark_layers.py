"""Layers and models that the benchmark times: both sides compute the same."""

import pytest
import torch

from lengthen.studies import benchmark_cases, benchmark_layers
from lengthen.studies.benchmark_pairs import Case
from tests.studies.test_benchmark_recurrences import unless_missing

LAYERS = [case for case in benchmark_cases.cases() if case.op in ("mamba-1 layer", "mamba-2 layer")]


@pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.name)
def test_both_sides_of_a_layer_compute_the_same(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark_layers, "_model_steps", lambda case, loss, ours, peer: (loss, ours, peer))
    loss, ours, peer = unless_missing(case, 33)
    tokens = torch.randint(0, 256, (1, 33), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        value, expected = loss(ours, tokens), peer(tokens, labels=tokens).loss
    assert (value - expected).abs() <= 1e-4 * expected
