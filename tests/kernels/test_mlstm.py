"""The mLSTM agrees with its definition in every form, and is a well-behaved operator."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lengthen.kernels import MlstmState, mlstm, mlstm_reference
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

SEQUENCES = {"query", "key", "value", "input_gate", "log_forget", "input_gain"}
FP32 = 1e-5  # what is promised: the division by the normaliser magnifies the rounding of a few thousand steps
BF16 = 1e-2  # the output is rounded to 8 bits
LONG = [1, 2, 63, 64, 65, 500, 2049]


def make(
    batch: int, positions: int, heads: int, key_dim: int, value_dim: int, *, seed: int = 0, resets: bool = True
) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    log_forget = torch.nn.functional.logsigmoid(normal(batch, positions, heads) + 3)
    if resets:
        log_forget[torch.rand(log_forget.shape, generator=g) < 0.02] = -torch.inf
    return {
        # Positive on average: a normaliser that cancels to almost nothing would magnify any rounding.
        "query": (1 + normal(batch, positions, heads, key_dim)) * key_dim**-0.5,
        "key": 1 + normal(batch, positions, heads, key_dim),
        "value": normal(batch, positions, heads, value_dim),
        "input_gate": 2 * normal(batch, positions, heads),
        "log_forget": log_forget,
        "input_gain": 0.5 + torch.rand(batch, positions, heads, generator=g),
        "matrix": normal(batch, heads, key_dim, value_dim),
        "normaliser": 1 + normal(batch, heads, key_dim),
        "maximum": normal(batch, heads),
    }


def flat(operator: Callable[..., tuple[Tensor, MlstmState]]) -> Callable[..., tuple[Tensor, ...]]:
    """The operator with its state's tensors as arguments and results of their own."""

    def call(**inputs: Tensor) -> tuple[Tensor, ...]:
        state = tuple(inputs.pop(name) for name in ("matrix", "normaliser", "maximum"))
        output, final_state = operator(**inputs, initial_state=state)
        return output, *final_state

    return call


RUN, DEFINITION = flat(mlstm), flat(mlstm_reference)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("positions", [1, 2, 64, 127, 128, 129, 260])
def test_agrees_with_the_definition(form: str, positions: int) -> None:
    inputs = make(2, positions, 2, 6, 21)
    with running(form):
        actual = assert_agrees(RUN, DEFINITION, inputs, FP32)
    assert not actual["gradient of log_forget"][inputs["log_forget"] == -torch.inf].any()


@pytest.mark.acceptance
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("positions", LONG)
@pytest.mark.parametrize("batch", [1, 3])
def test_agrees_with_the_definition_at_length(form: str, positions: int, batch: int) -> None:
    inputs = make(batch, positions, 2, 32, 80)
    with running(form):
        assert_agrees(RUN, DEFINITION, inputs, FP32)


@pytest.mark.parametrize("form", FORMS)
def test_bfloat16_sequences(form: str) -> None:
    inputs = make(2, 100, 2, 16, 64)
    for name in SEQUENCES:
        inputs[name] = inputs[name].bfloat16()
    with running(form):
        actual = assert_agrees(RUN, DEFINITION, inputs, BF16)
    assert actual["output 0"].dtype == torch.bfloat16
    assert actual["output 1"].dtype == torch.float32


@pytest.mark.parametrize("form", FORMS)
def test_strided_inputs(form: str) -> None:
    inputs = make(2, 90, 3, 8, 20)
    for name in SEQUENCES:
        inputs[name] = inputs[name].transpose(1, 2).contiguous().transpose(1, 2)
    inputs["query"] = inputs["query"].mT.contiguous().mT
    inputs["matrix"] = inputs["matrix"].mT.contiguous().mT
    with running(form):
        assert_agrees(RUN, DEFINITION, inputs, FP32)


@pytest.mark.parametrize("form", FORMS)
def test_without_a_state_or_a_gain(form: str) -> None:
    inputs = make(1, 70, 3, 16, 20)
    for name in ("input_gain", "matrix", "normaliser", "maximum"):
        del inputs[name]

    def run(**values: Tensor) -> tuple[Tensor, ...]:
        output, state = mlstm(**values)
        return output, *state

    def definition(**values: Tensor) -> tuple[Tensor, ...]:
        output, state = mlstm_reference(**values)
        return output, *state

    with running(form):
        assert_agrees(run, definition, inputs, FP32)


@pytest.mark.parametrize("form", FORMS)
def test_a_maximum_that_sinks_for_long_keeps_its_digits(form: str) -> None:
    # Every position lowers the maximum by a little, so its rounding could add up in the state.
    inputs = make(1, 500, 1, 32, 4)
    inputs["log_forget"] = torch.full_like(inputs["log_forget"], -0.0246)
    inputs["input_gate"] = inputs["input_gate"] - 30
    inputs["maximum"] = inputs["maximum"] + 12
    with running(form):
        assert_agrees(RUN, DEFINITION, inputs, 1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_segments_equal_one_run(form: str) -> None:
    inputs = make(2, 201, 2, 16, 20)
    state = tuple(inputs.pop(name) for name in ("matrix", "normaliser", "maximum"))
    with running(form):
        whole = mlstm(**inputs, initial_state=state)
        pieces = in_segments(mlstm, inputs | {"initial_state": state}, "initial_state", [1, 63, 64, 70, 3], SEQUENCES)
    for one, other in zip([whole[0], *whole[1]], [pieces[0], *pieces[1]]):
        assert max(errors(one, other.double())) < 5e-6


@pytest.mark.parametrize("form", FORMS)
def test_nothing_crosses_a_reset(form: str) -> None:
    inputs = make(1, 100, 2, 8, 20)
    inputs["log_forget"][:, 70] = -torch.inf
    with running(form):
        gradients = evaluate(lambda **x: [y[:, 70:] for y in RUN(**x)[:1]], inputs)
    for name in ["key", "value", "input_gain"]:
        assert gradients[f"gradient of {name}"][:, 70:].any()
        assert not gradients[f"gradient of {name}"][:, :70].any()
    assert not gradients["gradient of matrix"].any()


@pytest.mark.parametrize("form", FORMS)
def test_a_closed_gate_is_the_identity(form: str) -> None:
    inputs = make(1, 9, 2, 8, 8, resets=False)
    inputs["input_gate"] = torch.full_like(inputs["input_gate"], -torch.inf)
    inputs["log_forget"] = torch.zeros_like(inputs["log_forget"])
    with running(form):
        _, *state = RUN(**inputs)
    for name, tensor in zip(("matrix", "normaliser", "maximum"), state):
        assert torch.equal(tensor, inputs[name]), name


def test_the_output_does_not_depend_on_the_maximum() -> None:
    inputs = {name: tensor.double() for name, tensor in make(2, 40, 2, 4, 4).items()}
    shifted = inputs | {
        "matrix": inputs["matrix"] * 2.0**-10,
        "normaliser": inputs["normaliser"] * 2.0**-10,
        "maximum": inputs["maximum"] + 10 * torch.tensor(2.0).double().log(),
    }

    def without_epsilon(**values: Tensor) -> Tensor:
        state = tuple(values.pop(name) for name in ("matrix", "normaliser", "maximum"))
        return mlstm(**values, initial_state=state, epsilon=0.0)[0]

    torch.testing.assert_close(without_epsilon(**shifted), without_epsilon(**inputs), rtol=1e-10, atol=1e-12)


def test_the_definition_is_differentiated_rightly() -> None:
    assert_definition_differentiates(DEFINITION, make(1, 4, 1, 2, 3, resets=False))


def test_float64_stays_float64() -> None:
    inputs = {name: tensor.double() for name, tensor in make(2, 70, 2, 6, 4).items()}
    actual = assert_agrees(RUN, DEFINITION, inputs, 1e-12)
    assert {value.dtype for value in actual.values()} == {torch.float64}


@pytest.mark.parametrize("form", ["torch", "portable"])
def test_the_gates_are_a_well_formed_operator(form: str) -> None:
    i = make(2, 20, 2, 2, 2, resets=False)
    arguments = [i[name].requires_grad_() for name in ("input_gate", "log_forget", "maximum")]
    with running(form):
        torch.library.opcheck(torch.ops.lengthen.mlstm_gates, arguments)


def test_the_normaliser_is_a_well_formed_operator() -> None:
    g = torch.Generator().manual_seed(0)
    value = torch.randn(2, 9, 2, 3, generator=g).requires_grad_()
    read, maximum = torch.randn(2, 9, 2, 4, generator=g).requires_grad_(), torch.randn(2, 9, 2).requires_grad_()
    torch.library.opcheck(torch.ops.lengthen.append_one, (value, torch.float32))
    torch.library.opcheck(torch.ops.lengthen.divide_by_normaliser, (read, maximum, 1e-6, torch.float32))


@pytest.mark.parametrize("lowest", [-1.0, -100.0])
def test_dividing_is_differentiated_rightly_on_either_side_of_the_floor(lowest: float) -> None:
    # exp(-maximum) decides where the maximum is low, the normaliser's size where it is high.
    g = torch.Generator().manual_seed(0)
    read = torch.randn(1, 600, 1, 3, generator=g, dtype=torch.float64)
    maximum = torch.linspace(lowest, 3, 600, dtype=torch.float64).view(1, 600, 1)
    inputs = {"read": read, "maximum": maximum}

    def plainly(read: Tensor, maximum: Tensor) -> tuple[Tensor]:
        floor = (-maximum.clamp(min=-80)).exp()
        return (read[..., :2] / (torch.maximum(read[..., 2].abs(), floor) + 1e-6).unsqueeze(-1),)

    def in_pieces(read: Tensor, maximum: Tensor) -> tuple[Tensor]:
        return (torch.ops.lengthen.divide_by_normaliser(read, maximum, 1e-6, read.dtype),)

    assert_agrees(in_pieces, plainly, inputs, 1e-12)


def test_compiles_and_exports_whole() -> None:
    assert_compiles_and_exports(RUN, make(1, 66, 2, 4, 4))


@pytest.mark.parametrize("form", FORMS)
def test_every_element_is_written(form: str) -> None:
    with running(form):
        assert_writes_everything(RUN, make(2, 131, 3, 5, 21))


@pytest.mark.acceptance
@pytest.mark.parametrize("form", ["torch", "avx512"])
def test_agrees_over_131072_positions(form: str) -> None:
    inputs = make(1, 131072, 1, 3, 4)
    with running(form):
        assert_agrees_over_131072(RUN, DEFINITION, inputs)


@pytest.mark.parametrize("form", FORMS)
def test_the_final_state_is_fresh_storage(form: str) -> None:
    inputs = make(1, 1, 1, 4, 4)
    kept = {name: tensor.clone() for name, tensor in inputs.items()}
    with running(form):
        _, *state = RUN(**inputs)
    for tensor in state:
        tensor.zero_()
    for name, tensor in kept.items():
        assert torch.equal(inputs[name], tensor), name


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"key": torch.zeros(1, 0, 2, 4)}, "no positions"),
        ({"key": torch.zeros(1, 3, 4)}, "needs the axes"),
        ({"query": torch.zeros(1, 3, 2, 5)}, "query has shape"),
        ({"log_forget": torch.zeros(1, 3, 2, 4)}, "log_forget has shape"),
        ({"normaliser": torch.zeros(1, 2, 9)}, "initial_state's n has shape"),
        ({"value": torch.zeros(1, 3, 2, 4, dtype=torch.int64)}, "value is torch.int64"),
    ],
)
def test_refuses_what_does_not_fit(change: dict[str, Tensor], error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        RUN(**(make(1, 3, 2, 4, 4) | change))
