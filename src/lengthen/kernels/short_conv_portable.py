"""The portable form of `short_conv` in PyTorch, forward and backward.

Dims: B batch, T positions, D channels, W taps; the window holds the W - 1 inputs before position 0, oldest first.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from lengthen.kernels.recurrence import compute_dtype


def short_conv_portable(
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


def short_conv_portable_backward(
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
    d_weight = weight.new_empty(weight.shape, dtype=inputs.dtype)
    taps = weight.to(inputs.dtype)
    barriers = _barriers(reset, width)
    for j in range(width):
        seen, reached = inputs[:, j : j + positions], dy
        if barriers is not None:
            reached = dy.masked_fill(barriers[j], 0)
        d_inputs[:, j : j + positions].addcmul_(reached, taps[:, j])
        d_weight[:, j] = (reached * seen).sum((0, 1))
    return (
        d_inputs[:, width - 1 :].to(x.dtype, copy=True, memory_format=torch.contiguous_format),
        d_weight.to(weight.dtype),
        x.new_empty(0) if bias is None else dy.sum((0, 1)).to(bias.dtype),
        d_inputs[:, : width - 1].transpose(1, 2).to(window.dtype).contiguous(),
    )


def _inputs(x: Tensor, window: Tensor) -> Tensor:
    """Window and segment as one sequence [B, W - 1 + T, D]."""
    dtype = compute_dtype(x)
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
