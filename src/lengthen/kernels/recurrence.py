"""What the elementwise recurrences share: argument checks, and h_t = exp(g_t) h_{t-1} + u_t over one chunk.

The chunk scan is the engine of the portable forms. It runs without autograd, time first: every tensor is
[positions of the chunk, ...]. The state before the chunk enters through the exponential of summed log-decays and
only the chunk's own writes through repeated products, so that a decay very near 1 loses no digits over many chunks.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lengthen.kernels.dispatch import compiled

CHUNK = 128
"""Positions between the states that the forward pass keeps for the backward pass, in every form."""


def check_shape(name: str, tensor: Tensor | None, shape: Sequence[int]) -> None:
    """Raise a ValueError that names the argument unless `tensor` is None or has this shape."""
    if tensor is not None and tuple(tensor.shape) != tuple(shape):
        raise ValueError(f"{name} has shape {list(tensor.shape)}, but the other arguments need {list(shape)}")


def check_sequence(name: str, tensor: Tensor, axes: str) -> None:
    """Raise a ValueError unless `tensor` has these axes and at least one position (axis 1)."""
    if tensor.ndim != len(axes.split()):
        raise ValueError(f"{name} has shape {list(tensor.shape)}, but needs the axes [{', '.join(axes.split())}]")
    if tensor.shape[1] == 0:
        raise ValueError(f"{name} has no positions: pass at least one, or keep the state you have")


def check_floating(**tensors: Tensor | None) -> None:
    """Raise a TypeError that names the first argument which is not floating point."""
    for name, tensor in tensors.items():
        if tensor is not None and not tensor.is_floating_point():
            raise TypeError(f"{name} is {tensor.dtype}, but needs a floating-point type")


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """float64 as soon as one tensor is, else float32: the type of states and of all arithmetic."""
    if any(tensor is not None and tensor.dtype == torch.float64 for tensor in tensors):
        return torch.float64
    return torch.float32


def needs_gradient(*tensors: Tensor | None) -> bool:
    """Whether a backward pass may follow, so that checkpoints are worth their memory."""
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def fresh_like(tensor: Tensor, *, shape: Sequence[int] | None = None, dtype: torch.dtype | None = None) -> Tensor:
    """An uninitialised contiguous output on a tensor's device, of its shape and dtype unless others are given.

    A large one on a CPU lies in memory kept from an output that is gone: to touch new pages costs more than an
    elementwise recurrence, and malloc hands large memory back to the system each time.
    """
    shape, dtype = tensor.shape if shape is None else shape, dtype or tensor.dtype
    bytes_needed = math.prod(shape) * dtype.itemsize
    # A tensor of another type stands for a real one while a function is traced.
    if compiled is None or type(tensor) is not Tensor or not tensor.is_cpu or bytes_needed <= _HUGE_PAGE:
        return tensor.new_empty(shape, dtype=dtype)
    memory: Tensor = compiled.large_output(bytes_needed)
    return memory.view(dtype).view(shape)


_HUGE_PAGE = 2**21


def empty_gradients(*inputs: Tensor | None) -> list[Tensor]:
    """An uninitialised contiguous gradient for each input; an empty tensor for one left out."""
    some = next(tensor for tensor in inputs if tensor is not None)
    return [some.new_empty(0) if tensor is None else fresh_like(tensor) for tensor in inputs]


def matrix_outputs(key: Tensor, value: Tensor, compute: torch.dtype, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Uninitialised output, final state and checkpoints of a recurrence of matrix states: like `value`, [B, H, K, V],
    and [B, chunks, H * K, V], of no chunk unless `save`; key [B, T, H, K], value [B, T, H, V]."""
    batch, positions, heads, dim = key.shape
    kept = len(chunks(positions)) if save else 0
    return (
        fresh_like(value),
        value.new_empty((batch, heads, dim, value.shape[-1]), dtype=compute),
        value.new_empty((batch, kept, heads * dim, value.shape[-1]), dtype=compute),
    )


def chunks(positions: int) -> list[slice]:
    """The sequence in pieces of CHUNK positions, the last one shorter."""
    return [slice(start, min(start + CHUNK, positions)) for start in range(0, positions, CHUNK)]


def slabs(batch: int, elements: int) -> list[slice]:
    """Rows of the batch to run together, so that a chunk of states of `elements` numbers a row stays near 8 MB."""
    rows = max(1, 2**21 // (CHUNK * elements))
    return [slice(start, min(start + rows, batch)) for start in range(0, batch, rows)]


def time_first(tensor: Tensor, rows: slice, chunk: slice, dtype: torch.dtype) -> Tensor:
    """Some rows and positions of [B, T, ...] as [positions, rows, ...] in the dtype of the computation."""
    return tensor[rows, chunk].transpose(0, 1).to(dtype)


def split_decay(log_decay: Tensor) -> tuple[Tensor, Tensor]:
    """(kept, changed) with decay = kept + changed, so that kept * h + (changed * h + write) is rounded once.

    A slow decay keeps 1 and changes by decay - 1, which the decay itself could not hold: in float32, 1 - 1e-6 is
    off by 3 % of its distance from 1. A fast one, from exp(-0.34) down, keeps 0.
    """
    slow = log_decay > -0.34
    return slow.to(log_decay.dtype), torch.where(slow, log_decay.expm1(), log_decay.exp())


def scan_chunk(log_decay: Tensor, write: Tensor, state: Tensor) -> Tensor:
    """The states after each position of a chunk, from the state before it.

    log_decay broadcasts against write [n, ...]; state [...].
    """
    decays = log_decay.exp().unbind(0)
    states = torch.empty_like(write)
    here = states.unbind(0)
    here[0].copy_(write[0])
    for position, (decay, new) in enumerate(zip(decays[1:], write.unbind(0)[1:]), 1):
        torch.addcmul(new, decay, here[position - 1], out=here[position])
    return states.addcmul_(log_decay.cumsum(0).exp(), state)


def scan_chunk_backward(log_decay: Tensor, gradient: Tensor, dstate: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the states of a chunk: of each, all paths included, and of the state before the chunk.

    gradient [n, ...] is what each state's own position contributes, dstate [...] that of everything after the chunk.
    """
    decays = log_decay.exp()
    dstates = torch.empty_like(gradient)
    here = dstates.unbind(0)
    here[-1].copy_(gradient[-1])
    for position in range(len(here) - 2, -1, -1):
        torch.addcmul(gradient[position], decays[position + 1], here[position + 1], out=here[position])
    # The decay from after each position to the chunk's end.
    remaining = torch.zeros_like(log_decay)
    if len(here) > 1:
        remaining[:-1] = log_decay[1:].flip(0).cumsum(0).flip(0)
    dstates.addcmul_(remaining.exp(), dstate)
    return dstates, decays[0] * dstates[0]
