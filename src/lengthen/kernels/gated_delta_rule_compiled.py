"""The compiled form of `gated_delta_rule` for one decay a head: allocates what the extension's two functions fill.

Dims: B batch, T positions, H heads, K key dim, V value dim.
"""

import torch
from torch import Tensor

from lengthen.kernels.dispatch import compiled
from lengthen.kernels.gated_delta_rule_portable import segment_length
from lengthen.kernels.recurrence import fresh_like


def delta_rule_compiled_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    beta: Tensor,
    input_gain: Tensor | None,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, final state, and the states between segments [B, segments - 1, H, K, V]."""
    assert compiled is not None
    batch, positions, heads, value_dim = value.shape
    state = (heads, query.shape[3], value_dim)
    segment = segment_length(log_decay)
    output = fresh_like(value)
    final_state = value.new_empty((batch, *state), dtype=torch.float32)
    boundary_states = final_state.new_empty((batch, (positions - 1) // segment, *state))
    compiled.gated_delta_rule_forward(
        query,
        key,
        value,
        log_decay,
        beta,
        input_gain,
        initial_state,
        output,
        final_state,
        boundary_states.flatten(1, 2),
        segment,
        torch.get_num_threads(),
    )
    return output, final_state, boundary_states


def delta_rule_compiled_backward(
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
    assert compiled is not None
    d_query, d_key, d_value, d_beta = (fresh_like(x) for x in (query, key, value, beta))
    d_log_decay, d_gain = (None if x is None else x.new_empty(x.shape) for x in (log_decay, input_gain))
    d_initial = None
    if initial_state is not None and initial_state_wanted:
        d_initial = initial_state.new_empty(initial_state.shape, dtype=torch.float32)
    compiled.gated_delta_rule_backward(
        output_gradient,
        final_state_gradient,
        query,
        key,
        value,
        log_decay,
        beta,
        input_gain,
        initial_state,
        boundary_states.flatten(1, 2),
        d_query,
        d_key,
        d_value,
        d_log_decay,
        d_beta,
        d_gain,
        d_initial,
        segment_length(log_decay),
        torch.get_num_threads(),
    )
    return (
        d_query,
        d_key,
        d_value,
        value.new_empty(0) if d_log_decay is None else d_log_decay,
        d_beta,
        value.new_empty(0) if d_gain is None else d_gain,
        value.new_empty(0) if d_initial is None or initial_state is None else d_initial.to(initial_state.dtype),
    )
