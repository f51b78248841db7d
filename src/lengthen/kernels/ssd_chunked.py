"""The portable form of `ssd`: chunked matrix products in PyTorch, forward and a hand-written backward.

Dims: B batch, T positions, G groups, R heads per group (H = G R), K key dim, V value dim, n chunks of C positions.

Inside a chunk, with a_t the sum of the log-decays up to and including t (in float64, so that differences of sums
keep their digits) and h the state before the chunk:

    L[t, s] = exp(a_t - a_s) for s <= t          P = (q k^T) * L
    y_t     = sum_s P[t, s] i_s v_s + exp(a_t) h^T q_t
    h'      = exp(a_C) h + sum_s exp(a_C - a_s) i_s k_s v_s^T

Work goes in segments of SEGMENT positions and blocks of rows, so that temporaries stay in the cache; the forward
keeps only the states between segments, the backward recomputes the others. Inside, the heads of a group lie side by
side (a state is [K, R V]): one product serves them all.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from lengthen.kernels.recurrence import compute_dtype

CHUNK = 64
SEGMENT = 8 * CHUNK
# Elements of the largest temporary of one block of rows: 8 MB in fp32.
BLOCK_ELEMENTS = 1 << 21


class _Chunks(NamedTuple):
    """One segment of some rows cut into chunks, in the dtype of the computation."""

    query: Tensor  # [B, n, G, C, K]
    key: Tensor  # [B, n, G, C, K]
    value: Tensor  # [B, n, G, C, R, V]
    gain: Tensor | None  # [B, n, G, C, R, 1]
    written: Tensor  # value * gain
    pair_decay: Tensor  # L: [B, n, G, R, C, C], zero above the diagonal
    decay_in: Tensor  # exp(a_t): [B, n, G, C, R, 1]
    decay_out: Tensor  # exp(a_C - a_s): [B, n, G, C, R, 1]
    decay: Tensor  # exp(a_C): [B, n, G, 1, R, 1]


def ssd_chunked_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    input_gain: Tensor | None,
    skip: Tensor | None,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, final state, and the states between segments [B, segments - 1, H, K, V]."""
    batch, positions, heads, value_dim = value.shape
    groups, key_dim = query.shape[2:]
    dtype = compute_dtype(value)
    output = value.new_empty(value.shape)
    final_state = value.new_empty((batch, heads, key_dim, value_dim), dtype=dtype)
    boundary_states = final_state.new_empty((batch, (positions - 1) // SEGMENT, heads, key_dim, value_dim))
    for rows in _row_blocks(query, value):
        state = _enter(final_state.new_zeros(()).expand(final_state[rows].shape), groups)
        if initial_state is not None:
            state = _enter(initial_state[rows].to(dtype), groups)
        for start, chunk, count in _pieces(positions):
            here = (rows, slice(start, start + chunk * count))
            if start and start % SEGMENT == 0:
                boundary_states[rows, start // SEGMENT - 1] = _leave(state)
            chunks = _cut(query, key, value, log_decay, input_gain, here, chunk, dtype)
            states, state = _run_states(chunks, state)
            scores = chunks.query @ chunks.key.transpose(-1, -2)
            y = _wide(chunks.query @ states.flatten(-2), chunks.value).mul_(chunks.decay_in)
            y += ((chunks.pair_decay * scores.unsqueeze(3)) @ _by_head(chunks.written)).transpose(3, 4)
            if skip is not None:
                y.addcmul_(chunks.value, skip.to(dtype).view(groups, 1, -1, 1))
            output[here] = _join(y)
        final_state[rows] = _leave(state)
    return output, final_state, boundary_states


def ssd_chunked_backward(
    output_gradient: Tensor,
    final_state_gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    input_gain: Tensor | None,
    skip: Tensor | None,
    initial_state: Tensor | None,
    boundary_states: Tensor,
    initial_state_wanted: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value, log_decay, input_gain, skip and initial_state; empty where none is wanted."""
    _, positions, heads, _ = value.shape
    groups = query.shape[2]
    dtype = compute_dtype(value)
    d_query, d_key, d_value, d_log_decay = (x.new_empty(x.shape) for x in (query, key, value, log_decay))
    d_gain, d_initial = (
        value.new_empty(0) if x is None else x.new_empty(x.shape)
        for x in (input_gain, initial_state if initial_state_wanted else None)
    )
    d_skip = value.new_zeros((groups, heads // groups), dtype=torch.float64)
    for rows in _row_blocks(query, value):
        d_state = _enter(final_state_gradient[rows].to(dtype), groups)
        entered = torch.zeros_like(d_state)
        if initial_state is not None:
            entered = _enter(initial_state[rows].to(dtype), groups)
        for start, chunk, count in reversed(_pieces(positions)):
            here = (rows, slice(start, start + chunk * count))
            segment, offset = divmod(start, SEGMENT)
            state = _enter(boundary_states[rows, segment - 1], groups) if segment else entered
            if offset:  # the rest after the whole chunks of this segment
                before = (rows, slice(segment * SEGMENT, start))
                _, state = _run_states(_cut(query, key, value, log_decay, input_gain, before, CHUNK, dtype), state)
            chunks = _cut(query, key, value, log_decay, input_gain, here, chunk, dtype)
            dy = _split(output_gradient[here].to(dtype), chunk, groups)
            d_query[here], d_key[here], d_written, d_log, d_state = _piece_backward(chunks, dy, state, d_state)
            d_log_decay[here] = d_log.masked_fill_(log_decay[here] <= lowest_log_decay(dtype), 0)
            if input_gain is not None and chunks.gain is not None:
                d_gain[here] = _join((d_written * chunks.value).sum(-1, keepdim=True)).squeeze(-1)
                d_written = d_written * chunks.gain
            if skip is not None:
                d_skip += (dy * chunks.value).sum((0, 1, 3, 5))
                d_written = d_written.addcmul(dy, skip.to(dtype).view(groups, 1, -1, 1))
            d_value[here] = _join(d_written)
        if initial_state_wanted:
            d_initial[rows] = _leave(d_state)
    d_skip = value.new_empty(0) if skip is None else d_skip.flatten().to(skip.dtype)
    return d_query, d_key, d_value, d_log_decay, d_gain, d_skip, d_initial


def _piece_backward(
    chunks: _Chunks, dy: Tensor, state: Tensor, d_state: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, written (wide), log_decay and the state before, from those after."""
    query, key = chunks.query, chunks.key
    states, _ = _run_states(chunks, state)
    read = dy * chunks.decay_in
    d_ends, d_state = _run_states_backward(chunks, read, d_state)

    scores = (query @ key.transpose(-1, -2)).unsqueeze(3)
    dy_by_head, written_by_head = _by_head(dy), _by_head(chunks.written)
    d_scores = (dy_by_head @ written_by_head.transpose(-1, -2)).mul_(chunks.pair_decay)
    pairs = (d_scores * scores).tril_(-1)
    d_scores = d_scores.sum(3)
    d_written = _wide(key @ d_ends.flatten(-2), dy).mul_(chunks.decay_out)
    left = (d_written * chunks.written).sum(-1)
    d_written += ((chunks.pair_decay * scores).transpose(-1, -2) @ dy_by_head).transpose(3, 4)
    d_query = (d_scores @ key).add_(read.flatten(-2) @ states.flatten(-2).transpose(-1, -2))
    written_out = (chunks.written * chunks.decay_out).flatten(-2)
    d_key = (d_scores.transpose(-1, -2) @ query).add_(written_out @ d_ends.flatten(-2).transpose(-1, -2))

    # d a_t of everything read at t, d a_s of everything written at s; each log-decay sums those it stands between.
    read_sum = (read * _wide(query @ states.flatten(-2), dy)).sum(-1)
    read_sum = read_sum + (pairs.sum(-1) - pairs.sum(-2)).transpose(-1, -2)
    carried = torch.einsum("bngkrv,bngkrv->bngr", d_ends, states).unsqueeze(3) * chunks.decay.squeeze(-1)
    d_log = read_sum.double().flip(3).cumsum(3).flip(3) + carried
    left = left.double()
    d_log = d_log.add_(left.cumsum(3)).sub_(left).to(dy.dtype)
    return _join(d_query), _join(d_key), d_written, _join(d_log.unsqueeze(-1)).squeeze(-1), d_state


def _cut(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    input_gain: Tensor | None,
    here: tuple[slice, slice],
    chunk: int,
    dtype: torch.dtype,
) -> _Chunks:
    groups = query.shape[2]
    v = _split(value[here].to(dtype), chunk, groups)
    gain = None if input_gain is None else _split(input_gain[here].to(dtype).unsqueeze(-1), chunk, groups)
    # exp of the lowest is 0, as exp(-inf), but differences of its sums are numbers; they keep their digits in float64.
    log = log_decay[here].double().clamp_min(lowest_log_decay(dtype)).unsqueeze(-1)
    sums = _split(log, chunk, groups).cumsum(3)
    by_head = sums.transpose(3, 4)
    return _Chunks(
        query=_split(query[here].to(dtype), chunk, groups).squeeze(-2),
        key=_split(key[here].to(dtype), chunk, groups).squeeze(-2),
        value=v,
        gain=gain,
        written=v if gain is None else v * gain,
        pair_decay=(by_head - by_head.transpose(-1, -2)).to(dtype).exp_().tril_(),
        decay_in=sums.to(dtype).exp(),
        decay_out=(sums[:, :, :, -1:] - sums).to(dtype).exp_(),
        decay=sums[:, :, :, -1:].to(dtype).exp_(),
    )


def _run_states(chunks: _Chunks, state: Tensor) -> tuple[Tensor, Tensor]:
    """The state before each chunk [B, n, G, K, R, V], and the one after the last."""
    written_out = (chunks.written * chunks.decay_out).flatten(-2)
    updates = (chunks.key.transpose(-1, -2) @ written_out).unflatten(-1, state.shape[-2:])
    if updates.shape[1] == 1:
        return state.unsqueeze(1), torch.addcmul(updates[:, 0], chunks.decay[:, 0], state)
    states = []
    for update, decay in zip(updates.unbind(1), chunks.decay.unbind(1)):
        states.append(state)
        state = torch.addcmul(update, decay, state)
    return torch.stack(states, 1), state


def _run_states_backward(chunks: _Chunks, read: Tensor, d_state: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the state after each chunk [B, n, G, K, R, V], and of the one before the first."""
    updates = (chunks.query.transpose(-1, -2) @ read.flatten(-2)).unflatten(-1, d_state.shape[-2:])
    d_ends = []
    for update, decay in zip(reversed(updates.unbind(1)), reversed(chunks.decay.unbind(1))):
        d_ends.append(d_state)
        d_state = torch.addcmul(update, decay, d_state)
    return torch.stack(d_ends[::-1], 1), d_state


def lowest_log_decay(dtype: torch.dtype) -> float:
    """A log-decay whose exp is exactly 0 in this dtype, small enough for sums of a chunk."""
    return -800.0 if dtype == torch.float64 else -110.0


def _pieces(positions: int) -> list[tuple[int, int, int]]:
    """Start, chunk length and number of chunks of each piece: whole segments, whole chunks, then the rest."""
    pieces = []
    for start in range(0, positions, SEGMENT):
        whole, rest = divmod(min(SEGMENT, positions - start), CHUNK)
        if whole:
            pieces.append((start, CHUNK, whole))
        if rest:
            pieces.append((start + whole * CHUNK, rest, 1))
    return pieces


def _row_blocks(query: Tensor, value: Tensor) -> Iterator[slice]:
    batch, positions, heads, value_dim = value.shape
    length = min(positions, SEGMENT)
    state = -(-length // CHUNK) * query.shape[3] * value_dim
    row = max(length * max(value_dim, min(length, CHUNK)), state) * heads
    rows = max(1, BLOCK_ELEMENTS // row)
    return (slice(first, min(first + rows, batch)) for first in range(0, batch, rows))


def _split(x: Tensor, chunk: int, groups: int) -> Tensor:
    """[B, n C, H, *] as [B, n, G, C, R, *]."""
    return x.unflatten(2, (groups, -1)).unflatten(1, (-1, chunk)).transpose(2, 3)


def _join(x: Tensor) -> Tensor:
    """[B, n, G, C, R, *] as [B, n C, H, *]; the other way of `_split`. Without R: [B, n, G, C, *] the same."""
    x = x.transpose(2, 3)
    return x.flatten(3, 4).flatten(1, 2) if x.dim() == 6 else x.flatten(1, 2)


def _wide(x: Tensor, like: Tensor) -> Tensor:
    """[B, n, G, C, R V] as [B, n, G, C, R, V]."""
    return x.unflatten(-1, like.shape[-2:])


def _by_head(x: Tensor) -> Tensor:
    """[B, n, G, C, R, V] as contiguous [B, n, G, R, C, V]."""
    return x.transpose(3, 4).contiguous()


def _enter(state: Tensor, groups: int) -> Tensor:
    """[B, H, K, V] as contiguous [B, G, K, R, V]."""
    return state.unflatten(1, (groups, -1)).transpose(2, 3).contiguous()


def _leave(state: Tensor) -> Tensor:
    """[B, G, K, R, V] as [B, H, K, V]."""
    return state.transpose(2, 3).flatten(1, 2)
