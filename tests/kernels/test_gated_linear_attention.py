"""Gated linear attention agrees with its definition in every form, and is a well-behaved operator."""

import pytest
import torch
from torch import Tensor

from lengthen.kernels import gated_linear_attention, gated_linear_attention_reference
from tests.kernels.recurrence_comparison import (
    FORMS,
    Operator,
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

SEQUENCES = {"query", "key", "value", "log_decay", "input_gain"}
FP32 = 5e-6  # rounding of a few thousand fp32 steps, well inside the promised 1e-5
BF16 = 1e-2  # the output is rounded to 8 bits
LONG = [1, 2, 63, 64, 65, 500, 2049]


def make(batch: int, positions: int, heads: int, key_dim: int, value_dim: int, *, bonus: bool = False, seed: int = 0):
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    log_decay = torch.nn.functional.logsigmoid(normal(batch, positions, heads, key_dim)) / 4
    log_decay[torch.rand(log_decay.shape, generator=g) < 0.02] = -torch.inf
    log_decay[torch.rand(log_decay.shape, generator=g) < 0.1] = 0.0
    inputs = {
        "query": normal(batch, positions, heads, key_dim),
        "key": normal(batch, positions, heads, key_dim),
        "value": normal(batch, positions, heads, value_dim),
        "log_decay": log_decay,
        "input_gain": torch.rand(batch, positions, heads, generator=g),
        "initial_state": normal(batch, heads, key_dim, value_dim),
    }
    return inputs | ({"bonus": normal(heads, key_dim)} if bonus else {})


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("positions", [1, 2, 64, 127, 128, 129, 260])
@pytest.mark.parametrize("bonus", [False, True])
def test_agrees_with_the_definition(form: str, positions: int, bonus: bool) -> None:
    inputs = make(2, positions, 2, 6, 21, bonus=bonus)
    with running(form):
        actual = assert_agrees(gated_linear_attention, gated_linear_attention_reference, inputs, FP32)
    assert not actual["gradient of log_decay"][inputs["log_decay"] == -torch.inf].any()


@pytest.mark.acceptance
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("positions", LONG)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("bonus", [False, True])
def test_agrees_with_the_definition_at_length(form: str, positions: int, batch: int, bonus: bool) -> None:
    inputs = make(batch, positions, 2, 32, 80, bonus=bonus)
    with running(form):
        assert_agrees(gated_linear_attention, gated_linear_attention_reference, inputs, FP32)


@pytest.mark.parametrize("form", FORMS)
def test_a_key_tied_to_the_decay(form: str) -> None:
    # HGRN-2 writes what it forgets: its key is 1 - decay, and both ways lead back to one gate.
    inputs = make(2, 150, 2, 12, 18)
    log_decay, query, value = inputs["log_decay"], inputs["query"], inputs["value"]

    def tied(operator: Operator) -> Operator:
        def call(log_decay: Tensor, query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
            return operator(query, -torch.expm1(log_decay), value, log_decay)

        return call

    with running(form):
        assert_agrees(
            tied(gated_linear_attention),
            tied(gated_linear_attention_reference),
            {"log_decay": log_decay, "query": query, "value": value},
            FP32,
        )


@pytest.mark.parametrize("form", FORMS)
def test_without_options(form: str) -> None:
    inputs = make(1, 70, 3, 16, 64)
    del inputs["input_gain"], inputs["initial_state"]
    with running(form):
        assert_agrees(gated_linear_attention, gated_linear_attention_reference, inputs, FP32)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bonus", [False, True])
def test_bfloat16_sequences(form: str, bonus: bool) -> None:
    inputs = make(2, 100, 2, 16, 64, bonus=bonus)
    for name in SEQUENCES:
        inputs[name] = inputs[name].bfloat16()
    with running(form):
        actual = assert_agrees(gated_linear_attention, gated_linear_attention_reference, inputs, BF16)
    assert actual["output 0"].dtype == torch.bfloat16
    assert actual["output 1"].dtype == torch.float32


@pytest.mark.parametrize("form", FORMS)
def test_strided_inputs(form: str) -> None:
    inputs = make(2, 90, 3, 8, 20, bonus=True)
    for name in SEQUENCES:
        inputs[name] = inputs[name].transpose(1, 2).contiguous().transpose(1, 2)
    inputs["query"] = inputs["query"].mT.contiguous().mT
    inputs["initial_state"] = inputs["initial_state"].mT.contiguous().mT
    inputs["bonus"] = inputs["bonus"].T.contiguous().T
    with running(form):
        assert_agrees(gated_linear_attention, gated_linear_attention_reference, inputs, FP32)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("log_decay", [0.0, -1e-8, -3e-6, -2e-3, -0.34, -15.0, -80.0, -torch.inf])
def test_constant_decays_from_none_to_all(form: str, log_decay: float) -> None:
    # A constant decay repeats its rounding at every position: this is where 1 - 1e-6 in fp32 would show.
    inputs = make(1, 500, 1, 8, 16)
    inputs["log_decay"] = torch.full_like(inputs["log_decay"], log_decay)
    inputs["initial_state"] *= 1e4
    with running(form):
        assert_agrees(gated_linear_attention, gated_linear_attention_reference, inputs, 1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bonus", [False, True])
def test_segments_equal_one_run(form: str, bonus: bool) -> None:
    inputs = make(2, 201, 2, 16, 20, bonus=bonus)
    with running(form):
        whole = gated_linear_attention(**inputs)
        pieces = in_segments(gated_linear_attention, inputs, "initial_state", [1, 63, 64, 70, 3], SEQUENCES)
    for one, other in zip(whole, pieces):
        assert max(errors(one, other.double())) < 2e-6


@pytest.mark.parametrize("form", FORMS)
def test_nothing_crosses_a_reset(form: str) -> None:
    inputs = make(1, 100, 2, 8, 20)
    inputs["log_decay"][:, 70] = -torch.inf
    with running(form):
        gradients = evaluate(lambda **x: [y[:, 70:] for y in gated_linear_attention(**x)[:1]], inputs)
        torch.testing.assert_close(
            gated_linear_attention(**inputs)[1],
            gated_linear_attention(**inputs | {"initial_state": 1e6 * inputs["initial_state"]})[1],
            rtol=0,
            atol=0,
        )
    for name in ["key", "value", "input_gain"]:
        assert gradients[f"gradient of {name}"][:, 70:].any()
        assert not gradients[f"gradient of {name}"][:, :70].any()
    assert not gradients["gradient of initial_state"].any()


def test_the_definition_is_differentiated_rightly() -> None:
    inputs = make(1, 4, 1, 2, 3, bonus=True)
    inputs["log_decay"] = inputs["log_decay"].clamp(min=-3)
    assert_definition_differentiates(gated_linear_attention_reference, inputs)


def test_float64_stays_float64() -> None:
    inputs = {name: tensor.double() for name, tensor in make(2, 140, 2, 6, 4, bonus=True).items()}
    actual = assert_agrees(gated_linear_attention, gated_linear_attention_reference, inputs, 1e-12)
    assert {value.dtype for value in actual.values()} == {torch.float64}


@pytest.mark.parametrize("form", ["torch", "portable"])
def test_is_a_well_formed_operator(form: str) -> None:
    i = {name: t.clone().requires_grad_() for name, t in make(2, 140, 2, 6, 4).items()}
    arguments = (i["query"], i["key"], i["value"], i["log_decay"], i["input_gain"], None, i["initial_state"])
    with running(form):
        torch.library.opcheck(torch.ops.lengthen.gated_linear_attention, (*arguments, torch.float32, True))


def test_compiles_and_exports_whole() -> None:
    assert_compiles_and_exports(gated_linear_attention, make(1, 66, 2, 4, 4, bonus=True))


@pytest.mark.parametrize("form", FORMS)
def test_every_element_is_written(form: str) -> None:
    with running(form):
        assert_writes_everything(gated_linear_attention, make(2, 131, 3, 5, 21, bonus=True))


@pytest.mark.acceptance
@pytest.mark.parametrize("form", ["torch", "avx512"])
def test_agrees_over_131072_positions(form: str) -> None:
    inputs = make(1, 131072, 1, 3, 4)
    with running(form):
        assert_agrees_over_131072(gated_linear_attention, gated_linear_attention_reference, inputs)


@pytest.mark.parametrize("form", FORMS)
def test_the_final_state_is_fresh_storage(form: str) -> None:
    inputs = make(1, 1, 1, 4, 4)
    kept = inputs["initial_state"].clone()
    with running(form):
        gated_linear_attention(**inputs)[1].zero_()
    assert torch.equal(inputs["initial_state"], kept)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"query": torch.zeros(1, 0, 2, 4)}, "no positions"),
        ({"query": torch.zeros(1, 3, 4)}, "needs the axes"),
        ({"key": torch.zeros(1, 3, 2, 5)}, "key has shape"),
        ({"log_decay": torch.zeros(1, 3, 2)}, "log_decay has shape"),
        ({"bonus": torch.zeros(4)}, "bonus has shape"),
        ({"initial_state": torch.zeros(1, 2, 9, 4)}, "initial_state has shape"),
        ({"value": torch.zeros(1, 3, 2, 4, dtype=torch.int64)}, "value is torch.int64"),
    ],
)
def test_refuses_what_does_not_fit(change: dict[str, Tensor], error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        gated_linear_attention(**(make(1, 3, 2, 4, 4) | change))
