"""How the mLSTM's normaliser rides along as one more value column: appended before the recurrence, divided by after.

B batch, T positions, H heads, V value dim. Both run over a few positions at a time, so that nothing but their results
is as long as the sequence.
"""

import torch
from torch import Tensor

from lengthen.kernels.recurrence import fresh_like

PIECE = 512
"""Positions handled together."""


@torch.library.custom_op("lengthen::append_one", mutates_args=())
def append_one(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The value [B, T, H, V] in `dtype` with a one after each row: [B, T, H, V + 1]."""
    with_one = fresh_like(value, shape=(*value.shape[:-1], value.shape[-1] + 1), dtype=dtype)
    with_one[..., :-1] = value
    with_one[..., -1] = 1
    return with_one


@torch.library.custom_op("lengthen::append_one_backward", mutates_args=())
def append_one_backward(gradient: Tensor, dtype: torch.dtype) -> Tensor:
    """The gradient of the value, in `dtype`."""
    shape = (*gradient.shape[:-1], gradient.shape[-1] - 1)
    return fresh_like(gradient, shape=shape, dtype=dtype).copy_(gradient[..., :-1])


@torch.library.custom_op("lengthen::divide_by_normaliser", mutates_args=())
def divide_by_normaliser(read: Tensor, maximum: Tensor, epsilon: float, dtype: torch.dtype) -> Tensor:
    """numerator / (max(|normaliser|, exp(-maximum)) + epsilon) [B, T, H, V] in `dtype`.

    read [B, T, H, V + 1] holds the numerator and, last, the normaliser; maximum is [B, T, H].
    """
    output = fresh_like(read, shape=(*read.shape[:-1], read.shape[-1] - 1), dtype=dtype)
    for start in range(0, read.shape[1], PIECE):
        here = slice(start, start + PIECE)
        denominator = torch.maximum(read[:, here, :, -1].abs(), _floor(maximum[:, here])) + epsilon
        output[:, here] = read[:, here, :, :-1] / denominator.unsqueeze(-1)
    return output


@torch.library.custom_op("lengthen::divide_by_normaliser_backward", mutates_args=())
def divide_by_normaliser_backward(
    output_gradient: Tensor, read: Tensor, maximum: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Gradients of read and maximum."""
    dread, dmaximum = fresh_like(read), fresh_like(maximum)
    for start in range(0, read.shape[1], PIECE):
        here = slice(start, start + PIECE)
        normaliser, floor = read[:, here, :, -1], _floor(maximum[:, here])
        denominator = torch.maximum(normaliser.abs(), floor) + epsilon
        dnumerator = output_gradient[:, here].to(read.dtype) / denominator.unsqueeze(-1)
        ddenominator = -(dnumerator * read[:, here, :, :-1]).sum(-1) / denominator
        # Where both are equal each counts half, as in torch.maximum.
        share = (torch.sign(normaliser.abs() - floor) + 1) / 2
        dread[:, here, :, :-1] = dnumerator
        dread[:, here, :, -1] = ddenominator * share * normaliser.sign()
        moves = maximum[:, here] >= _LOWEST
        dmaximum[:, here] = torch.where(moves, -floor * ddenominator * (1 - share), 0)
    return dread, dmaximum


# Below it exp(-maximum) leaves its range, and the output is 0 either way.
_LOWEST = -80


def _floor(maximum: Tensor) -> Tensor:
    return (-maximum.clamp(min=_LOWEST)).exp()


@append_one.register_fake
def _(value, dtype):  # type: ignore[no-untyped-def]
    return value.new_empty((*value.shape[:-1], value.shape[-1] + 1), dtype=dtype)


@append_one_backward.register_fake
def _(gradient, dtype):  # type: ignore[no-untyped-def]
    return gradient.new_empty((*gradient.shape[:-1], gradient.shape[-1] - 1), dtype=dtype)


@divide_by_normaliser.register_fake
def _(read, maximum, epsilon, dtype):  # type: ignore[no-untyped-def]
    return read.new_empty((*read.shape[:-1], read.shape[-1] - 1), dtype=dtype)


@divide_by_normaliser_backward.register_fake
def _(output_gradient, read, maximum, epsilon):  # type: ignore[no-untyped-def]
    return read.new_empty(read.shape), maximum.new_empty(maximum.shape)


def _save_dtype(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.dtype = inputs[0].dtype


def _differentiate_appending(ctx, gradient):  # type: ignore[no-untyped-def]
    return append_one_backward(gradient, ctx.dtype), None


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    read, maximum, ctx.epsilon, _ = inputs
    ctx.save_for_backward(read, maximum)


def _differentiate_dividing(ctx, output_gradient):  # type: ignore[no-untyped-def]
    dread, dmaximum = divide_by_normaliser_backward(output_gradient, *ctx.saved_tensors, ctx.epsilon)
    return dread, dmaximum, None, None


append_one.register_autograd(_differentiate_appending, setup_context=_save_dtype)
divide_by_normaliser.register_autograd(_differentiate_dividing, setup_context=_save)
