"""The selective scan in plain PyTorch, chunk by chunk: what runs where no compiled kernel fits.

B batch, T positions, D channels, N state per channel; inside a chunk time comes first.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from lengthen.kernels.recurrence import chunks, scan_chunk, scan_chunk_backward, slabs, time_first


class Inputs(NamedTuple):
    """The arguments of the selective scan but for the initial state."""

    x: Tensor
    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    skip: Tensor | None
    gate: Tensor | None
    dt_bias: Tensor | None
    input_gain: Tensor | None
    decay_dt: Tensor | None
    reset: Tensor | None
    dt_softplus: bool


@dataclass
class _Chunk:
    """Some rows and positions of the inputs, time first, in the dtype of the computation."""

    x: Tensor
    step: Tensor
    gain: Tensor | None
    gate: Tensor | None
    decay_step: Tensor
    B: Tensor
    C: Tensor
    log_decay: Tensor
    write: Tensor


def portable_forward(
    inputs: Inputs, initial_state: Tensor | None, output: Tensor, final_state: Tensor, checkpoints: Tensor | None
) -> None:
    """Fill output [B, T, D], final_state [B, D, N] and checkpoints [B, chunks, N, D]."""
    for rows in slabs(inputs.x.shape[0], inputs.A.numel()):
        state = torch.zeros_like(final_state[rows]) if initial_state is None else initial_state[rows]
        for index, positions in enumerate(chunks(inputs.x.shape[1])):
            if checkpoints is not None:
                checkpoints[rows, index] = state.mT
            chunk = _read(inputs, rows, positions)
            states = scan_chunk(chunk.log_decay, _writes(chunk), state)
            state = states[-1]
            output[rows, positions] = _read_out(inputs, chunk, states)[1].transpose(0, 1)
        final_state[rows] = state


def portable_backward(
    inputs: Inputs, output_gradient: Tensor, final_state_gradient: Tensor, checkpoints: Tensor
) -> list[Tensor]:
    """Gradients of x to decay_dt and of the initial state; an empty tensor for one left out."""
    x, _, A, *_ = inputs
    gradients = [x.new_empty(0) if t is None else torch.zeros_like(t) for t in inputs[:10]]
    dx, ddt, dA, dB, dC, dskip, dgate, dbias, dgain, ddecay_step = gradients
    dinitial = torch.empty_like(final_state_gradient)
    for rows in slabs(x.shape[0], A.numel()):
        dstate = final_state_gradient[rows]
        for index, positions in reversed(list(enumerate(chunks(x.shape[1])))):
            chunk = _read(inputs, rows, positions)
            before = checkpoints[rows, index].mT
            states = scan_chunk(chunk.log_decay, _writes(chunk), before)
            dy = time_first(output_gradient, rows, positions, A.dtype)
            if chunk.gate is not None:
                y, _ = _read_out(inputs, chunk, states)
                open_ = torch.sigmoid(chunk.gate)
                dgate[rows, positions] = (dy * y * open_ * (1 + chunk.gate * (1 - open_))).transpose(0, 1)
                dy = dy * chunk.gate * open_
            dC[rows, positions] = torch.einsum("tbdn,tbd->btn", states, dy)
            own = dy.unsqueeze(-1) * chunk.C.unsqueeze(-2)
            dstates, dstate = scan_chunk_backward(chunk.log_decay, own, dstate)
            dB[rows, positions] = torch.einsum("tbdn,tbd->btn", dstates, chunk.write)
            dwrite = torch.einsum("tbdn,tbn->tbd", dstates, chunk.B)
            # decay * state before * gradient of the state after: 0 where the decay is.
            previous = torch.cat([before.unsqueeze(0), states[:-1]])
            dlog_decay = dstates.mul_(previous).mul_(chunk.log_decay.exp())
            finite_step = chunk.decay_step.clamp(max=torch.finfo(A.dtype).max)
            dA += torch.einsum("tbdn,tbd->dn", dlog_decay, finite_step)
            ddecay = torch.einsum("tbdn,dn->tbd", dlog_decay, A)
            gain = 1.0 if chunk.gain is None else chunk.gain
            dstep = dwrite * chunk.x * gain
            if inputs.decay_dt is None:
                dstep = dstep + ddecay
            else:
                ddecay_step[rows, positions] = ddecay.transpose(0, 1)
            if inputs.dt_softplus:
                dstep = dstep * -torch.expm1(-chunk.step)
            if inputs.dt_bias is not None:
                dbias += dstep.sum((0, 1))
            ddt[rows, positions] = dstep.transpose(0, 1)
            if chunk.gain is not None:
                dgain[rows, positions] = (dwrite * chunk.step * chunk.x).transpose(0, 1)
            dchannel = dwrite * chunk.step * gain
            if inputs.skip is not None:
                dskip += (dy * chunk.x).sum((0, 1))
                dchannel = dchannel + dy * inputs.skip
            dx[rows, positions] = dchannel.transpose(0, 1)
        dinitial[rows] = dstate
    return [*gradients, dinitial]


def _read(inputs: Inputs, rows: slice, positions: slice) -> _Chunk:
    dtype = inputs.A.dtype
    x, step, B, C = (time_first(tensor, rows, positions, dtype) for tensor in (inputs.x, inputs.dt, inputs.B, inputs.C))
    gain, gate, decay_step = (
        None if tensor is None else time_first(tensor, rows, positions, dtype)
        for tensor in (inputs.input_gain, inputs.gate, inputs.decay_dt)
    )
    if inputs.dt_bias is not None:
        step = step + inputs.dt_bias
    if inputs.dt_softplus:
        step = F.softplus(step)
    decay_step = step if decay_step is None else decay_step
    log_decay = decay_step.unsqueeze(-1) * inputs.A
    if inputs.reset is not None:
        log_decay = log_decay.masked_fill(inputs.reset[rows, positions].T[..., None, None], -torch.inf)
    write = step * x if gain is None else step * x * gain
    return _Chunk(x, step, gain, gate, decay_step, B, C, log_decay, write)


def _writes(chunk: _Chunk) -> Tensor:
    return chunk.write.unsqueeze(-1) * chunk.B.unsqueeze(-2)


def _read_out(inputs: Inputs, chunk: _Chunk, states: Tensor) -> tuple[Tensor, Tensor]:
    """The output before and after the gate."""
    y = torch.einsum("tbdn,tbn->tbd", states, chunk.C)
    if inputs.skip is not None:
        y = y + inputs.skip * chunk.x
    return y, y if chunk.gate is None else y * F.silu(chunk.gate)
