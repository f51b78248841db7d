"""The benchmark's table: each pair once, and the memory that one step adds."""

import os

import pytest

from lengthen.errors import InputError
from lengthen.studies import benchmark_cases
from lengthen.studies.benchmark_cases import cases, measure_memory
from lengthen.studies.benchmark_pairs import BOTH, FORWARD, PRODUCTS, Case

MEGABYTE = 1 << 20


def test_each_pair_has_a_name_of_its_own_that_can_be_a_file_s():
    names = [case.name for case in cases()]
    assert len(set(names)) == len(names) > 10
    assert not any(character in name for name in names for character in " ,/")


def test_every_case_says_its_mode_and_some_measure_memory():
    assert {case.mode for case in cases()} == {FORWARD, BOTH, BOTH + PRODUCTS}
    assert sum(case.with_memory for case in cases()) >= 3
    assert all(case.length >= 512 and case.build is not None for case in cases())


def allocating(case):
    def ours():
        return os.urandom(40 * MEGABYTE)

    def peer():
        return os.urandom(8 * MEGABYTE)

    return ours, peer


def test_the_memory_of_a_step_is_what_it_adds_for_either_side(monkeypatch):
    case = Case("allocation", "40 MB", 1, FORWARD, "smaller", allocating)
    monkeypatch.setattr(benchmark_cases, "cases", lambda: [case])
    assert 38 < measure_memory(case.name, ours=True) < 60
    assert 6 < measure_memory(case.name, ours=False) < 25


def test_where_there_is_no_proc_memory_is_refused(monkeypatch):
    case = Case("allocation", "40 MB", 1, FORWARD, "smaller", allocating)
    monkeypatch.setattr(benchmark_cases, "cases", lambda: [case])
    monkeypatch.setattr(benchmark_cases.Path, "exists", lambda self: False)
    with pytest.raises(InputError, match=r"^Peak memory is measured on Linux only; pass memory=False\.$"):
        measure_memory(case.name, ours=True)
