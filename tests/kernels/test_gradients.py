"""How an operator is tied to the operator of its gradients, on two small ones: sums so far, times gains that may be left out."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lengthen.kernels.gradients import tie_chunked, tie_segmented

WANTED: list[bool] = []
"""What the segmented backward was told of the initial state, call by call."""


def sums(x: Tensor, gain: Tensor | None, initial_state: Tensor | None) -> tuple[Tensor, Tensor]:
    """x [B, T], gain [B, T], state [B]."""
    written = x.clone() if gain is None else gain * x
    output = written.cumsum(1) + (0 if initial_state is None else initial_state[:, None])
    return output, output[:, -1].clone()


def backwards(output_gradient: Tensor, final_gradient: Tensor, x: Tensor, gain: Tensor | None) -> list[Tensor]:
    """Gradients of x, gain (empty where left out) and the initial state."""
    reaching = output_gradient.flip(1).cumsum(1).flip(1) + final_gradient[:, None]
    dx = reaching.clone() if gain is None else reaching * gain
    return [dx, x.new_empty(0) if gain is None else reaching * x, reaching[:, 0].clone()]


@torch.library.custom_op("lengthen_tests::chunked", mutates_args=())
def chunked(
    x: Tensor, gain: Tensor | None, initial_state: Tensor | None, compute: torch.dtype, save: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return *sums(x, gain, initial_state), x.new_zeros(x.shape[0], 1, dtype=compute)


@chunked.register_fake
def _(x, gain, initial_state, compute, save):  # type: ignore[no-untyped-def]
    return x.new_empty(x.shape), x.new_empty(x.shape[:1]), x.new_empty(x.shape[0], 1, dtype=compute)


@torch.library.custom_op("lengthen_tests::chunked_backward", mutates_args=())
def chunked_backward(
    output_gradient: Tensor, final_gradient: Tensor, checkpoints: Tensor, x: Tensor, gain: Tensor | None
) -> list[Tensor]:
    assert checkpoints.shape == (x.shape[0], 1)
    return backwards(output_gradient, final_gradient, x, gain)


@torch.library.custom_op("lengthen_tests::segmented", mutates_args=())
def segmented(x: Tensor, gain: Tensor | None, initial_state: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    return *sums(x, gain, initial_state), x.new_zeros(x.shape[0], 0)


@segmented.register_fake
def _(x, gain, initial_state):  # type: ignore[no-untyped-def]
    return x.new_empty(x.shape), x.new_empty(x.shape[:1]), x.new_empty(x.shape[0], 0)


@torch.library.custom_op("lengthen_tests::segmented_backward", mutates_args=())
def segmented_backward(
    output_gradient: Tensor,
    final_gradient: Tensor,
    x: Tensor,
    gain: Tensor | None,
    initial_state: Tensor | None,
    boundary_states: Tensor,
    initial_state_wanted: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    assert boundary_states.shape == (x.shape[0], 0)
    WANTED.append(initial_state_wanted)
    dx, dgain, dinitial = backwards(output_gradient, final_gradient, x, gain)
    return dx, dgain, dinitial if initial_state_wanted else x.new_empty(0)


tie_chunked(chunked, chunked_backward)
tie_segmented(segmented, segmented_backward)


def chunked_sums(x: Tensor, gain: Tensor | None, state: Tensor | None) -> tuple[Tensor, Tensor]:
    return chunked(x, gain, state, torch.float64, True)[:2]


def segmented_sums(x: Tensor, gain: Tensor | None, state: Tensor | None) -> tuple[Tensor, Tensor]:
    return segmented(x, gain, state)[:2]


def inputs() -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=g, dtype=torch.float64) for shape in ((3, 5), (3, 5), (3,))]


both = pytest.mark.parametrize("operator", [chunked_sums, segmented_sums])


@both
@pytest.mark.parametrize("left_out", [(), (1,), (2,), (1, 2)])
def test_what_is_left_out_gets_no_gradient_and_the_rest_its_own(
    operator: Callable[..., Any], left_out: tuple[int, ...]
) -> None:
    given = [i for i in range(3) if i not in left_out]
    leaves = [tensor.requires_grad_() for tensor in inputs()]

    def function(*tensors: Tensor) -> Any:
        return operator(*[tensors[given.index(i)] if i in given else None for i in range(3)])

    assert torch.autograd.gradcheck(function, [leaves[i] for i in given])


@both
@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_a_single_input_may_want_its_gradient(operator: Callable[..., Any], wanted: int) -> None:
    tensors, everything = inputs(), [tensor.requires_grad_() for tensor in inputs()]
    tensors[wanted].requires_grad_()
    weight = torch.arange(15.0).view(3, 5).double()
    (found,) = torch.autograd.grad((weight * operator(*tensors)[0]).sum(), [tensors[wanted]])
    expected = torch.autograd.grad((weight * sums(*everything)[0]).sum(), [everything[wanted]])[0]
    torch.testing.assert_close(found, expected)


@both
def test_the_final_state_alone_may_be_differentiated(operator: Callable[..., Any]) -> None:
    x, gain, state = (tensor.requires_grad_() for tensor in inputs())
    gradients = torch.autograd.grad(operator(x, gain, state)[1].sum(), (x, gain, state))
    for found, expected in zip(gradients, (gain, x, torch.ones(3))):
        torch.testing.assert_close(found, expected.double())


def test_a_segmented_backward_is_told_whether_the_initial_state_wants_one() -> None:
    x, _, state = inputs()
    x.requires_grad_()
    for given, wanted in ((state, False), (state.clone().requires_grad_(), True), (None, False)):
        WANTED.clear()
        segmented_sums(x, None, given)[0].sum().backward()
        assert [wanted] == WANTED


@pytest.mark.parametrize("gain", [True, False])
@pytest.mark.parametrize("wanted", [True, False])
def test_traced_gradients_have_the_shapes_of_real_ones(gain: bool, wanted: bool) -> None:
    x, factor, state = inputs()
    given = x, factor if gain else None
    torch.library.opcheck(chunked_backward, (x, state, x.new_zeros(3, 1), *given))
    torch.library.opcheck(segmented_backward, (x, state, *given, state, x.new_zeros(3, 0), wanted))


@both
def test_a_traced_step_compiles_whole_and_is_the_same(operator: Callable[..., Any]) -> None:
    compiled = torch.compile(operator, fullgraph=True, backend="aot_eager")
    one, other = ([tensor.requires_grad_() for tensor in inputs()] for _ in range(2))
    for call, leaves in ((operator, one), (compiled, other)):
        output, final_state = call(*leaves)
        (output.sin().sum() + final_state.sum()).backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(one, other))
