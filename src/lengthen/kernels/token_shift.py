"""Token shift: every position sees the input before it; the last input is carried from segment to segment.

Dims: B batch, T positions, D channels.
"""

import torch
from torch import Tensor

from lengthen.kernels.recurrence import check_floating, check_sequence, check_shape, compute_dtype


def token_shift(
    x: Tensor, *, window: Tensor | None = None, reset: Tensor | None = None, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Shift a segment by one position, from a window to a window.

    Args:
        x: [B, T, D].
        window: [B, D, 1], the input before position 0; zero when left out.
        reset: bool [B, T]; a marked position sees zero.
        lengths: int64 [B]; the first lengths[b] positions of row b are real, the rest is padding on the right; all T
            when left out.

    Returns:
        The input before each position [B, T, D] in x's dtype, 0 at padding, and the last real input
        final_window [B, D, 1], at least fp32 and in storage of its own. A row of length 0 keeps its window bit for
        bit. Gradients reach x and window, from both.

    Raises:
        ValueError: a shape does not fit, or T is 0.
        TypeError: a dtype does not fit.

    Source: RWKV (arXiv 2305.13048), section 3.1.
    """
    check_sequence("x", x, "B T D")
    batch, positions, channels = x.shape
    check_shape("window", window, (batch, channels, 1))
    check_shape("reset", reset, (batch, positions))
    check_shape("lengths", lengths, (batch,))
    check_floating(x=x, window=window)
    if reset is not None and reset.dtype != torch.bool:
        raise TypeError(f"reset is {reset.dtype}, but needs torch.bool")
    dtype = compute_dtype(x)
    first = x.new_zeros((batch, 1, channels), dtype=dtype) if window is None else window.to(dtype).transpose(1, 2)
    shifted = torch.cat([first.to(x.dtype), x[:, :-1]], 1)
    if reset is not None:
        shifted = shifted.masked_fill(reset.unsqueeze(-1), 0)
    if lengths is None:
        return shifted, x[:, -1:].to(dtype).transpose(1, 2).clone(memory_format=torch.contiguous_format)
    padding = torch.arange(positions, device=x.device) >= lengths[:, None]
    ends = (lengths.long() - 1).clamp_min(0).view(batch, 1, 1).expand(-1, -1, channels)
    last = torch.where((lengths == 0).view(batch, 1, 1), first, x.gather(1, ends).to(dtype))
    return (
        shifted.masked_fill(padding.unsqueeze(-1), 0),
        last.transpose(1, 2).clone(memory_format=torch.contiguous_format),
    )
