"""Which form of a recurrence runs: what decides it, and what is said where no kernel was built."""

import re
import types
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lengthen.kernels import dispatch, short_conv
from lengthen.kernels.dispatch import Form, choose_form, portable_only

needs_the_extension = pytest.mark.skipif(dispatch.compiled is None, reason="the extension is not built")
ON_GPU = types.SimpleNamespace(is_cuda=True, is_cpu=False, dtype=torch.bfloat16)


def form_of(*tensors: Tensor | None) -> Form:
    return choose_form(*tensors, compiled_function="ssd_forward")


@needs_the_extension
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kernels_run_where_all_that_is_given_is_on_a_cpu_and_of_their_types(dtype: torch.dtype) -> None:
    one = torch.zeros(1, dtype=dtype)
    assert form_of(one, None, torch.zeros(1)) is Form.COMPILED
    for other in (one.double(), one.half(), one.to("meta")):
        assert form_of(one, None, other) is Form.PORTABLE


@needs_the_extension
def test_every_function_that_an_operator_names_was_built() -> None:
    sources = Path(dispatch.__file__).parent.glob("*.py")
    named = {name for path in sources for name in re.findall(r'compiled_function="(\w+)"', path.read_text())}
    assert len(named) >= 6 and all(hasattr(dispatch.compiled, name) for name in named)


@needs_the_extension
def test_an_operator_without_a_kernel_is_portable() -> None:
    assert choose_form(torch.zeros(1), compiled_function="no_such_function") is Form.PORTABLE


def test_on_a_gpu_the_library_runs_where_it_serves() -> None:
    for given in ((ON_GPU, None), (torch.zeros(1), ON_GPU)):
        assert choose_form(*given, compiled_function="ssd_forward", cuda_library=True) is Form.CUDA_LIBRARY
        assert choose_form(*given, compiled_function="ssd_forward") is Form.PORTABLE


def test_portable_only_holds_until_the_outermost_is_left_even_by_an_error() -> None:
    tensor, outside = torch.zeros(1), form_of(torch.zeros(1))
    with pytest.raises(ZeroDivisionError), portable_only():
        with portable_only():
            assert choose_form(ON_GPU, compiled_function="ssd_forward", cuda_library=True) is Form.PORTABLE
        assert form_of(tensor) is Form.PORTABLE
        _ = 1 / 0
    assert form_of(tensor) is outside
    assert choose_form(ON_GPU, compiled_function="ssd_forward", cuda_library=True) is Form.CUDA_LIBRARY


def test_without_kernels_everything_runs_and_one_warning_says_why_it_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = torch.randn(2, 9, 3), torch.randn(3, 4)
    with portable_only():
        expected = short_conv(x, weight)
    monkeypatch.setattr(dispatch, "compiled", None)
    monkeypatch.setattr(dispatch, "_noticed", False)
    form_of(ON_GPU), form_of(x.double())  # had no use for them
    with pytest.warns(UserWarning, match=r"without its compiled kernels.*a C\+\+17 compiler is on the PATH\.$"):
        found = short_conv(x, weight)
    assert all(torch.equal(a, b) for a, b in zip(found, expected))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert form_of(x) is Form.PORTABLE
