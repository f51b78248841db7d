"""The benchmark's table: each pair once, and the memory that one step adds."""

import subprocess
import sys

import pytest

from lengthen.errors import InputError
from lengthen.studies import benchmark_cases
from lengthen.studies.benchmark_cases import cases, measure_memory
from lengthen.studies.benchmark_pairs import BOTH, FORWARD, PRODUCTS, Case


def test_each_pair_has_a_name_of_its_own_that_can_be_a_file_s():
    names = [case.name for case in cases()]
    assert len(set(names)) == len(names) > 10
    assert not any(character in name for name in names for character in " ,/")


def test_every_case_says_its_mode_and_some_measure_memory():
    assert {case.mode for case in cases()} == {FORWARD, BOTH, BOTH + PRODUCTS}
    assert sum(case.with_memory for case in cases()) >= 3
    assert all(case.length >= 512 and case.build is not None for case in cases())


SCRIPT = """
import os
from lengthen.studies import benchmark_cases
from lengthen.studies.benchmark_pairs import FORWARD, Case

sizes = (40 << 20, 8 << 20)
case = Case("allocation", "40 MB", 1, FORWARD, "8 MB", lambda case: [lambda size=size: os.urandom(size) for size in sizes])
benchmark_cases.cases = lambda: [case]
print(*(benchmark_cases.measure_memory(case.name, ours=ours) for ours in (True, False)))
"""


def test_the_memory_of_a_step_is_what_it_adds_for_either_side():
    """In a process of its own, as the benchmark has it: one that freed memory before would use that."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    ours, peer = map(float, done.stdout.split())
    assert 38 < ours < 60 and 6 < peer < 25


def test_where_there_is_no_proc_memory_is_refused(monkeypatch):
    case = Case("nothing", "none", 1, FORWARD, "itself", lambda case: (list, list))
    monkeypatch.setattr(benchmark_cases, "cases", lambda: [case])
    monkeypatch.setattr(benchmark_cases.Path, "exists", lambda self: False)
    with pytest.raises(InputError, match=r"^Peak memory is measured on Linux only; pass memory=False\.$"):
        measure_memory(case.name, ours=True)
