"""Calls into GPU libraries, checked without a GPU: what they get, what comes back, and when they are passed over.

The stand-ins have the libraries' signatures and conventions, written down from fla 0.6 and mamba_ssm 2; tests/gpu holds the same
comparisons for the libraries themselves.
"""

import ast
import functools
import importlib.util
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lengthen.kernels import (
    cuda_libraries,
    gated_delta_rule_reference,
    gated_linear_attention,
    gated_linear_attention_reference,
    rwkv7,
    rwkv7_reference,
    selective_scan,
    selective_scan_reference,
    ssd_reference,
)
from tests.kernels.recurrence_comparison import assert_agrees, errors
from tests.kernels.test_gated_delta_rule import make as make_delta_rule
from tests.kernels.test_gated_linear_attention import make as make_gla
from tests.kernels.test_rwkv7 import make as make_rwkv7
from tests.kernels.test_selective_scan import make as make_scan
from tests.kernels.test_ssd import make as make_ssd


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


def chunk_gla(q, k, v, g, scale=None, initial_state=None, output_final_state=False, state_v_first=True):
    assert torch.isfinite(g).all(), "the library would make NaN of it"
    assert q.dtype == k.dtype == v.dtype
    assert initial_state is None or initial_state.dtype == torch.float32
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if state_v_first and initial_state is not None:
        initial_state = initial_state.mT
    output, state = gated_linear_attention_reference(q * scale, k, v, g, initial_state=initial_state)
    return output, (state.mT if state_v_first else state) if output_final_state else None


def chunk_rwkv6(r, k, v, w, u, scale=None, initial_state=None, output_final_state=False, **kwargs):
    assert torch.isfinite(w).all(), "the library would make NaN of it"
    scale = r.shape[-1] ** -0.5 if scale is None else scale
    output, state = gated_linear_attention_reference(r * scale, k, v, w, bonus=u, initial_state=initial_state)
    return output, state if output_final_state else None


def chunk_rwkv7(r, w, k, v, a, b, scale=1.0, initial_state=None, output_final_state=False):
    assert torch.isfinite(w).all(), "the library would make NaN of it"
    assert r.dtype == k.dtype == v.dtype == a.dtype == b.dtype
    output, state = rwkv7_reference(r * scale, w, k, v, a, b, initial_state=initial_state)
    return output, state if output_final_state else None


def selective_scan_fn(
    u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, return_last_state=False
):
    assert not return_last_state, "the library gives it no gradient"
    assert u.dtype == delta.dtype == B.dtype == C.dtype
    output, _ = selective_scan_reference(u.mT, delta.mT, A, B.mT, C.mT)
    return output.mT


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


@pytest.mark.parametrize("bonus", [False, True])
@pytest.mark.parametrize("options", [(), ("input_gain",), ("initial_state",)])
def test_gated_linear_attention_translates_its_arguments(installed, bonus: bool, options: tuple[str, ...]) -> None:
    installed("gla", chunk_gla=chunk_gla)
    installed("rwkv6", chunk_rwkv6=chunk_rwkv6)
    inputs = make_gla(2, 20, 2, 16, 16, bonus=bonus)  # equal dims: a transposed state would fit
    for name in options:
        del inputs[name]
    kernel = cuda_libraries.gated_linear_attention_kernel(inputs["key"], inputs["value"], inputs.get("bonus"))
    names = ["query", "key", "value", "log_decay", "input_gain", "bonus", "initial_state"]

    def through_library(**given: Tensor) -> tuple[Tensor, Tensor]:
        return cuda_libraries.gated_linear_attention_by_library(kernel, *(given.get(name) for name in names))

    actual = assert_agrees(through_library, gated_linear_attention_reference, inputs, 2e-6)
    assert not actual["gradient of log_decay"][inputs["log_decay"] == -torch.inf].any()


def test_rwkv7_translates_its_arguments() -> None:
    inputs = make_rwkv7(2, 20, 2, 16, 16)
    del inputs["reset"]  # becomes -inf log-decays, of which there are some, before a form is chosen
    names = ["receptance", "log_decay", "key", "value", "a", "b", "input_gain", "initial_state"]

    def through_library(**given: Tensor) -> tuple[Tensor, Tensor]:
        return cuda_libraries.rwkv7_by_library(chunk_rwkv7, *(given[name] for name in names))

    actual = assert_agrees(through_library, rwkv7_reference, inputs, 2e-6)
    assert not actual["gradient of log_decay"][inputs["log_decay"] == -torch.inf].any()


SCAN_OPTIONS = ("skip", "gate", "dt_bias", "input_gain", "initial_state")


@pytest.mark.parametrize("options", [(), SCAN_OPTIONS])
@pytest.mark.parametrize("elements", [1 << 24, 400])  # the carried state's part in one block and in many
def test_selective_scan_translates_its_arguments(
    monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], elements: int
) -> None:
    monkeypatch.setattr(cuda_libraries, "CARRIED_ELEMENTS", elements)
    inputs = make_scan(2, 40, 6, 4)
    for name in {"decay_dt", "reset", *SCAN_OPTIONS} - set(options):
        del inputs[name]
    if "initial_state" in options:
        inputs["initial_state"] *= 100

    def through_library(**given: Tensor) -> tuple[Tensor, Tensor]:
        given = {name: given.get(name) for name in ("x", "dt", "A", "B", "C", *SCAN_OPTIONS)}
        return cuda_libraries.selective_scan_by_library(selective_scan_fn, **given, dt_softplus=True)

    assert_agrees(through_library, selective_scan_reference, inputs, 5e-6, dt_softplus=True)


def test_selective_scan_keeps_its_state_exact_for_half_inputs() -> None:
    inputs = make_scan(1, 30, 6, 4, full=False)
    half = {n: t if n in ("A", "initial_state") else t.bfloat16() for n, t in inputs.items()}
    given = half | dict.fromkeys(SCAN_OPTIONS[:-1])
    output, state = cuda_libraries.selective_scan_by_library(selective_scan_fn, **given, dt_softplus=True)
    double = {name: tensor.double() for name, tensor in half.items()}
    expected = selective_scan_reference(**double, dt_softplus=True)[1]
    assert output.dtype == torch.bfloat16
    assert state.dtype == torch.float32
    assert max(errors(state, expected)) < 5e-6


def test_a_log_decay_of_minus_infinity_lets_nothing_through() -> None:
    results = []
    for scale in (1.0, 1e30):
        inputs = make_gla(1, 12, 1, 16, 16)
        inputs["log_decay"][:, 7] = -torch.inf
        inputs["value"][:, :7] *= scale
        inputs["value"][:, 7:] *= 1e-30  # so that a remainder of what was before would show
        inputs["initial_state"] *= scale
        call = functools.partial(chunk_gla, state_v_first=False)
        names = ["query", "key", "value", "log_decay", "input_gain", "bonus", "initial_state"]
        results.append(cuda_libraries.gated_linear_attention_by_library(call, *map(inputs.get, names)))
    (one, one_state), (other, other_state) = results
    assert torch.equal(one[:, 7:], other[:, 7:])
    assert torch.equal(one_state, other_state)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch):
    """An fla whose operators are these functions, and a mamba_ssm."""

    def install(operator: str, package: str = "fla.ops", **functions: object) -> None:
        module = types.ModuleType(f"{package}.{operator}")
        module.__dict__.update(functions)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        forget()

    uninstall(monkeypatch)
    for package in ("fla", "fla.ops", "mamba_ssm", "mamba_ssm.ops"):
        monkeypatch.setitem(sys.modules, package, types.ModuleType(package))
    yield install
    forget()


def uninstall(monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries as if nothing of them had been imported."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("fla", "mamba_ssm")]:
        monkeypatch.delitem(sys.modules, name)


def forget() -> None:
    cuda_libraries.fla_kernel.cache_clear()
    cuda_libraries.library_kernel.cache_clear()


def test_a_kernel_is_taken_by_what_it_can(installed) -> None:
    q, v = torch.zeros(1, 1, 1, 16), torch.zeros(1, 1, 1, 16)
    installed("simple_gla", chunk_simple_gla=chunk_simple_gla)
    assert cuda_libraries.ssd_kernel(q, v) is chunk_simple_gla
    assert cuda_libraries.ssd_kernel(q, v.double()) is None
    assert cuda_libraries.ssd_kernel(torch.zeros(1, 1, 1, 512), v) is None
    installed("simple_gla", chunk_simple_gla=lambda q, k, v, g: None)  # a release without states
    assert cuda_libraries.ssd_kernel(q, v) is None
    installed("kda", chunk_kda=chunk_kda)
    assert cuda_libraries.gated_delta_rule_kernel(q.bfloat16(), v.bfloat16(), torch.zeros(1, 1, 1, 16)) is chunk_kda
    assert cuda_libraries.gated_delta_rule_kernel(q, v, torch.zeros(1, 1, 1, 16)) is None  # no fp32 in fla
    installed("rwkv7", chunk_rwkv7=chunk_rwkv7)
    assert cuda_libraries.rwkv7_kernel(q.bfloat16(), v.bfloat16()) is chunk_rwkv7
    assert cuda_libraries.rwkv7_kernel(q, v) is None
    assert cuda_libraries.rwkv7_kernel(q.bfloat16(), v) is None
    installed("gla", chunk_gla=chunk_gla)
    assert cuda_libraries.gated_linear_attention_kernel(q, v, None) is not None
    assert cuda_libraries.gated_linear_attention_kernel(q[..., :8], v, None) is None  # no product of fla's is as small
    assert cuda_libraries.gated_linear_attention_kernel(q, v, torch.zeros(1, 16)) is None  # no RWKV-6 in this release


def test_operators_on_a_gpu_call_the_library(installed, monkeypatch: pytest.MonkeyPatch) -> None:
    installed("gla", chunk_gla=chunk_gla)
    installed("rwkv7", chunk_rwkv7=chunk_rwkv7)
    installed("selective_scan_interface", "mamba_ssm.ops", selective_scan_fn=selective_scan_fn)
    called = []
    for operator in ("gated_linear_attention", "rwkv7", "selective_scan"):
        through = getattr(cuda_libraries, f"{operator}_by_library")

        def by_library(*args, through=through, operator=operator, **kwargs):
            called.append(operator)
            return through(*args, **kwargs)

        monkeypatch.setattr(sys.modules[f"lengthen.kernels.{operator}"], f"{operator}_by_library", by_library)
    matrices = make_gla(1, 5, 2, 16, 16), make_rwkv7(1, 5, 2, 16, 16)
    gla, rwkv = ({n: t if n == "reset" else t.bfloat16() for n, t in inputs.items()} for inputs in matrices)
    scan = make_scan(1, 5, 4, 3, full=False)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    gated_linear_attention(**gla)
    rwkv7(**rwkv)
    output, state = selective_scan(**scan, dt_softplus=True)
    assert called == ["gated_linear_attention", "rwkv7", "selective_scan"]
    expected = selective_scan_reference(**scan, dt_softplus=True)
    assert torch.allclose(output, expected[0], atol=1e-5)
    assert torch.allclose(state, expected[1], atol=1e-5)


def test_mamba_ssm_is_taken_by_what_it_can(installed) -> None:
    x, A = torch.zeros(1, 3, 4), torch.zeros(4, 2)
    installed("selective_scan_interface", "mamba_ssm.ops", selective_scan_fn=selective_scan_fn)
    assert cuda_libraries.selective_scan_kernel(x, A, None, None) is selective_scan_fn
    assert cuda_libraries.selective_scan_kernel(x.double(), A, None, None) is None
    assert cuda_libraries.selective_scan_kernel(x, torch.zeros(4, 512), None, None) is None
    assert cuda_libraries.selective_scan_kernel(x, A, x, None) is None
    assert cuda_libraries.selective_scan_kernel(x, A, None, torch.zeros(1, 3, dtype=torch.bool)) is None
    installed("selective_scan_interface", "mamba_ssm.ops", selective_scan_fn=lambda xz: None)
    assert cuda_libraries.selective_scan_kernel(x, A, None, None) is None


def test_a_library_that_does_not_import_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    uninstall(monkeypatch)
    monkeypatch.setitem(sys.modules, "fla", None)
    monkeypatch.setitem(sys.modules, "mamba_ssm", None)
    forget()
    assert cuda_libraries.ssd_kernel(torch.zeros(1, 1, 1, 16), torch.zeros(1, 1, 1, 16)) is None
    assert cuda_libraries.selective_scan_kernel(torch.zeros(1, 3, 4), torch.zeros(4, 2), None, None) is None
    forget()


@pytest.mark.parametrize(
    ("operator", "name", "stand_in"),
    [
        ("simple_gla", "chunk_simple_gla", chunk_simple_gla),
        ("delta_rule", "chunk_delta_rule", chunk_delta_rule),
        ("kda", "chunk_kda", chunk_kda),
        ("gla", "chunk_gla", chunk_gla),
        ("rwkv6", "chunk_rwkv6", chunk_rwkv6),
        ("rwkv7", "chunk_rwkv7", chunk_rwkv7),
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
