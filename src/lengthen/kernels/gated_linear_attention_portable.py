"""Gated linear attention in plain PyTorch, chunk by chunk: what runs where no compiled kernel fits.

B batch, T positions, H heads, K key dim, V value dim; inside a chunk time comes first.
"""

import torch
from torch import Tensor

from lengthen.kernels.recurrence import chunks, scan_chunk, scan_chunk_backward, slabs, time_first


def portable_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    input_gain: Tensor | None,
    bonus: Tensor | None,
    initial_state: Tensor | None,
    output: Tensor,
    final_state: Tensor,
    checkpoints: Tensor | None,
) -> None:
    """Fill output [B, T, H, V], final_state [B, H, K, V] and checkpoints [B, chunks, H * K, V]."""
    dtype = final_state.dtype
    for rows in slabs(query.shape[0], final_state[0].numel()):
        state = torch.zeros_like(final_state[rows]) if initial_state is None else initial_state[rows]
        for index, positions in enumerate(chunks(query.shape[1])):
            if checkpoints is not None:
                checkpoints[rows, index] = state.flatten(1, 2)
            q, k, v, g = (time_first(x, rows, positions, dtype) for x in (query, key, value, log_decay))
            write = _write(k, v, input_gain, rows, positions)
            states = scan_chunk(g.unsqueeze(-1), write, state)
            read = states if bonus is None else torch.cat([state.unsqueeze(0), states[:-1]])
            y = torch.einsum("tbhkv,tbhk->tbhv", read, q)
            if bonus is not None:
                y = y + (q * bonus * k).sum(-1, keepdim=True) * v
            output[rows, positions] = y.transpose(0, 1)
            state = states[-1]
        final_state[rows] = state


def portable_backward(
    output_gradient: Tensor,
    final_state_gradient: Tensor,
    checkpoints: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    input_gain: Tensor | None,
    bonus: Tensor | None,
    gradients: list[Tensor],
    dinitial: Tensor,
) -> None:
    """Fill the gradients of query to bonus and of the initial state."""
    dquery, dkey, dvalue, dlog_decay, dgain, dbonus = gradients
    if bonus is not None:
        dbonus.zero_()
    dtype = final_state_gradient.dtype
    for rows in slabs(query.shape[0], dinitial[0].numel()):
        dstate = final_state_gradient[rows]
        for index, positions in reversed(list(enumerate(chunks(query.shape[1])))):
            q, k, v, g, dy = (
                time_first(x, rows, positions, dtype) for x in (query, key, value, log_decay, output_gradient)
            )
            gain = None if input_gain is None else time_first(input_gain, rows, positions, dtype)
            start = checkpoints[rows, index].view_as(dstate)
            states = scan_chunk(g.unsqueeze(-1), _write(k, v, input_gain, rows, positions), start)
            before = torch.cat([start.unsqueeze(0), states[:-1]])
            own = q.unsqueeze(-1) * dy.unsqueeze(-2)
            dq = torch.einsum("tbhkv,tbhv->tbhk", states if bonus is None else before, dy)
            if bonus is None:
                dstates, dstate = scan_chunk_backward(g.unsqueeze(-1), own, dstate)
            else:
                # What position t reads is the state that position t - 1 left.
                shifted = torch.cat([own[1:], torch.zeros_like(own[:1])])
                dstates, dstate = scan_chunk_backward(g.unsqueeze(-1), shifted, dstate)
                dstate = dstate + own[0]
            dk = torch.einsum("tbhkv,tbhv->tbhk", dstates, v)
            dv = torch.einsum("tbhkv,tbhk->tbhv", dstates, k)
            if gain is not None:
                dgain[rows, positions] = (dk * k).sum(-1).transpose(0, 1)
                dk, dv = dk * gain.unsqueeze(-1), dv * gain.unsqueeze(-1)
            if bonus is not None:
                weight, dweight = (q * bonus * k).sum(-1, keepdim=True), (v * dy).sum(-1, keepdim=True)
                dv = dv + weight * dy
                dq, dk = dq + dweight * bonus * k, dk + dweight * bonus * q
                dbonus += (dweight * q * k).sum((0, 1))
            dlog_decay[rows, positions] = (g.exp() * torch.einsum("tbhkv,tbhkv->tbhk", dstates, before)).transpose(0, 1)
            for target, gradient in ((dquery, dq), (dkey, dk), (dvalue, dv)):
                target[rows, positions] = gradient.transpose(0, 1)
        dinitial[rows] = dstate


def _write(k: Tensor, v: Tensor, input_gain: Tensor | None, rows: slice, positions: slice) -> Tensor:
    write = k.unsqueeze(-1) * v.unsqueeze(-2)
    if input_gain is None:
        return write
    return write * time_first(input_gain, rows, positions, k.dtype)[..., None, None]
