"""What the benchmark's pairs are made of: steps with and without gradients, and peers that are missing."""

import pytest
import torch

from lengthen.errors import InputError
from lengthen.studies.benchmark_pairs import BOTH, FORWARD, Case, fla_naive, require, steps


def case(mode):
    return Case("square", "3, of any", 3, mode, "a peer", lambda case: None)


def test_a_step_of_both_modes_runs_its_own_function_and_only_one_differentiates():
    seen = []

    def function(name):
        def run(x, y):
            seen.append((name, torch.is_grad_enabled(), x.requires_grad, y.requires_grad))
            return x * y

        return run

    inputs = [torch.ones(3), torch.ones(3)]
    for mode in (FORWARD, BOTH):
        for step in steps(case(mode), function("ours"), function("peer"), inputs):
            step()
    assert seen == [
        ("ours", False, False, False),
        ("peer", False, False, False),
        ("ours", True, True, True),
        ("peer", True, True, True),
    ]
    assert not any(tensor.requires_grad or tensor.grad is not None for tensor in inputs)


def test_a_step_frees_what_it_computed():
    kept = []

    def counting(x):
        kept.append(x)
        return x.exp()

    ours, _ = steps(case(BOTH), counting, counting, [torch.ones(4)])
    assert ours() is None and kept[0].grad is None


def test_a_name_holds_no_space_and_no_comma():
    assert case(FORWARD).name == "square-3-of-any-3-forward-a-peer"


def test_a_package_that_is_missing_is_named():
    require("torch")
    with pytest.raises(InputError, match=r"^no_such_package is not installed; pip install it, or leave"):
        require("no_such_package")


def test_fla_s_pure_form_is_taken_from_its_file_without_importing_the_package():
    pytest.importorskip("fla")
    assert callable(fla_naive("gla").naive_recurrent_gla)
    with pytest.raises(InputError, match=r"^The installed fla has no pure PyTorch form of nothing;"):
        fla_naive("nothing")


def test_a_step_of_both_differentiates_the_sum_of_the_output():
    reached = []

    def function(x):
        y = x.square()
        y.register_hook(lambda gradient: reached.append(gradient.tolist()))
        return y

    for step in steps(case(BOTH), function, function, [torch.arange(3.0)]):
        step()
    assert reached == [[1, 1, 1]] * 2
