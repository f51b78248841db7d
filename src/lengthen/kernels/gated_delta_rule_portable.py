"""The portable form of `gated_delta_rule`: chunked matrix products in PyTorch and a hand-written backward.

Dims: B batch, T positions, H heads, K key dim, V value dim, n chunks of C positions.

Inside a chunk, with D[t, s] the decay after s up to t (a number, or one a key channel), a_t the decay up to t, h the
state before the chunk, and the products of pairs

    A_q[t, s] = sum_c q_t k_s D[t, s]  for s <= t          A_k[t, s] = sum_c k_t k_s D[t, s]  for s < t

the written updates u solve a triangular system, whose inverse is formed once for all states:

    (1 + beta A_k) u = beta i v - beta (a k) h             y = (a q) h + A_q u
    h' = a_C h + (k D[C, .])^T u

A decay for each channel makes the products of pairs sums over three indices, hence its shorter chunks.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from lengthen.kernels.recurrence import compute_dtype
from lengthen.kernels.ssd_chunked import lowest_log_decay

# Elements of the largest temporary of one block of rows: 8 MB in fp32.
BLOCK_ELEMENTS = 1 << 21


def segment_length(log_decay: Tensor | None) -> int:
    """Positions between the states that the forward keeps for the backward."""
    return 4 * _chunk_length(log_decay)


def _chunk_length(log_decay: Tensor | None) -> int:
    return 16 if log_decay is not None and log_decay.dim() == 4 else 64


class _Chunks(NamedTuple):
    """One segment of some rows cut into chunks, in the dtype of the computation. c is K, or 1 for a decay a head."""

    query: Tensor  # [B, n, H, C, K]
    key: Tensor  # [B, n, H, C, K]
    value: Tensor  # [B, n, H, C, V]
    beta: Tensor  # [B, n, H, C, 1]
    gain: Tensor | None  # [B, n, H, C, 1]
    pair_decay: Tensor  # D: [B, n, H, C, C] zero above the diagonal; with channels [B, n, H, C, C, K]
    decay_in: Tensor  # a_t: [B, n, H, C, c]
    decay_out: Tensor  # D[C, s]: [B, n, H, C, c]
    decay: Tensor  # a_C: [B, n, H, c, 1]
    reads: Tensor  # A_q: [B, n, H, C, C]
    overlaps: Tensor  # A_k: [B, n, H, C, C]
    inverse: Tensor  # of 1 + beta A_k: [B, n, H, C, C]
    erase: Tensor  # inverse beta (a k): [B, n, H, C, K]
    write: Tensor  # inverse beta i v: [B, n, H, C, V]


def delta_rule_portable_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    beta: Tensor,
    input_gain: Tensor | None,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, final state, and the states between segments [B, segments - 1, H, K, V]."""
    batch, positions, heads, value_dim = value.shape
    dtype = compute_dtype(value)
    segment = segment_length(log_decay)
    output = value.new_empty(value.shape)
    final_state = value.new_empty((batch, heads, query.shape[3], value_dim), dtype=dtype)
    boundary_states = final_state.new_empty((batch, (positions - 1) // segment, *final_state.shape[1:]))
    for rows in _row_blocks(query, value, log_decay):
        state = torch.zeros_like(final_state[rows]) if initial_state is None else initial_state[rows].to(dtype)
        for start, chunk, count in _pieces(positions, log_decay):
            here = (rows, slice(start, start + chunk * count))
            if start and start % segment == 0:
                boundary_states[rows, start // segment - 1] = state
            chunks = _cut(query, key, value, log_decay, beta, input_gain, here, chunk, dtype)
            states, updates, state = _run(chunks, state)
            y = (chunks.query * chunks.decay_in) @ states + chunks.reads @ updates
            output[here] = _join(y)
        final_state[rows] = state
    return output, final_state, boundary_states


def delta_rule_portable_backward(
    output_gradient: Tensor,
    final_state_gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    beta: Tensor,
    input_gain: Tensor | None,
    initial_state: Tensor | None,
    boundary_states: Tensor,
    initial_state_wanted: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value, log_decay, beta, input_gain and initial_state; empty where none is wanted."""
    dtype = compute_dtype(value)
    segment = segment_length(log_decay)
    d_query, d_key, d_value, d_beta = (x.new_empty(x.shape) for x in (query, key, value, beta))
    d_log_decay, d_gain, d_initial = (
        value.new_empty(0) if x is None else x.new_empty(x.shape)
        for x in (log_decay, input_gain, initial_state if initial_state_wanted else None)
    )
    for rows in _row_blocks(query, value, log_decay):
        d_state = final_state_gradient[rows].to(dtype)
        entered = torch.zeros_like(d_state) if initial_state is None else initial_state[rows].to(dtype)
        for start, chunk, count in reversed(_pieces(value.shape[1], log_decay)):
            here = (rows, slice(start, start + chunk * count))
            index, offset = divmod(start, segment)
            state = boundary_states[rows, index - 1] if index else entered
            if offset:  # the rest after the whole chunks of this segment
                before = (rows, slice(index * segment, start))
                whole = _cut(query, key, value, log_decay, beta, input_gain, before, _chunk_length(log_decay), dtype)
                state = _run(whole, state)[2]
            chunks = _cut(query, key, value, log_decay, beta, input_gain, here, chunk, dtype)
            dy = _split(output_gradient[here].to(dtype), chunk)
            d_query[here], d_key[here], d_right, rest, d_log, d_state = _piece_backward(chunks, dy, state, d_state)
            d_written = chunks.beta * d_right
            d_beta[here] = _join((d_right * rest).sum(-1, keepdim=True)).squeeze(-1)
            if input_gain is not None and chunks.gain is not None:
                d_gain[here] = _join((d_written * chunks.value).sum(-1, keepdim=True)).squeeze(-1)
                d_written = d_written * chunks.gain
            d_value[here] = _join(d_written)
            if log_decay is not None:
                d_log = _join(d_log) if log_decay.dim() == 4 else _join(d_log.sum(-1, keepdim=True)).squeeze(-1)
                d_log_decay[here] = d_log.masked_fill_(log_decay[here] <= lowest_log_decay(dtype), 0)
        if initial_state_wanted:
            d_initial[rows] = d_state
    return d_query, d_key, d_value, d_log_decay, d_beta, d_gain, d_initial


def _piece_backward(
    chunks: _Chunks, dy: Tensor, state: Tensor, d_state: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key and u / beta; i v - prediction; the log-decay's by key channel; the state's before."""
    query, key = chunks.query, chunks.key
    states, updates, _ = _run(chunks, state)
    query_in, key_in, key_out = query * chunks.decay_in, key * chunks.decay_in, key * chunks.decay_out

    # Backwards through the chunks: first the state's gradient alone, then everything else at once.
    d_updates = chunks.reads.mT @ dy
    d_befores = query_in.mT @ dy
    d_ends = []
    for index in reversed(range(dy.shape[1])):
        d_ends.append(d_state)
        d_update = d_updates[:, index] + key_out[:, index] @ d_state
        d_state = chunks.decay[:, index] * d_state + d_befores[:, index] - chunks.erase[:, index].mT @ d_update
    d_end = torch.stack(d_ends[::-1], 1)
    d_updates = d_updates + key_out @ d_end

    d_right = chunks.inverse.mT @ d_updates
    d_predicted = -chunks.beta * d_right
    written = chunks.value if chunks.gain is None else chunks.value * chunks.gain
    rest = written - key_in @ states - chunks.overlaps @ updates
    d_reads = (dy @ updates.mT).tril_()
    d_overlaps = (d_predicted @ updates.mT).tril_(-1)
    d_query_in, d_key_in, d_key_out = dy @ states.mT, d_predicted @ states.mT, updates @ d_end.mT
    d_query, d_left = _pairs_backward(d_reads, query, key, chunks.pair_decay)
    d_key, d_right_key = _pairs_backward(d_overlaps, key, key, chunks.pair_decay)

    # What is read at t flows across every log-decay up to t, what is written at s across every one after s.
    read = query * d_query + key * d_key - key * (d_left + d_right_key)
    d_query, d_key = d_query + d_query_in * chunks.decay_in, d_key + d_left + d_right_key
    read = read + query_in * d_query_in + key_in * d_key_in
    left = key_out * d_key_out
    carried = ((chunks.decay * d_end) * states).sum(-1).unsqueeze(3)
    d_log = read.double().flip(3).cumsum(3).flip(3) + left.double().cumsum(3) - left + carried
    d_key = d_key + d_key_in * chunks.decay_in + d_key_out * chunks.decay_out
    return _join(d_query), _join(d_key), d_right, rest, d_log.to(dy.dtype), d_state


def _cut(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    beta: Tensor,
    input_gain: Tensor | None,
    here: tuple[slice, slice],
    chunk: int,
    dtype: torch.dtype,
) -> _Chunks:
    q, k, v = (_split(x[here].to(dtype), chunk) for x in (query, key, value))
    step = _split(beta[here].to(dtype).unsqueeze(-1), chunk)
    gain = None if input_gain is None else _split(input_gain[here].to(dtype).unsqueeze(-1), chunk)
    if log_decay is None:
        log = torch.zeros_like(step, dtype=torch.float64)
    else:
        # exp of the lowest is 0, as exp(-inf), but differences of its sums are numbers that keep their digits.
        log = log_decay[here].double().clamp_min(lowest_log_decay(dtype))
        log = _split(log if log.dim() == 4 else log.unsqueeze(-1), chunk)
    sums = log.cumsum(3)
    above = torch.ones(chunk, chunk, dtype=torch.bool, device=value.device).triu_(1).unsqueeze(-1)
    pair_decay = (sums.unsqueeze(4) - sums.unsqueeze(3)).to(dtype).masked_fill_(above, -torch.inf).exp_()
    pair_decay = pair_decay if log_decay is not None and log_decay.dim() == 4 else pair_decay.squeeze(-1)
    decay_in = sums.to(dtype).exp()
    overlaps = _pairs(k, k, pair_decay).tril_(-1)
    identity = torch.eye(chunk, dtype=dtype, device=value.device)
    inverse = torch.linalg.solve_triangular(
        identity + step * overlaps, identity.expand(overlaps.shape), upper=False, unitriangular=True
    )
    return _Chunks(
        query=q,
        key=k,
        value=v,
        beta=step,
        gain=gain,
        pair_decay=pair_decay,
        decay_in=decay_in,
        decay_out=(sums[:, :, :, -1:] - sums).to(dtype).exp(),
        decay=decay_in[:, :, :, -1].unsqueeze(-1),
        reads=_pairs(q, k, pair_decay),
        overlaps=overlaps,
        inverse=inverse,
        erase=inverse @ (step * decay_in * k),
        write=inverse @ (step * v if gain is None else step * gain * v),
    )


def _pairs(left: Tensor, right: Tensor, decay: Tensor) -> Tensor:
    """Decayed products [B, n, H, C, C] of every position's `left` with those of `right` up to it."""
    if decay.dim() == 5:
        return (left @ right.mT) * decay
    return ((right.unsqueeze(3) * decay) @ left.unsqueeze(-1)).squeeze(-1)


def _pairs_backward(gradient: Tensor, left: Tensor, right: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of left and right [B, n, H, C, K] in `_pairs`."""
    if decay.dim() == 5:
        decayed = gradient * decay
        return decayed @ right, decayed.mT @ left
    weighted = decay * gradient.unsqueeze(-1)
    return (weighted * right.unsqueeze(3)).sum(4), (weighted * left.unsqueeze(4)).sum(3)


def _run(chunks: _Chunks, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The states before the chunks [B, n, H, K, V], what is written in them [B, n, H, C, V], the state after."""
    key_out = (chunks.key * chunks.decay_out).mT
    states, updates = [], []
    for index in range(chunks.value.shape[1]):
        states.append(state)
        update = chunks.write[:, index] - chunks.erase[:, index] @ state
        updates.append(update)
        state = chunks.decay[:, index] * state + key_out[:, index] @ update
    return torch.stack(states, 1), torch.stack(updates, 1), state


def _pieces(positions: int, log_decay: Tensor | None) -> list[tuple[int, int, int]]:
    """Start, chunk length and number of chunks of each piece: whole segments, whole chunks, then the rest."""
    segment, chunk = segment_length(log_decay), _chunk_length(log_decay)
    pieces = []
    for start in range(0, positions, segment):
        whole, rest = divmod(min(segment, positions - start), chunk)
        if whole:
            pieces.append((start, chunk, whole))
        if rest:
            pieces.append((start + whole * chunk, rest, 1))
    return pieces


def _row_blocks(query: Tensor, value: Tensor, log_decay: Tensor | None) -> Iterator[slice]:
    batch, positions, heads, value_dim = value.shape
    key_dim = query.shape[3]
    length, chunk = min(positions, segment_length(log_decay)), _chunk_length(log_decay)
    pairs = chunk * key_dim if log_decay is not None and log_decay.dim() == 4 else chunk
    row = max(length * max(pairs, value_dim, key_dim), -(-length // chunk) * key_dim * value_dim) * heads
    rows = max(1, BLOCK_ELEMENTS // row)
    return (slice(first, min(first + rows, batch)) for first in range(0, batch, rows))


def _split(x: Tensor, chunk: int) -> Tensor:
    """[B, n C, H, *] as contiguous [B, n, H, C, *]."""
    return x.unflatten(1, (-1, chunk)).transpose(2, 3).contiguous()


def _join(x: Tensor) -> Tensor:
    """[B, n, H, C, *] as [B, n C, H, *]; the other way of `_split`."""
    return x.transpose(2, 3).flatten(1, 2)
