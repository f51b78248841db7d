"""Short causal convolution per channel whose window of last inputs is carried from segment to segment.

Dims: B batch, T positions, D channels, W taps; the window holds the W - 1 inputs before position 0, oldest first.

    y[t] = activation(bias + sum_j weight[:, j] x[t - (W - 1) + j])
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthen.kernels.dispatch import Form, choose_form, compiled
from lengthen.kernels.recurrence import check_floating, check_sequence, check_shape, compute_dtype, fresh_like
from lengthen.kernels.short_conv_portable import short_conv_portable, short_conv_portable_backward


def short_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    window: Tensor | None = None,
    reset: Tensor | None = None,
    lengths: Tensor | None = None,
    activation: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Convolve a segment causally, from a window to a window.

    Args:
        x: [B, T, D].
        weight: [D, W]; the last tap meets the current input.
        bias: [D].
        window: [B, D, W - 1], the inputs before position 0, oldest first; zero when left out.
        reset: bool [B, T]; inputs before a marked position reach neither it nor later ones, nor the final window.
        lengths: int64 [B]; the first lengths[b] positions of row b are real, the rest is padding on the right, whose
            outputs are 0; all T when left out.
        activation: None or "silu".

    Returns:
        y [B, T, D] in x's dtype and final_window [B, D, W - 1], the last W - 1 real inputs, at least fp32 and in
        storage of its own. A row of length 0 keeps its window bit for bit. Gradients reach x, weight, bias and
        window, from both.

    Raises:
        ValueError: a shape does not fit, T is 0, or the activation is unknown.
        TypeError: a dtype does not fit.
    """
    _check(x, weight, bias, window, reset, lengths, activation)
    if window is None:
        window = x.new_zeros((x.shape[0], x.shape[2], weight.shape[1] - 1), dtype=compute_dtype(x))
    return short_conv_forward(x, weight, bias, window, reset, lengths, activation == "silu")


def short_conv_reference(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    window: Tensor | None = None,
    reset: Tensor | None = None,
    lengths: Tensor | None = None,
    activation: str | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition of `short_conv`, position by position; same arguments and results."""
    _check(x, weight, bias, window, reset, lengths, activation)
    dtype = compute_dtype(x)
    batch, positions, channels = x.shape
    taps = weight.to(dtype)
    kept = x.new_zeros((batch, channels, weight.shape[1] - 1), dtype=dtype) if window is None else window.to(dtype)
    outputs = []
    for t in range(positions):
        real = torch.ones(batch, dtype=torch.bool, device=x.device) if lengths is None else t < lengths
        real = real[:, None]
        if reset is not None:
            kept = torch.where((reset[:, t, None] & real).unsqueeze(-1), 0, kept)
        inputs = torch.cat([kept, x[:, t].to(dtype).unsqueeze(-1)], -1)
        y = (inputs * taps).sum(-1)
        y = y if bias is None else y + bias.to(dtype)
        y = F.silu(y) if activation == "silu" else y
        outputs.append(torch.where(real, y, 0))
        kept = torch.where(real.unsqueeze(-1), inputs[..., 1:], kept)
    return torch.stack(outputs, 1).to(x.dtype), kept.clone()


def _check(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    window: Tensor | None,
    reset: Tensor | None,
    lengths: Tensor | None,
    activation: str | None,
) -> None:
    check_sequence("x", x, "B T D")
    if weight.dim() != 2 or weight.shape[1] == 0:
        raise ValueError(f"weight has shape {list(weight.shape)}, but needs the axes [D, W] with at least one tap")
    if activation not in (None, "silu"):
        raise ValueError(f'activation is {activation!r}, but only None and "silu" are known')
    batch, positions, channels = x.shape
    check_shape("weight", weight, (channels, weight.shape[1]))
    check_shape("bias", bias, (channels,))
    check_shape("window", window, (batch, channels, weight.shape[1] - 1))
    check_shape("reset", reset, (batch, positions))
    check_shape("lengths", lengths, (batch,))
    check_floating(x=x, weight=weight, bias=bias, window=window)
    if reset is not None and reset.dtype != torch.bool:
        raise TypeError(f"reset is {reset.dtype}, but needs torch.bool")


@torch.library.custom_op("lengthen::short_conv_forward", mutates_args=())
def short_conv_forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    window: Tensor,
    reset: Tensor | None,
    lengths: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor]:
    """Output and final window."""
    form = choose_form(x, weight, bias, window, compiled_function="short_conv_forward")
    if form is not Form.COMPILED:
        return short_conv_portable(x, weight, bias, window, reset, lengths, silu)
    assert compiled is not None
    y, final_window = fresh_like(x), window.new_empty(window.shape, dtype=torch.float32)
    compiled.short_conv_forward(
        x,
        weight,
        bias,
        window,
        None if reset is None else reset.view(torch.uint8),
        None if lengths is None else lengths.long().contiguous(),
        silu,
        y,
        final_window,
        torch.get_num_threads(),
    )
    return y, final_window


@short_conv_forward.register_fake
def _(x, weight, bias, window, reset, lengths, silu):  # type: ignore[no-untyped-def]
    return x.new_empty(x.shape), window.new_empty(window.shape, dtype=compute_dtype(x))


@torch.library.custom_op("lengthen::short_conv_backward", mutates_args=())
def short_conv_backward(
    output_gradient: Tensor,
    final_window_gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    window: Tensor,
    reset: Tensor | None,
    lengths: Tensor | None,
    silu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, weight, bias (empty when left out) and window."""
    gradients = (output_gradient, final_window_gradient)
    form = choose_form(*gradients, x, weight, bias, window, compiled_function="short_conv_backward")
    if form is not Form.COMPILED:
        return short_conv_portable_backward(*gradients, x, weight, bias, window, reset, lengths, silu)
    assert compiled is not None
    batch, _, channels = x.shape
    d_x = fresh_like(x)
    d_weight = x.new_empty((batch, *weight.shape), dtype=torch.float32)
    d_bias = x.new_empty((batch, channels), dtype=torch.float32)
    d_window = window.new_empty(window.shape, dtype=torch.float32)
    compiled.short_conv_backward(
        *gradients,
        x,
        weight,
        bias,
        window,
        None if reset is None else reset.view(torch.uint8),
        None if lengths is None else lengths.long().contiguous(),
        silu,
        d_x,
        d_weight,
        d_bias,
        d_window,
        torch.get_num_threads(),
    )
    return (
        d_x,
        d_weight.sum(0).to(weight.dtype),
        x.new_empty(0) if bias is None else d_bias.sum(0).to(bias.dtype),
        d_window.to(window.dtype),
    )


@short_conv_backward.register_fake
def _(  # type: ignore[no-untyped-def]
    output_gradient, final_window_gradient, x, weight, bias, window, reset, lengths, silu
):
    d_bias = x.new_empty(0) if bias is None else bias.new_empty(bias.shape)
    return x.new_empty(x.shape), weight.new_empty(weight.shape), d_bias, window.new_empty(window.shape)


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    *tensors, ctx.silu = inputs
    ctx.save_for_backward(*tensors)


def _differentiate(ctx, output_gradient, final_window_gradient):  # type: ignore[no-untyped-def]
    x, weight, bias, window, reset, lengths = ctx.saved_tensors
    d_x, d_weight, d_bias, d_window = short_conv_backward(
        output_gradient, final_window_gradient, x, weight, bias, window, reset, lengths, ctx.silu
    )
    return d_x, d_weight, None if bias is None else d_bias, d_window, None, None, None


short_conv_forward.register_autograd(_differentiate, setup_context=_save)
