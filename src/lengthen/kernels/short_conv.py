"""Short causal convolution per channel whose window of last inputs is carried from segment to segment.

Dims: B batch, T positions, D channels, W taps; the window holds the W - 1 inputs before position 0, oldest first.

    y[t] = activation(bias + sum_j weight[:, j] x[t - (W - 1) + j])
"""

import torch
import torch.nn.functional as F
from torch import Tensor


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
    """
    _check(x, weight, bias, window, reset, lengths, activation)
    if window is None:
        window = x.new_zeros((x.shape[0], x.shape[2], weight.shape[1] - 1), dtype=_window_dtype(x))
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
    dtype = _window_dtype(x)
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


def _window_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _check(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    window: Tensor | None,
    reset: Tensor | None,
    lengths: Tensor | None,
    activation: str | None,
) -> None:
    if x.dim() != 3 or weight.dim() != 2:
        raise ValueError(
            f"short_conv needs x [B, T, D] and weight [D, W], got {list(x.shape)} and {list(weight.shape)}."
        )
    batch, positions, channels = x.shape
    if positions == 0:
        raise ValueError("short_conv needs at least one position, got a segment of length 0.")
    if activation not in (None, "silu"):
        raise ValueError(f'short_conv knows the activations None and "silu", got {activation!r}.')
    expected = {
        "weight": (weight, (channels, weight.shape[1])),
        "bias": (bias, (channels,)),
        "window": (window, (batch, channels, weight.shape[1] - 1)),
        "reset": (reset, (batch, positions)),
        "lengths": (lengths, (batch,)),
    }
    for name, (tensor, shape) in expected.items():
        if tensor is not None and tensor.shape != shape:
            raise ValueError(f"short_conv needs {name} of shape {list(shape)}, got {list(tensor.shape)}.")


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
    inputs = _inputs(x, window)
    y = _convolve(inputs, weight, bias, reset)
    y = F.silu(y, inplace=True) if silu else y
    if lengths is not None:
        y = y.masked_fill_(_padding(y, lengths), 0)
    kept, forgotten = _final_window_positions(x, window, reset, lengths)
    final_window = inputs.gather(1, kept.expand(-1, -1, x.shape[2])).masked_fill_(forgotten, 0)
    return y.to(x.dtype), final_window.transpose(1, 2).contiguous()


@short_conv_forward.register_fake
def _(x, weight, bias, window, reset, lengths, silu):  # type: ignore[no-untyped-def]
    return x.new_empty(x.shape), window.new_empty(window.shape, dtype=_window_dtype(x))


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
    positions, width = x.shape[1], weight.shape[1]
    inputs = _inputs(x, window)
    dy = output_gradient.to(inputs.dtype)
    if silu:
        y = _convolve(inputs, weight, bias, reset)
        gate = torch.sigmoid(y)
        # d silu(y) = s + y s (1 - s)
        dy = dy * torch.addcmul(gate, y.mul_(gate), 1 - gate)
    if lengths is not None:
        dy = dy.masked_fill(_padding(dy, lengths), 0)
    kept, forgotten = _final_window_positions(x, window, reset, lengths)
    d_window = final_window_gradient.to(inputs.dtype).transpose(1, 2).masked_fill(forgotten, 0)
    d_inputs = torch.zeros_like(inputs).scatter_(1, kept.expand_as(d_window), d_window)
    d_weight = torch.empty_like(weight, dtype=inputs.dtype)
    taps = weight.to(inputs.dtype)
    barriers = _barriers(reset, width)
    for j in range(width):
        reached = dy if barriers is None else dy.masked_fill(barriers[j], 0)
        d_inputs[:, j : j + positions].addcmul_(reached, taps[:, j])
        d_weight[:, j] = (reached * inputs[:, j : j + positions]).sum((0, 1))
    d_bias = x.new_empty(0) if bias is None else dy.sum((0, 1)).to(bias.dtype)
    d_x = d_inputs[:, width - 1 :].to(x.dtype, copy=True)
    return (
        d_x.contiguous(),
        d_weight.to(weight.dtype).contiguous(),
        d_bias,
        d_inputs[:, : width - 1].transpose(1, 2).to(window.dtype).contiguous(),
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


def _inputs(x: Tensor, window: Tensor) -> Tensor:
    """Window and segment as one sequence [B, W - 1 + T, D]."""
    dtype = _window_dtype(x)
    return torch.cat([window.to(dtype).transpose(1, 2), x.to(dtype)], 1)


def _convolve(inputs: Tensor, weight: Tensor, bias: Tensor | None, reset: Tensor | None) -> Tensor:
    width = weight.shape[1]
    positions = inputs.shape[1] - width + 1
    taps = weight.to(inputs.dtype)
    y = inputs[:, width - 1 :] * taps[:, width - 1]
    barriers = _barriers(reset, width)
    for j in range(width - 1):
        seen = inputs[:, j : j + positions]
        seen = seen if barriers is None else seen.masked_fill(barriers[j], 0)
        y.addcmul_(seen, taps[:, j])
    return y if bias is None else y.add_(bias.to(y.dtype))


def _barriers(reset: Tensor | None, width: int) -> list[Tensor] | None:
    """For each tap, bool [B, T, 1]: does a reset stand between the input it meets and the output?"""
    if reset is None:
        return None
    barrier = torch.zeros_like(reset)
    barriers = [barrier.unsqueeze(-1)]
    for back in range(width - 1):  # tap W - 2 - back meets the input back + 1 positions before the output
        barrier = barrier | F.pad(reset, (back, 0))[:, : reset.shape[1]]
        barriers.append(barrier.unsqueeze(-1))
    return barriers[::-1]


def _padding(y: Tensor, lengths: Tensor) -> Tensor:
    return (torch.arange(y.shape[1], device=y.device) >= lengths[:, None]).unsqueeze(-1)


def _final_window_positions(
    x: Tensor, window: Tensor, reset: Tensor | None, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Where in `_inputs` the final window stands, int64 [B, W - 1, 1], and which of it a reset forgets, bool."""
    batch, positions, _ = x.shape
    slots = torch.arange(window.shape[2], device=x.device)
    ends = torch.full((batch,), positions, device=x.device) if lengths is None else lengths.long()
    kept = ends[:, None] + slots
    forgotten = torch.zeros_like(kept, dtype=torch.bool)
    if reset is not None:
        at = torch.arange(positions, device=x.device)
        last = torch.where(reset & (at < ends[:, None]), at, -window.shape[2]).amax(1, keepdim=True)
        forgotten = kept - window.shape[2] < last
    return kept.unsqueeze(-1), forgotten.unsqueeze(-1)
