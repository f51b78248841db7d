"""RWKV-7 agrees with its definition in every form, and is a well-behaved operator."""

import pytest
import torch
from torch import Tensor

from lengthen.kernels import rwkv7, rwkv7_reference
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

SEQUENCES = {"receptance", "log_decay", "key", "value", "a", "b", "input_gain", "reset"}
FP32 = 5e-6  # rounding of a few thousand fp32 steps, well inside the promised 1e-5
BF16 = 1e-2  # the output is rounded to 8 bits
LONG = [1, 2, 63, 64, 65, 500, 2049]


def make(batch: int, positions: int, heads: int, key_dim: int, value_dim: int, *, seed: int = 0) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    keys = (batch, positions, heads, key_dim)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    log_decay = -0.6 * torch.sigmoid(normal(*keys))
    log_decay[torch.rand(keys, generator=g) < 0.02] = -torch.inf
    direction = torch.nn.functional.normalize(normal(*keys), dim=-1)
    return {
        "receptance": normal(*keys),
        "log_decay": log_decay,
        "key": normal(*keys),
        "value": normal(batch, positions, heads, value_dim),
        # As in the model: removal along a unit direction, at a rate between 0 and the decay, keeps the state bounded.
        "a": -direction,
        "b": direction * 0.5 * torch.rand(keys, generator=g),
        "input_gain": torch.rand(batch, positions, heads, generator=g),
        "reset": torch.rand(batch, positions, generator=g) < 0.02,
        "initial_state": normal(batch, heads, key_dim, value_dim),
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("positions", [1, 2, 64, 127, 128, 129, 260])
def test_agrees_with_the_definition(form: str, positions: int) -> None:
    inputs = make(2, positions, 2, 6, 21)
    with running(form):
        actual = assert_agrees(rwkv7, rwkv7_reference, inputs, FP32)
    assert not actual["gradient of log_decay"][inputs["log_decay"] == -torch.inf].any()


@pytest.mark.acceptance
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("positions", LONG)
@pytest.mark.parametrize("batch", [1, 3])
def test_agrees_with_the_definition_at_length(form: str, positions: int, batch: int) -> None:
    inputs = make(batch, positions, 2, 32, 80)
    with running(form):
        assert_agrees(rwkv7, rwkv7_reference, inputs, FP32)


@pytest.mark.parametrize("form", FORMS)
def test_without_options(form: str) -> None:
    inputs = make(1, 70, 3, 16, 64)
    del inputs["input_gain"], inputs["initial_state"], inputs["reset"]
    with running(form):
        assert_agrees(rwkv7, rwkv7_reference, inputs, FP32)


@pytest.mark.parametrize("form", FORMS)
def test_bfloat16_sequences(form: str) -> None:
    inputs = make(2, 100, 2, 16, 64)
    for name in SEQUENCES - {"reset"}:
        inputs[name] = inputs[name].bfloat16()
    with running(form):
        actual = assert_agrees(rwkv7, rwkv7_reference, inputs, BF16)
    assert actual["output 0"].dtype == torch.bfloat16
    assert actual["output 1"].dtype == torch.float32


@pytest.mark.parametrize("form", FORMS)
def test_strided_inputs(form: str) -> None:
    inputs = make(2, 90, 3, 8, 20)
    for name in SEQUENCES - {"reset"}:
        inputs[name] = inputs[name].transpose(1, 2).contiguous().transpose(1, 2)
    inputs["receptance"] = inputs["receptance"].mT.contiguous().mT
    inputs["initial_state"] = inputs["initial_state"].mT.contiguous().mT
    with running(form):
        assert_agrees(rwkv7, rwkv7_reference, inputs, FP32)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("log_decay", [0.0, -1e-8, -3e-6, -2e-3, -0.34, -15.0, -80.0, -torch.inf])
def test_constant_decays_from_none_to_all(form: str, log_decay: float) -> None:
    # A constant decay repeats its rounding at every position: this is where 1 - 1e-6 in fp32 would show.
    inputs = make(1, 500, 1, 8, 16)
    inputs["log_decay"] = torch.full_like(inputs["log_decay"], log_decay)
    inputs["b"] *= 1e-3
    inputs["reset"] = torch.zeros_like(inputs["reset"])
    inputs["initial_state"] *= 1e4
    with running(form):
        assert_agrees(rwkv7, rwkv7_reference, inputs, 1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_segments_equal_one_run(form: str) -> None:
    inputs = make(2, 201, 2, 16, 20)
    with running(form):
        whole = rwkv7(**inputs)
        pieces = in_segments(rwkv7, inputs, "initial_state", [1, 63, 64, 70, 3], SEQUENCES)
    for one, other in zip(whole, pieces):
        assert max(errors(one, other.double())) < 2e-6


@pytest.mark.parametrize("form", FORMS)
def test_nothing_crosses_a_reset(form: str) -> None:
    inputs = make(1, 100, 2, 8, 20)
    inputs["reset"] = torch.arange(100)[None] == 70
    with running(form):
        gradients = evaluate(lambda **x: [y[:, 70:] for y in rwkv7(**x)[:1]], inputs)
        torch.testing.assert_close(
            rwkv7(**inputs)[1],
            rwkv7(**inputs | {"initial_state": 1e6 * inputs["initial_state"]})[1],
            rtol=0,
            atol=0,
        )
    for name in ["key", "value", "b", "input_gain"]:
        assert gradients[f"gradient of {name}"][:, 70:].any()
        assert not gradients[f"gradient of {name}"][:, :70].any()
    assert not gradients["gradient of initial_state"].any()


def test_the_definition_is_differentiated_rightly() -> None:
    inputs = make(1, 4, 1, 2, 3)
    inputs["log_decay"] = inputs["log_decay"].clamp(min=-3)
    assert_definition_differentiates(rwkv7_reference, inputs)


def test_float64_stays_float64() -> None:
    inputs = {n: t.double() if t.is_floating_point() else t for n, t in make(2, 140, 2, 6, 4).items()}
    actual = assert_agrees(rwkv7, rwkv7_reference, inputs, 1e-12)
    assert {value.dtype for value in actual.values()} == {torch.float64}


@pytest.mark.parametrize("form", ["torch", "portable"])
def test_is_a_well_formed_operator(form: str) -> None:
    i = {n: t.clone().requires_grad_() for n, t in make(2, 140, 2, 6, 4).items() if n != "reset"}
    arguments = (
        *(i[n] for n in ("receptance", "log_decay", "key", "value", "a", "b", "input_gain")),
        i["initial_state"],
    )
    with running(form):
        torch.library.opcheck(torch.ops.lengthen.rwkv7, (*arguments, torch.float32, True))


def test_compiles_and_exports_whole() -> None:
    assert_compiles_and_exports(rwkv7, make(1, 66, 2, 4, 4))


@pytest.mark.parametrize("form", FORMS)
def test_every_element_is_written(form: str) -> None:
    with running(form):
        assert_writes_everything(rwkv7, make(2, 131, 3, 5, 21))


@pytest.mark.acceptance
@pytest.mark.parametrize("form", ["torch", "avx512"])
def test_agrees_over_131072_positions(form: str) -> None:
    inputs = make(1, 131072, 1, 3, 4)
    with running(form):
        assert_agrees_over_131072(rwkv7, rwkv7_reference, inputs)


@pytest.mark.parametrize("form", FORMS)
def test_the_final_state_is_fresh_storage(form: str) -> None:
    inputs = make(1, 1, 1, 4, 4)
    kept = inputs["initial_state"].clone()
    with running(form):
        rwkv7(**inputs)[1].zero_()
    assert torch.equal(inputs["initial_state"], kept)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"key": torch.zeros(1, 0, 2, 4)}, "no positions"),
        ({"key": torch.zeros(1, 3, 4)}, "needs the axes"),
        ({"a": torch.zeros(1, 3, 2, 5)}, "a has shape"),
        ({"log_decay": torch.zeros(1, 3, 2)}, "log_decay has shape"),
        ({"reset": torch.zeros(1, 3)}, "reset is torch.float32"),
        ({"initial_state": torch.zeros(1, 2, 9, 4)}, "initial_state has shape"),
        ({"value": torch.zeros(1, 3, 2, 4, dtype=torch.int64)}, "value is torch.int64"),
    ],
)
def test_refuses_what_does_not_fit(change: dict[str, Tensor], error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        rwkv7(**(make(1, 3, 2, 4, 4) | change))
