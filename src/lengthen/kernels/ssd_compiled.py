"""The compiled form of `ssd`: allocates what the extension's two functions fill.

Dims: B batch, T positions, H heads, G groups of heads sharing query and key, K key dim, V value dim.
"""

import torch
from torch import Tensor

from lengthen.kernels.dispatch import compiled
from lengthen.kernels.recurrence import fresh_like
from lengthen.kernels.ssd_chunked import SEGMENT


def ssd_compiled_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    input_gain: Tensor | None,
    skip: Tensor | None,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, final state, and the states between segments [B, segments - 1, H, K, V]."""
    assert compiled is not None
    batch, positions, heads, value_dim = value.shape
    state = (heads, query.shape[3], value_dim)
    output = fresh_like(value)
    final_state = value.new_empty((batch, *state), dtype=torch.float32)
    boundary_states = final_state.new_empty((batch, (positions - 1) // SEGMENT, *state))
    compiled.ssd_forward(
        query,
        key,
        value,
        log_decay,
        input_gain,
        None if skip is None else skip.float(),
        initial_state,
        output,
        final_state,
        boundary_states.flatten(1, 2),
        SEGMENT,
        _blocks(query, value),
        torch.get_num_threads(),
    )
    return output, final_state, boundary_states


def ssd_compiled_backward(
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
    assert compiled is not None
    batch, _, heads, _ = value.shape
    blocks = _blocks(query, value)
    # Where several tasks share out a group's heads, each writes its own sum for query and key.
    d_query, d_key = (
        fresh_like(x, shape=(blocks * batch, *x.shape[1:]), dtype=x.dtype if blocks == 1 else torch.float32)
        for x in (query, key)
    )
    d_value, d_log_decay = fresh_like(value), log_decay.new_empty(log_decay.shape)
    d_gain = None if input_gain is None else input_gain.new_empty(input_gain.shape)
    d_skip = None if skip is None else skip.new_empty((batch, heads), dtype=torch.float32)
    d_initial = None
    if initial_state is not None and initial_state_wanted:
        d_initial = initial_state.new_empty(initial_state.shape, dtype=torch.float32)
    compiled.ssd_backward(
        output_gradient,
        final_state_gradient,
        query,
        key,
        value,
        log_decay,
        input_gain,
        None if skip is None else skip.float(),
        initial_state,
        boundary_states.flatten(1, 2),
        d_query,
        d_key,
        d_value,
        d_log_decay,
        d_gain,
        d_skip,
        d_initial,
        SEGMENT,
        blocks,
        torch.get_num_threads(),
    )
    if blocks > 1:
        d_query = d_query.view(blocks, *query.shape).sum(0).to(query.dtype)
        d_key = d_key.view(blocks, *key.shape).sum(0).to(key.dtype)
    return (
        d_query,
        d_key,
        d_value,
        d_log_decay,
        value.new_empty(0) if d_gain is None else d_gain,
        value.new_empty(0) if d_skip is None or skip is None else d_skip.sum(0).to(skip.dtype),
        value.new_empty(0) if d_initial is None or initial_state is None else d_initial.to(initial_state.dtype),
    )


def _blocks(query: Tensor, value: Tensor) -> int:
    """Into how many tasks the heads of a group are cut, so that the threads share the work evenly."""
    threads = torch.get_num_threads()
    batch, _, groups, _ = query.shape
    heads = value.shape[2] // groups
    for blocks in range(1, heads):
        tasks = batch * groups * blocks
        if tasks >= 4 * threads or (tasks % threads == 0 and heads % blocks == 0):
            return blocks
    return heads
