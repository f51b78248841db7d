"""The token shift is the short convolution whose taps are one and zero."""

import pytest
import torch
from torch import Tensor

from lengthen.kernels import short_conv_reference, token_shift
from tests.kernels.recurrence_comparison import evaluate


def as_convolution(x: Tensor, **options: Tensor) -> tuple[Tensor, Tensor]:
    return short_conv_reference(x, x.new_tensor([[1.0, 0.0]]).expand(x.shape[2], 2), **options)


def make(positions: int, marked: bool) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(positions)
    inputs = {"x": torch.randn(3, positions, 5, generator=g), "window": torch.randn(3, 5, 1, generator=g)}
    if marked:
        inputs["lengths"] = torch.tensor([0, positions, (positions + 1) // 2])
        inputs["reset"] = torch.rand(3, positions, generator=g) < 0.3
    return inputs


@pytest.mark.parametrize("positions", [1, 2, 9])
@pytest.mark.parametrize("marked", [False, True])
def test_agrees_with_its_definition(positions: int, marked: bool) -> None:
    inputs = make(positions, marked)
    expected = evaluate(as_convolution, inputs)
    for name, value in evaluate(token_shift, inputs).items():
        assert torch.equal(value, expected[name]), name


def test_a_row_without_positions_keeps_its_window_bit_for_bit() -> None:
    inputs = make(9, True)
    inputs["window"][0, 0] = -0.0
    _, final_window = token_shift(**inputs)
    assert torch.equal(final_window[0].view(torch.int32), inputs["window"][0].view(torch.int32))


def test_the_final_window_is_fresh_storage_and_at_least_float32() -> None:
    x = torch.ones(1, 1, 2)
    _, final_window = token_shift(x)
    final_window.zero_()
    assert x.all()
    assert token_shift(x.bfloat16())[1].dtype == torch.float32


def test_compiles_whole() -> None:
    inputs = make(9, True)
    compiled = torch.compile(lambda values: token_shift(**values), fullgraph=True, backend="aot_eager")
    for one, other in zip(compiled(inputs), token_shift(**inputs)):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"x": torch.zeros(3, 0, 5)}, "no positions"),
        ({"window": torch.zeros(3, 5)}, "window has shape"),
        ({"reset": torch.zeros(3, 2)}, "reset is torch.float32"),
    ],
)
def test_refuses_what_does_not_fit(change: dict[str, Tensor], error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        token_shift(**(make(2, False) | change))
