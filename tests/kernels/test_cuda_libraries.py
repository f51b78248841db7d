"""Calls into GPU libraries, checked without a GPU: what they get, what comes back, and when they are passed over.

The stand-ins have the libraries' signatures and conventions, written down from fla 0.6; tests/gpu holds the same
comparisons for the libraries themselves.
"""

import ast
import importlib.util
import sys
import types
from pathlib import Path

import pytest
import torch
from recurrence_comparison import assert_agrees
from test_gated_delta_rule import make as make_delta_rule
from test_ssd import make as make_ssd
from torch import Tensor

from lengthen.kernels import cuda_libraries, gated_delta_rule_reference, ssd_reference
from lengthen.kernels.dispatch import Form, choose_form, portable_only


def chunk_simple_gla(q, k, v, g=None, g_gamma=None, scale=None, initial_state=None, output_final_state=False):
    assert torch.isfinite(g).all(), "the library would make NaN of it"
    assert q.shape[2] == v.shape[2]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    output, state = ssd_reference(q * scale, k, v, g, initial_state=initial_state)
    return output, state if output_final_state else None


def chunk_delta_rule(q, k, v, beta, scale=None, initial_state=None, output_final_state=False, **kwargs):
    return chunk_kda(q, k, v, None, beta, scale, initial_state, output_final_state)


def chunk_kda(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, **kwargs):
    assert g is None or torch.isfinite(g).all(), "the library would make NaN of it"
    assert q.shape[2] == v.shape[2]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    output, state = gated_delta_rule_reference(q * scale, k, v, g, beta, initial_state=initial_state)
    return output, state if output_final_state else None


@pytest.mark.parametrize("full", [False, True])
def test_ssd_translates_its_arguments(full: bool) -> None:
    inputs = make_ssd(2, 20, 4, 2, 6, 5, full=full)
    inputs["log_decay"][:, 7] = -torch.inf
    names = ["query", "key", "value", "log_decay", "input_gain", "skip", "initial_state"]

    def through_library(**given: Tensor) -> tuple[Tensor, Tensor]:
        return cuda_libraries.ssd_by_library(chunk_simple_gla, *(given.get(name) for name in names))

    assert_agrees(through_library, ssd_reference, inputs, 2e-6)


@pytest.mark.parametrize("decay", ["none", "head", "channel"])
def test_gated_delta_rule_translates_its_arguments(decay: str) -> None:
    inputs = make_delta_rule(2, 20, 4, 2, 6, 5, decay=decay)
    if decay != "none":
        inputs["log_decay"][:, 7] = -torch.inf
    names = ["query", "key", "value", "log_decay", "beta", "input_gain", "initial_state"]
    kernel = chunk_delta_rule if decay == "none" else chunk_kda

    def through_library(**given: Tensor) -> tuple[Tensor, Tensor]:
        return cuda_libraries.gated_delta_rule_by_library(kernel, *(given.get(name) for name in names))

    def reference(log_decay: Tensor | None = None, **given: Tensor) -> tuple[Tensor, Tensor]:
        return gated_delta_rule_reference(log_decay=log_decay, **given)

    assert_agrees(through_library, reference, inputs, 2e-6)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch):
    """An fla whose operators are these functions."""

    def install(operator: str, **functions: object) -> None:
        module = types.ModuleType(f"fla.ops.{operator}")
        module.__dict__.update(functions)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        cuda_libraries.fla_kernel.cache_clear()

    for package in ("fla", "fla.ops"):
        monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
    yield install
    cuda_libraries.fla_kernel.cache_clear()


def test_a_kernel_is_taken_by_what_it_can(installed) -> None:
    q, v = torch.zeros(1, 1, 1, 8), torch.zeros(1, 1, 1, 8)
    installed("simple_gla", chunk_simple_gla=chunk_simple_gla)
    assert cuda_libraries.ssd_kernel(q, v) is chunk_simple_gla
    assert cuda_libraries.ssd_kernel(q, v.double()) is None
    assert cuda_libraries.ssd_kernel(torch.zeros(1, 1, 1, 512), v) is None
    installed("simple_gla", chunk_simple_gla=lambda q, k, v, g: None)  # a release without states
    assert cuda_libraries.ssd_kernel(q, v) is None
    installed("kda", chunk_kda=chunk_kda)
    assert cuda_libraries.gated_delta_rule_kernel(q.bfloat16(), v.bfloat16(), torch.zeros(1, 1, 1, 8)) is chunk_kda
    assert cuda_libraries.gated_delta_rule_kernel(q, v, torch.zeros(1, 1, 1, 8)) is None  # no fp32 in fla


def test_a_library_that_does_not_import_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fla", None)
    cuda_libraries.fla_kernel.cache_clear()
    assert cuda_libraries.ssd_kernel(torch.zeros(1, 1, 1, 8), torch.zeros(1, 1, 1, 8)) is None
    cuda_libraries.fla_kernel.cache_clear()


def test_one_function_chooses_the_form() -> None:
    on_gpu = types.SimpleNamespace(is_cuda=True, is_cpu=False, dtype=torch.bfloat16)
    assert choose_form(on_gpu, None, compiled_function="ssd_forward", cuda_library=True) is Form.CUDA_LIBRARY
    assert choose_form(on_gpu, compiled_function="ssd_forward") is Form.PORTABLE
    assert choose_form(torch.zeros(1).double(), compiled_function="ssd_forward") is Form.PORTABLE
    assert choose_form(torch.zeros(1), compiled_function="no_such_function") is Form.PORTABLE
    with portable_only():
        assert choose_form(on_gpu, compiled_function="ssd_forward", cuda_library=True) is Form.PORTABLE
        assert choose_form(torch.zeros(1), compiled_function="ssd_forward") is Form.PORTABLE


@pytest.mark.parametrize(
    ("operator", "name", "stand_in"),
    [
        ("simple_gla", "chunk_simple_gla", chunk_simple_gla),
        ("delta_rule", "chunk_delta_rule", chunk_delta_rule),
        ("kda", "chunk_kda", chunk_kda),
    ],
)
def test_the_installed_library_has_the_stand_ins_signature(operator: str, name: str, stand_in) -> None:
    spec = importlib.util.find_spec("fla")
    if spec is None:
        pytest.skip("fla is not installed")
    paths = [Path(place, "ops", operator, "chunk.py") for place in spec.submodule_search_locations or []]
    source = next((path for path in paths if path.exists()), None)
    if source is None:
        pytest.skip("the installed fla has no such operator")
    functions = {
        node.name: node
        for node in ast.walk(ast.parse(source.read_text()))
        if hasattr(node, "args") and isinstance(node, ast.FunctionDef)
    }
    theirs = [argument.arg for argument in functions[name].args.args]
    ours = list(stand_in.__code__.co_varnames[: stand_in.__code__.co_argcount])
    assert theirs[: len(ours)] == ours
