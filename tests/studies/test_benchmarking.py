"""The benchmark compares like with like, and says what it left out."""

import sys
from dataclasses import replace

import pytest
import torch

from lengthen.errors import InputError
from lengthen.studies import benchmark_cases
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
