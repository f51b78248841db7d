"""The selective scan agrees with its definition in every form, and is a well-behaved operator."""

import pytest
import torch
from torch import Tensor

from lengthen.kernels import selective_scan, selective_scan_reference
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

SEQUENCES = {"x", "dt", "B", "C", "gate", "input_gain", "decay_dt", "reset"}
FP32 = 5e-6  # rounding of a few thousand fp32 steps, well inside the promised 1e-5
BF16 = 1e-2  # the output is rounded to 8 bits
LONG = [1, 2, 63, 64, 65, 500, 2049]


def make(batch: int, positions: int, channels: int, states: int, *, full: bool = True, seed: int = 0):
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    inputs = {
        "x": normal(batch, positions, channels),
        "dt": normal(batch, positions, channels) - 2,
        "A": -4 * torch.rand(channels, states, generator=g) - 0.02,
        "B": normal(batch, positions, states),
        "C": normal(batch, positions, states),
        "initial_state": normal(batch, channels, states),
    }
    if full:
        inputs |= {
            "skip": normal(channels),
            "gate": normal(batch, positions, channels),
            "dt_bias": normal(channels) * 0.3,
            "input_gain": torch.rand(batch, positions, channels, generator=g),
            "decay_dt": torch.rand(batch, positions, channels, generator=g) * 0.1,
            "reset": torch.rand(batch, positions, generator=g) < 0.05,
        }
    return inputs


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("positions", [1, 2, 64, 127, 128, 129, 260])
def test_agrees_with_the_definition(form: str, positions: int) -> None:
    inputs = make(2, positions, 21, 5)
    with running(form):
        assert_agrees(selective_scan, selective_scan_reference, inputs, FP32, dt_softplus=True)


@pytest.mark.acceptance
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("positions", LONG)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("full", [False, True])
def test_agrees_with_the_definition_at_length(form: str, positions: int, batch: int, full: bool) -> None:
    inputs = make(batch, positions, 150, 16, full=full)
    with running(form):
        assert_agrees(selective_scan, selective_scan_reference, inputs, FP32, dt_softplus=True)


@pytest.mark.parametrize("form", FORMS)
def test_without_options(form: str) -> None:
    inputs = make(1, 70, 130, 16, full=False)
    inputs["dt"] = inputs["dt"].exp()
    with running(form):
        assert_agrees(selective_scan, selective_scan_reference, inputs, FP32)


@pytest.mark.parametrize("form", FORMS)
def test_bfloat16_sequences(form: str) -> None:
    inputs = make(2, 100, 40, 16)
    for name in SEQUENCES - {"reset"}:
        inputs[name] = inputs[name].bfloat16()
    with running(form):
        actual = assert_agrees(selective_scan, selective_scan_reference, inputs, BF16, dt_softplus=True)
    assert actual["output 0"].dtype == torch.bfloat16
    assert actual["output 1"].dtype == torch.float32


@pytest.mark.parametrize("form", FORMS)
def test_strided_inputs_need_no_copy(form: str) -> None:
    inputs = make(2, 90, 24, 8)
    for name in SEQUENCES - {"reset"}:
        wide = torch.empty(2, 90, 2 * inputs[name].shape[-1])
        wide[..., ::2] = inputs[name]
        inputs[name] = wide[..., ::2]
    inputs["initial_state"] = inputs["initial_state"].mT.contiguous().mT
    inputs["A"] = inputs["A"].T.contiguous().T
    inputs["reset"] = inputs["reset"].T.contiguous().T
    with running(form):
        assert_agrees(selective_scan, selective_scan_reference, inputs, FP32, dt_softplus=True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("step", [0.0, 1e-8, 3e-6, 2e-3, 60.0])
def test_constant_decays_from_none_to_nearly_all(form: str, step: float) -> None:
    # A constant decay repeats its rounding at every position: this is where 1 - 1e-6 in fp32 would show.
    inputs = make(1, 500, 16, 8)
    inputs["decay_dt"] = torch.full_like(inputs["decay_dt"], step)
    inputs["reset"] = torch.zeros_like(inputs["reset"])
    inputs["initial_state"] *= 1e4
    with running(form):
        assert_agrees(selective_scan, selective_scan_reference, inputs, 1e-5, dt_softplus=True)


@pytest.mark.parametrize("form", FORMS)
def test_an_infinite_decay_step_is_a_reset(form: str) -> None:
    inputs = make(1, 80, 16, 8)
    reset = inputs.pop("reset")
    cut = inputs | {"decay_dt": inputs["decay_dt"].masked_fill(reset[..., None], torch.inf)}
    with running(form):
        expected = evaluate(selective_scan, inputs | {"reset": reset}, dt_softplus=True)
        actual = evaluate(selective_scan, cut, dt_softplus=True)
    assert reset.any()
    for name, value in expected.items():
        assert torch.equal(actual[name], value), name
    assert not actual["gradient of decay_dt"][reset].any()


@pytest.mark.parametrize("form", FORMS)
def test_segments_equal_one_run(form: str) -> None:
    inputs = make(2, 201, 20, 16)
    inputs["dt"] = inputs["dt"].exp()
    with running(form):
        whole = selective_scan(**inputs)
        pieces = in_segments(selective_scan, inputs, "initial_state", [1, 63, 64, 70, 3], SEQUENCES)
    for one, other in zip(whole, pieces):
        assert max(errors(one, other.double())) < 2e-6


def test_the_definition_is_differentiated_rightly() -> None:
    assert_definition_differentiates(selective_scan_reference, make(1, 4, 2, 3), dt_softplus=True)


def test_float64_stays_float64() -> None:
    inputs = {n: t.double() if t.is_floating_point() else t for n, t in make(2, 140, 6, 4).items()}
    actual = assert_agrees(selective_scan, selective_scan_reference, inputs, 1e-12, dt_softplus=True)
    assert {value.dtype for value in actual.values()} == {torch.float64}


@pytest.mark.parametrize("form", ["torch", "portable"])
def test_is_a_well_formed_operator(form: str) -> None:
    i = make(2, 140, 6, 4)
    arguments = [i["x"], i["dt"], i["A"], i["B"], i["C"], None, i["gate"], i["dt_bias"], i["input_gain"], None]
    leaves = [t if t is None else t.clone().requires_grad_() for t in arguments]
    initial = i["initial_state"].clone().requires_grad_()
    with running(form):
        torch.library.opcheck(torch.ops.lengthen.selective_scan, (*leaves, i["reset"], initial, True, True))


def test_compiles_and_exports_whole() -> None:
    assert_compiles_and_exports(selective_scan, make(1, 66, 8, 4), dt_softplus=True)


@pytest.mark.parametrize("form", FORMS)
def test_every_element_is_written(form: str) -> None:
    with running(form):
        assert_writes_everything(selective_scan, make(2, 131, 150, 5), dt_softplus=True)


@pytest.mark.acceptance
@pytest.mark.parametrize("form", ["torch", "avx512"])
def test_agrees_over_131072_positions(form: str) -> None:
    inputs = make(1, 131072, 3, 2, full=False)
    inputs["dt"] = inputs["dt"].exp()
    with running(form):
        assert_agrees_over_131072(selective_scan, selective_scan_reference, inputs)


@pytest.mark.parametrize("form", FORMS)
def test_the_final_state_is_fresh_storage(form: str) -> None:
    inputs = make(1, 1, 4, 4)
    kept = inputs["initial_state"].clone()
    with running(form):
        _, final_state = selective_scan(**inputs)
    final_state.zero_()
    assert torch.equal(inputs["initial_state"], kept)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"x": torch.zeros(1, 0, 4)}, "no positions"),
        ({"x": torch.zeros(4, 4)}, "needs the axes"),
        ({"B": torch.zeros(1, 3, 5)}, "B has shape"),
        ({"initial_state": torch.zeros(1, 4, 9)}, "initial_state has shape"),
        ({"reset": torch.zeros(1, 3)}, "reset is torch.float32"),
        ({"dt": torch.zeros(1, 3, 4, dtype=torch.int64)}, "dt is torch.int64"),
    ],
)
def test_refuses_what_does_not_fit(change: dict[str, Tensor], error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        selective_scan(**(make(1, 3, 4, 4) | change))
