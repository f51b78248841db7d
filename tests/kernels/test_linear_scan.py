"""The linear scan agrees with its definition in every form, and is a well-behaved operator."""

import pytest
import torch
from torch import Tensor

from lengthen.kernels import linear_scan, linear_scan_reference
from tests.kernels.recurrence_comparison import (
    FORMS,
    assert_agrees,
    assert_agrees_over_131072,
    assert_compiles_and_exports,
    assert_definition_differentiates,
    assert_writes_everything,
    errors,
    evaluate,
    in_segments,
    running,
)

SEQUENCES = {"log_decay", "x", "input_gain"}
FP32 = 5e-6  # rounding of a few thousand fp32 steps, well inside the promised 1e-5
BF16 = 1e-2  # the output is rounded to 8 bits
LONG = [1, 2, 63, 64, 65, 500, 2049]


def make(batch: int, positions: int, channels: int, *, seed: int = 0) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    log_decay = torch.nn.functional.logsigmoid(normal(batch, positions, channels)) / 4
    log_decay[torch.rand(log_decay.shape, generator=g) < 0.02] = -torch.inf
    log_decay[torch.rand(log_decay.shape, generator=g) < 0.1] = 0.0
    return {
        "log_decay": log_decay,
        "x": normal(batch, positions, channels),
        "input_gain": torch.rand(batch, positions, channels, generator=g),
        "initial_state": normal(batch, channels),
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("positions", [1, 2, 64, 127, 128, 129, 260])
def test_agrees_with_the_definition(form: str, positions: int) -> None:
    inputs = make(2, positions, 21)
    with running(form):
        actual = assert_agrees(linear_scan, linear_scan_reference, inputs, FP32)
    assert not actual["gradient of log_decay"][inputs["log_decay"] == -torch.inf].any()


@pytest.mark.acceptance
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("positions", LONG)
@pytest.mark.parametrize("batch", [1, 3])
def test_agrees_with_the_definition_at_length(form: str, positions: int, batch: int) -> None:
    inputs = make(batch, positions, 300)
    with running(form):
        assert_agrees(linear_scan, linear_scan_reference, inputs, FP32)


@pytest.mark.parametrize("form", FORMS)
def test_without_options(form: str) -> None:
    inputs = make(1, 70, 130)
    del inputs["input_gain"], inputs["initial_state"]
    with running(form):
        assert_agrees(linear_scan, linear_scan_reference, inputs, FP32)


@pytest.mark.parametrize("form", FORMS)
def test_bfloat16_sequences(form: str) -> None:
    inputs = make(2, 100, 64)
    for name in SEQUENCES:
        inputs[name] = inputs[name].bfloat16()
    with running(form):
        actual = assert_agrees(linear_scan, linear_scan_reference, inputs, BF16)
    assert actual["output 0"].dtype == torch.bfloat16
    assert actual["output 1"].dtype == torch.float32


@pytest.mark.parametrize("form", FORMS)
def test_strided_inputs(form: str) -> None:
    inputs = make(2, 90, 20)
    for name in SEQUENCES:
        inputs[name] = inputs[name].mT.contiguous().mT
    inputs["initial_state"] = inputs["initial_state"].T.contiguous().T
    with running(form):
        assert_agrees(linear_scan, linear_scan_reference, inputs, FP32)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("log_decay", [0.0, -1e-8, -3e-6, -2e-3, -0.34, -15.0, -80.0, -torch.inf])
def test_constant_decays_from_none_to_all(form: str, log_decay: float) -> None:
    # A constant decay repeats its rounding at every position: this is where 1 - 1e-6 in fp32 would show.
    inputs = make(1, 500, 16)
    inputs["log_decay"] = torch.full_like(inputs["log_decay"], log_decay)
    inputs["initial_state"] *= 1e4
    with running(form):
        assert_agrees(linear_scan, linear_scan_reference, inputs, 1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_segments_equal_one_run(form: str) -> None:
    inputs = make(2, 201, 20)
    with running(form):
        whole = linear_scan(**inputs)
        pieces = in_segments(linear_scan, inputs, "initial_state", [1, 63, 64, 70, 3], SEQUENCES)
    for one, other in zip(whole, pieces):
        assert max(errors(one, other.double())) < 2e-6


@pytest.mark.parametrize("form", FORMS)
def test_nothing_crosses_a_reset(form: str) -> None:
    inputs = make(1, 100, 20)
    inputs["log_decay"][:, 70] = -torch.inf
    with running(form):
        gradients = evaluate(lambda **x: [y[:, 70:] for y in linear_scan(**x)[:1]], inputs)
        torch.testing.assert_close(
            linear_scan(**inputs)[1],
            linear_scan(**inputs | {"initial_state": 1e6 * inputs["initial_state"]})[1],
            rtol=0,
            atol=0,
        )
    for name in ["x", "input_gain"]:
        assert gradients[f"gradient of {name}"][:, 70:].any()
        assert not gradients[f"gradient of {name}"][:, :70].any()
    assert not gradients["gradient of initial_state"].any()


def test_the_definition_is_differentiated_rightly() -> None:
    inputs = make(1, 4, 3)
    inputs["log_decay"] = inputs["log_decay"].clamp(min=-3)
    assert_definition_differentiates(linear_scan_reference, inputs)


def test_float64_stays_float64() -> None:
    inputs = {name: tensor.double() for name, tensor in make(2, 140, 6).items()}
    actual = assert_agrees(linear_scan, linear_scan_reference, inputs, 1e-12)
    assert {value.dtype for value in actual.values()} == {torch.float64}


@pytest.mark.parametrize("form", ["torch", "portable"])
def test_is_a_well_formed_operator(form: str) -> None:
    i = {name: t.clone().requires_grad_() for name, t in make(2, 140, 6).items()}
    arguments = (i["log_decay"], i["x"], i["input_gain"], i["initial_state"])
    with running(form):
        torch.library.opcheck(torch.ops.lengthen.linear_scan, (*arguments, torch.float32, True))


def test_compiles_and_exports_whole() -> None:
    assert_compiles_and_exports(linear_scan, make(1, 66, 4))


@pytest.mark.parametrize("form", FORMS)
def test_every_element_is_written(form: str) -> None:
    with running(form):
        assert_writes_everything(linear_scan, make(2, 131, 150))


@pytest.mark.acceptance
@pytest.mark.parametrize("form", ["torch", "avx512"])
def test_agrees_over_131072_positions(form: str) -> None:
    inputs = make(1, 131072, 5)
    with running(form):
        assert_agrees_over_131072(linear_scan, linear_scan_reference, inputs)


@pytest.mark.parametrize("form", FORMS)
def test_the_final_state_is_fresh_storage(form: str) -> None:
    inputs = make(1, 1, 4)
    kept = inputs["initial_state"].clone()
    with running(form):
        linear_scan(**inputs)[1].zero_()
    assert torch.equal(inputs["initial_state"], kept)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"x": torch.zeros(1, 0, 4)}, "no positions"),
        ({"x": torch.zeros(3, 4)}, "needs the axes"),
        ({"log_decay": torch.zeros(1, 3)}, "log_decay has shape"),
        ({"initial_state": torch.zeros(1, 9)}, "initial_state has shape"),
        ({"x": torch.zeros(1, 3, 4, dtype=torch.int64)}, "x is torch.int64"),
    ],
)
def test_refuses_what_does_not_fit(change: dict[str, Tensor], error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        linear_scan(**(make(1, 3, 4) | change))
