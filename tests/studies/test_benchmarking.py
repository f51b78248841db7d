"""The benchmark compares like with like, and says what it left out."""

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from lengthen.errors import InputError
from lengthen.studies import benchmark_cases, benchmark_layers, benchmark_recurrences
from lengthen.studies.benchmark_pairs import Case
from lengthen.studies.benchmarking import benchmark

SHORT = [replace(case, length=65, with_memory=False) for case in benchmark_cases.cases() if case.op == "ssd"][:1]


def test_times_ours_against_the_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lengthen.studies.benchmarking.cases", lambda: SHORT)
    threads = torch.get_num_threads()
    result = benchmark(pairs=1)
    (entry,) = result.to_json()["entries"]
    assert {"op", "shape", "length", "mode", "peer", "ratio", "memory_ratio", "ceiling_share"} <= entry.keys()
    assert entry["ratio"] > 0
    assert entry["length"] == 65
    assert torch.get_num_threads() == threads


RECURRENCES = [case for case in benchmark_cases.cases() if case.build.__module__ == benchmark_recurrences.__name__]
LAYERS = [case for case in benchmark_cases.cases() if case.op in ("mamba-1 layer", "mamba-2 layer")]


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


@pytest.mark.parametrize("case", LAYERS, ids=lambda case: case.name)
def test_both_sides_of_a_layer_compute_the_same(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark_layers, "_model_steps", lambda case, loss, ours, peer: (loss, ours, peer))
    loss, ours, peer = unless_missing(case, 33)
    tokens = torch.randint(0, 256, (1, 33), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        value, expected = loss(ours, tokens), peer(tokens, labels=tokens).loss
    assert (value - expected).abs() <= 1e-4 * expected


def test_says_which_peer_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(case for case in benchmark_cases.cases() if case.peer == "fla naive")
    monkeypatch.setattr("lengthen.studies.benchmarking.cases", lambda: [case])
    monkeypatch.setitem(sys.modules, "fla", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = benchmark(pairs=1)
    assert not result.entries
    assert "fla is not installed" in result.left_out[0]


def test_refuses_what_it_cannot_time() -> None:
    with pytest.raises(InputError, match="nothing called attention"):
        benchmark(["attention"])
    with pytest.raises(InputError, match="0 pairs"):
        benchmark(pairs=0)
