"""RWKV-7's recurrence in plain PyTorch, chunk by chunk: what runs where no compiled kernel fits.

B batch, T positions, H heads, K key dim, V value dim; inside a chunk time comes first, rows and heads are one axis.
"""

import torch
from torch import Tensor

from lengthen.kernels.recurrence import chunks, slabs, split_decay, time_first


def portable_forward(
    receptance: Tensor,
    log_decay: Tensor,
    key: Tensor,
    value: Tensor,
    a: Tensor,
    b: Tensor,
    input_gain: Tensor | None,
    initial_state: Tensor | None,
    output: Tensor,
    final_state: Tensor,
    checkpoints: Tensor | None,
) -> None:
    """Fill output [B, T, H, V], final_state [B, H, K, V] and checkpoints [B, chunks, H * K, V]."""
    for rows in slabs(key.shape[0], final_state[0].numel()):
        state = torch.zeros_like(final_state[rows]) if initial_state is None else initial_state[rows]
        shape, state = state.shape, state.flatten(0, 1)
        for index, positions in enumerate(chunks(key.shape[1])):
            if checkpoints is not None:
                checkpoints[rows, index] = state.view(shape).flatten(1, 2)
            r, g, k, v, a_, b_ = (
                _read(x, rows, positions, state.dtype) for x in (receptance, log_decay, key, value, a, b)
            )
            states, _ = _states(g, _gained(k, input_gain, rows, positions), v, a_, b_, state)
            y = torch.einsum("tikv,tik->tiv", states, r)
            output[rows, positions] = y.unflatten(1, shape[:2]).transpose(0, 1)
            state = states[-1]
        final_state[rows] = state.view(shape)


def portable_backward(
    output_gradient: Tensor,
    final_state_gradient: Tensor,
    checkpoints: Tensor,
    receptance: Tensor,
    log_decay: Tensor,
    key: Tensor,
    value: Tensor,
    a: Tensor,
    b: Tensor,
    input_gain: Tensor | None,
    gradients: list[Tensor],
    dinitial: Tensor,
) -> None:
    """Fill the gradients of receptance to input_gain and of the initial state."""
    *targets, dgain = gradients
    dtype = dinitial.dtype
    for rows in slabs(key.shape[0], dinitial[0].numel()):
        shape = dinitial[rows].shape
        dstate = final_state_gradient[rows].flatten(0, 1)
        for index, positions in reversed(list(enumerate(chunks(key.shape[1])))):
            r, g, k, v, a_, b_, dy = (
                _read(x, rows, positions, dtype) for x in (receptance, log_decay, key, value, a, b, output_gradient)
            )
            written = _gained(k, input_gain, rows, positions)
            start = checkpoints[rows, index].view(shape).flatten(0, 1)
            states, read = _states(g, written, v, a_, b_, start)
            before = torch.cat([start.unsqueeze(0), states[:-1]])
            kept, changed = split_decay(g.unsqueeze(-1))
            dstates, dread = torch.empty_like(states), torch.empty_like(v)
            for t in range(len(v) - 1, -1, -1):
                torch.baddbmm(dstate, r[t].unsqueeze(-1), dy[t].unsqueeze(-2), out=dstates[t])
                dread[t] = torch.bmm(b_[t].unsqueeze(-2), dstates[t]).squeeze(-2)
                dstate = torch.baddbmm(changed[t] * dstates[t], a_[t].unsqueeze(-1), dread[t].unsqueeze(-2))
                dstate.addcmul_(kept[t], dstates[t])
            dwritten = torch.einsum("tikv,tiv->tik", dstates, v)
            dk = dwritten
            if input_gain is not None:
                dk = _gained(dwritten, input_gain, rows, positions)
                dgain[rows, positions] = (dwritten * k).sum(-1).unflatten(1, shape[:2]).transpose(0, 1)
            results = (
                torch.einsum("tikv,tiv->tik", states, dy),
                g.exp() * torch.einsum("tikv,tikv->tik", dstates, before),
                dk,
                torch.einsum("tikv,tik->tiv", dstates, written),
                torch.einsum("tikv,tiv->tik", before, dread),
                torch.einsum("tikv,tiv->tik", dstates, read),
            )
            for target, result in zip(targets, results):
                target[rows, positions] = result.unflatten(1, shape[:2]).transpose(0, 1)
        dinitial[rows] = dstate.view(shape)


def _states(g: Tensor, k: Tensor, v: Tensor, a: Tensor, b: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """The states after each position, and what `a` read before it."""
    states, read = v.new_empty(*v.shape[:2], *state.shape[1:]), torch.empty_like(v)
    kept, changed = split_decay(g.unsqueeze(-1))
    columns = torch.stack([b, k], -1)
    for t, here in enumerate(states.unbind(0)):
        read[t] = torch.bmm(a[t].unsqueeze(-2), state).squeeze(-2)
        torch.baddbmm(changed[t] * state, columns[t], torch.stack([read[t], v[t]], -2), out=here)
        here.addcmul_(kept[t], state)
        state = here
    return states, read


def _read(tensor: Tensor, rows: slice, positions: slice, dtype: torch.dtype) -> Tensor:
    return time_first(tensor, rows, positions, dtype).flatten(1, 2)


def _gained(tensor: Tensor, input_gain: Tensor | None, rows: slice, positions: slice) -> Tensor:
    if input_gain is None:
        return tensor
    return tensor * _read(input_gain, rows, positions, tensor.dtype).unsqueeze(-1)
