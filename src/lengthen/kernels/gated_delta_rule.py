"""The gated delta rule: a state that is corrected towards each value, of (Gated) DeltaNet, Qwen3-Next, Kimi's attention.

Dims: B batch, T positions, H heads, G groups of heads sharing query and key, K key (state) dim, V value dim.

For every head, with the log-decay g_t <= 0 (one number, or one for each key channel), the step beta_t, the input gain
i_t and the state h of shape [K, V]:

    d_t = exp(g_t) h_{t-1}
    h_t = d_t + beta_t k_t (i_t v_t - d_t^T k_t)^T
    y_t = h_t^T q_t

Keys should have unit norm (their norm and the query's scale are the caller's). Without a decay this is DeltaNet.
A log-decay of -inf forgets everything before its position, exactly, and its gradient is zero.
"""

import torch
from torch import Tensor

from lengthen.kernels.cuda_libraries import gated_delta_rule_by_library, gated_delta_rule_kernel
from lengthen.kernels.dispatch import Form, choose_form
from lengthen.kernels.gated_delta_rule_compiled import delta_rule_compiled_backward, delta_rule_compiled_forward
from lengthen.kernels.gated_delta_rule_portable import (
    delta_rule_portable_backward,
    delta_rule_portable_forward,
    segment_length,
)
from lengthen.kernels.gradients import tie_segmented
from lengthen.kernels.recurrence import check_floating, check_sequence, check_shape, compute_dtype
from lengthen.kernels.rwkv7 import rwkv7


def gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    beta: Tensor,
    input_gain: Tensor | None = None,
    *,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the gated delta rule over a segment, from a state to a state.

    Args:
        query: [B, T, G, K], read at every position after the write.
        key: [B, T, G, K], of unit norm. G divides H.
        value: [B, T, H, V].
        log_decay: [B, T, H], or [B, T, H, K] for a decay per key channel, at most 0; -inf is a decay of exactly 0
            with a gradient of exactly 0; None for no decay.
        beta: [B, T, H], how far the state is corrected, in [0, 1] (or [0, 2]).
        input_gain: [B, T, H], multiplies the value that is written and nothing else; 1 when left out.
        initial_state: [B, H, K, V], zero when left out.

    Returns:
        output [B, T, H, V] in value's dtype, and final_state [B, H, K, V] in fp32 (float64 for float64 values), never
        the initial state's storage. Gradients reach every tensor argument from both.

    Raises:
        ValueError: a shape does not fit, or T is 0.
        TypeError: an argument is not floating point.

    Source: Yang et al., Gated Delta Networks, 2024 (arXiv 2412.06464); per channel: Kimi Linear (arXiv 2510.26692).
    """
    _check(query, key, value, log_decay, beta, input_gain, initial_state)
    if value.is_cuda:
        kernel = gated_delta_rule_kernel(query, value, log_decay)
        tensors = (query, key, value, log_decay, beta, input_gain, initial_state)
        form = choose_form(*tensors, compiled_function="gated_delta_rule_forward", cuda_library=kernel is not None)
        if kernel is not None and form is Form.CUDA_LIBRARY:
            return gated_delta_rule_by_library(kernel, *tensors)
    sharing = value.shape[2] // query.shape[2]
    if sharing > 1:
        query, key = query.repeat_interleave(sharing, 2), key.repeat_interleave(sharing, 2)
    inputs = (query, key, value, log_decay, beta, input_gain, initial_state)
    form = choose_form(*inputs, compiled_function="rwkv7_forward")
    if log_decay is not None and log_decay.dim() == 4 and form is Form.COMPILED:
        # d^T k = h^T (exp(g) k): RWKV-7's transition, whose compiled kernel takes decays per channel.
        key, log_decay = key.float(), log_decay.float()
        write = beta.float().unsqueeze(-1) * key
        removed = -log_decay.exp() * key
        return rwkv7(query, log_decay, write, value, removed, write, input_gain, initial_state=initial_state)
    output, final_state, _ = gated_delta_rule_forward(*inputs)
    return output, final_state


def gated_delta_rule_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    beta: Tensor,
    input_gain: Tensor | None = None,
    *,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition of `gated_delta_rule`, position by position; same arguments and results."""
    _check(query, key, value, log_decay, beta, input_gain, initial_state)
    dtype = compute_dtype(value)
    batch, positions, heads, value_dim = value.shape
    sharing, key_dim = heads // query.shape[2], query.shape[3]
    q, k = (x.to(dtype).repeat_interleave(sharing, 2) for x in (query, key))
    written = value.to(dtype) if input_gain is None else value.to(dtype) * input_gain.to(dtype).unsqueeze(-1)
    state = written.new_zeros(batch, heads, key_dim, value_dim) if initial_state is None else initial_state.to(dtype)
    outputs = []
    for t in range(positions):
        if log_decay is not None:
            decay = log_decay[:, t].to(dtype).exp()
            state = decay.view(batch, heads, -1, 1) * state
        predicted = torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        update = beta[:, t].to(dtype).unsqueeze(-1) * (written[:, t] - predicted)
        state = state + k[:, t].unsqueeze(-1) * update.unsqueeze(-2)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outputs, 1).to(value.dtype), state.clone()


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    beta: Tensor,
    input_gain: Tensor | None,
    initial_state: Tensor | None,
) -> None:
    check_sequence("query", query, "B T G K")
    check_sequence("value", value, "B T H V")
    batch, positions, heads, value_dim = value.shape
    groups, key_dim = query.shape[2:]
    if groups == 0 or heads % groups:
        raise ValueError(f"query has {groups} groups, but needs a number that divides the {heads} heads of value")
    column = (batch, positions, heads)
    check_shape("query", query, (batch, positions, groups, key_dim))
    check_shape("key", key, (batch, positions, groups, key_dim))
    per_channel = log_decay is not None and log_decay.dim() == 4
    check_shape("log_decay", log_decay, (*column, key_dim) if per_channel else column)
    check_shape("beta", beta, column)
    check_shape("input_gain", input_gain, column)
    check_shape("initial_state", initial_state, (batch, heads, key_dim, value_dim))
    check_floating(query=query, key=key, value=value, log_decay=log_decay, beta=beta, input_gain=input_gain)
    check_floating(initial_state=initial_state)


def _compiled_serves(log_decay: Tensor | None, form: Form) -> bool:
    return form is Form.COMPILED and (log_decay is None or log_decay.dim() == 3)


@torch.library.custom_op("lengthen::gated_delta_rule_forward", mutates_args=())
def gated_delta_rule_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    beta: Tensor,
    input_gain: Tensor | None,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, final state, and the states between segments [B, segments - 1, H, K, V]; query and key have H heads."""
    inputs = (query, key, value, log_decay, beta, input_gain, initial_state)
    form = choose_form(*inputs, compiled_function="gated_delta_rule_forward")
    forward = delta_rule_compiled_forward if _compiled_serves(log_decay, form) else delta_rule_portable_forward
    return forward(*inputs)


@gated_delta_rule_forward.register_fake
def _(query, key, value, log_decay, beta, input_gain, initial_state):  # type: ignore[no-untyped-def]
    batch, positions, heads, value_dim = value.shape
    state = (heads, query.shape[3], value_dim)
    dtype = compute_dtype(value)
    boundaries = (positions - 1) // segment_length(log_decay)
    return (
        value.new_empty(value.shape),
        value.new_empty((batch, *state), dtype=dtype),
        value.new_empty((batch, boundaries, *state), dtype=dtype),
    )


@torch.library.custom_op("lengthen::gated_delta_rule_backward", mutates_args=())
def gated_delta_rule_backward(
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
    inputs = (query, key, value, log_decay, beta, input_gain, initial_state)
    form = choose_form(output_gradient, final_state_gradient, *inputs, compiled_function="gated_delta_rule_backward")
    backward = delta_rule_compiled_backward if _compiled_serves(log_decay, form) else delta_rule_portable_backward
    return backward(output_gradient, final_state_gradient, *inputs, boundary_states, initial_state_wanted)


tie_segmented(gated_delta_rule_forward, gated_delta_rule_backward)
