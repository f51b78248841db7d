"""The short convolution agrees with its definition, carries its window exactly, and leaks across no reset."""

import pytest
import torch
from torch import Tensor

from lengthen.kernels import short_conv, short_conv_reference
from tests.kernels.recurrence_comparison import FORMS, assert_agrees, errors, evaluate, running

FP32 = 2e-6  # a sum of a few taps; the weight's gradient sums all positions


def make(batch: int, positions: int, channels: int, width: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(positions)
    return {
        "x": torch.randn(batch, positions, channels, generator=g),
        "weight": torch.randn(channels, width, generator=g),
        "bias": torch.randn(channels, generator=g),
        "window": torch.randn(batch, channels, width - 1, generator=g),
    }


def marks(batch: int, positions: int) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(1)
    lengths = torch.randint(0, positions + 1, (batch,), generator=g)
    lengths[0] = 0
    return {"reset": torch.rand(batch, positions, generator=g) < 0.2, "lengths": lengths}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("positions", [1, 2, 3, 40, 130])
@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("activation", [None, "silu"])
def test_agrees_with_the_definition(
    form: str, positions: int, width: int, marked: bool, activation: str | None
) -> None:
    inputs = make(3, positions, 37, width) | (marks(3, positions) if marked else {})
    with running(form):
        assert_agrees(short_conv, short_conv_reference, inputs, FP32, activation=activation)


@pytest.mark.parametrize("form", FORMS)
def test_channels_and_positions_beyond_one_tile(form: str) -> None:
    inputs = make(2, 70, 530, 4) | marks(2, 70)
    with running(form):
        assert_agrees(short_conv, short_conv_reference, inputs, FP32, activation="silu")


@pytest.mark.parametrize("form", FORMS[1:])
def test_an_output_that_outgrows_the_caches(form: str) -> None:
    # The definition would take minutes here, so the other form stands in for it.
    inputs = make(1, 17_000, 500, 3) | marks(1, 17_000)
    with running("torch"):
        expected = evaluate(short_conv, inputs, activation="silu")
    with running(form):
        actual = evaluate(short_conv, inputs, activation="silu")
    for name, value in expected.items():
        assert max(errors(actual[name], value.double())) < 1e-5, name


@pytest.mark.parametrize("form", FORMS)
def test_without_options(form: str) -> None:
    inputs = make(2, 9, 5, 4)
    with running(form):
        assert_agrees(short_conv, short_conv_reference, {"x": inputs["x"], "weight": inputs["weight"]}, FP32)


@pytest.mark.parametrize("form", FORMS)
def test_a_single_tap_has_an_empty_window(form: str) -> None:
    inputs = make(2, 9, 5, 1)
    with running(form):
        y, final_window = short_conv(**inputs)
    assert torch.allclose(y, inputs["x"] * inputs["weight"][:, 0] + inputs["bias"])
    assert final_window.shape == (2, 5, 0)


@pytest.mark.parametrize("form", FORMS)
def test_bfloat16_inputs_and_a_float32_window(form: str) -> None:
    inputs = {name: tensor.bfloat16() for name, tensor in make(2, 30, 16, 4).items()}
    inputs["window"] = inputs["window"].float()
    with running(form):
        actual = assert_agrees(short_conv, short_conv_reference, inputs, 1e-2, activation="silu")
    assert actual["output 0"].dtype == torch.bfloat16
    assert actual["output 1"].dtype == torch.float32


@pytest.mark.parametrize("form", FORMS)
def test_strided_inputs(form: str) -> None:
    inputs = make(2, 30, 16, 4)
    inputs["x"] = inputs["x"].mT.contiguous().mT
    inputs["weight"] = inputs["weight"].T.contiguous().T
    inputs["window"] = inputs["window"].mT.contiguous().mT
    with running(form):
        assert_agrees(short_conv, short_conv_reference, inputs, FP32, activation="silu")


@pytest.mark.parametrize("form", FORMS)
def test_a_row_without_positions_keeps_its_window(form: str) -> None:
    inputs = make(2, 5, 3, 4) | {"lengths": torch.tensor([0, 5]), "reset": torch.ones(2, 5, dtype=torch.bool)}
    inputs["window"][0, 0, 0] = -0.0
    with running(form):
        _, final_window = short_conv(**inputs)
    assert torch.equal(final_window[0].view(torch.int32), inputs["window"][0].view(torch.int32))


@pytest.mark.parametrize("form", FORMS)
def test_segments_equal_one_run(form: str) -> None:
    inputs = make(2, 50, 20, 4)
    with running(form):
        y, final_window = short_conv(**inputs, activation="silu")
        pieces, start, window = [], 0, inputs["window"]
        for size in (1, 2, 30, 3, 14):
            piece = inputs | {"x": inputs["x"][:, start : start + size], "window": window}
            part, window = short_conv(**piece, activation="silu")
            pieces.append(part)
            start += size
    if form == "torch":  # its sigmoid rounds the last elements of a tensor in another way
        assert torch.allclose(torch.cat(pieces, 1), y, rtol=1e-6, atol=1e-6)
    else:
        assert torch.equal(torch.cat(pieces, 1), y)
    assert torch.equal(window, final_window)


@pytest.mark.parametrize("form", FORMS)
def test_nothing_of_padding_or_of_before_a_reset_is_read(form: str) -> None:
    inputs = make(1, 12, 3, 4) | {"lengths": torch.tensor([9]), "reset": torch.arange(12)[None] == 5}
    changed = inputs | {"x": inputs["x"].clone(), "window": torch.full_like(inputs["window"], torch.nan)}
    changed["x"][:, 9:] = torch.nan
    changed["x"][:, :5] = torch.inf
    with running(form):
        (y, window), (other_y, other_window) = short_conv(**inputs), short_conv(**changed)
    assert torch.equal(y[:, 5:], other_y[:, 5:])
    assert torch.equal(window, other_window)
    assert not y[:, 9:].any()


def test_the_definition_is_differentiated_rightly() -> None:
    inputs = {name: tensor.double() for name, tensor in make(2, 5, 3, 4).items()}

    def function(*values: Tensor) -> tuple[Tensor, Tensor]:
        return short_conv_reference(**dict(zip(inputs, values)), **marks(2, 5), activation="silu")

    assert torch.autograd.gradcheck(function, [tensor.requires_grad_() for tensor in inputs.values()])


def test_float64_stays_float64() -> None:
    inputs = {name: tensor.double() for name, tensor in make(2, 30, 5, 4).items()} | marks(2, 30)
    actual = assert_agrees(short_conv, short_conv_reference, inputs, 1e-13, activation="silu")
    assert {value.dtype for value in actual.values()} == {torch.float64}


@pytest.mark.parametrize("form", ["torch", "avx512"])
@pytest.mark.parametrize("marked", [False, True])
def test_is_a_well_formed_operator(form: str, marked: bool) -> None:
    inputs = {name: tensor.requires_grad_() for name, tensor in make(2, 8, 5, 4).items()}
    marked_rows = marks(2, 8) if marked else {"reset": None, "lengths": None}
    with running(form):
        torch.library.opcheck(torch.ops.lengthen.short_conv_forward, (*inputs.values(), *marked_rows.values(), True))


def test_compiles_and_exports_whole() -> None:
    inputs = make(2, 8, 5, 4) | marks(2, 8)

    def function(values: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return short_conv(**values, activation="silu")

    expected = function(inputs)
    for one, other in zip(torch.compile(function, fullgraph=True, backend="aot_eager")(inputs), expected):
        assert torch.equal(one, other)

    class Module(torch.nn.Module):
        def forward(self, values: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
            return function(values)

    for one, other in zip(torch.export.export(Module(), (inputs,)).module()(inputs), expected):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"x": torch.zeros(1, 0, 3)}, "no positions"),
        ({"weight": torch.zeros(3)}, "weight has shape"),
        ({"window": torch.zeros(1, 3, 4)}, "window has shape"),
        ({"reset": torch.zeros(1, 5)}, "reset is torch.float32"),
        ({"activation": "gelu"}, "activation is 'gelu'"),
    ],
)
def test_refuses_what_does_not_fit(change: dict[str, object], error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        short_conv(**(make(1, 5, 3, 4) | change))
