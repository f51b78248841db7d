"""State space duality: the recurrence with one decay per head, of Mamba-2, RetNet and lightning attention.

Dims: B batch, T positions, H heads, G groups of heads sharing query and key, K key (state) dim, V value dim.

For every head, with the log-decay g_t <= 0, the input gain i_t and the state h of shape [K, V]:

    h_t = exp(g_t) h_{t-1} + i_t k_t v_t^T
    y_t = h_t^T q_t + skip v_t

In Mamba-2's words: query is C, key is B, value is x, log_decay is dt A, input_gain is dt, skip is D.
A log-decay of -inf forgets everything before its position, exactly, and its gradient is zero.
"""

import torch
from torch import Tensor

from lengthen.kernels.cuda_libraries import ssd_by_library, ssd_kernel
from lengthen.kernels.dispatch import Form, choose_form
from lengthen.kernels.gradients import tie_segmented
from lengthen.kernels.recurrence import check_floating, check_sequence, check_shape, compute_dtype
from lengthen.kernels.ssd_chunked import SEGMENT, ssd_chunked_backward, ssd_chunked_forward
from lengthen.kernels.ssd_compiled import ssd_compiled_backward, ssd_compiled_forward


def ssd(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    input_gain: Tensor | None = None,
    *,
    skip: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the scalar-decay recurrence over a segment, from a state to a state.

    Args:
        query: [B, T, G, K], read at every position after the write (C of Mamba-2).
        key: [B, T, G, K], where the value is written (B of Mamba-2). G divides H.
        value: [B, T, H, V] (x of Mamba-2).
        log_decay: [B, T, H], at most 0; -inf is a decay of exactly 0 with a gradient of exactly 0.
        input_gain: [B, T, H], multiplies what is written and nothing else (dt of Mamba-2); 1 when left out.
        skip: [H], adds skip * value to the output (D of Mamba-2).
        initial_state: [B, H, K, V], zero when left out.

    Returns:
        output [B, T, H, V] in value's dtype, and final_state [B, H, K, V] in fp32 (float64 for float64 values),
        never the initial state's storage. Gradients reach every tensor argument from both.

    Raises:
        ValueError: a shape does not fit, or T is 0.
        TypeError: an argument is not floating point.

    Source: Dao and Gu, Transformers are SSMs, 2024 (arXiv 2405.21060), section 6.
    """
    _check(query, key, value, log_decay, input_gain, skip, initial_state)
    inputs = (query, key, value, log_decay, input_gain, skip, initial_state)
    if value.is_cuda:
        kernel = ssd_kernel(query, value)
        form = choose_form(*inputs, compiled_function="ssd_forward", cuda_library=kernel is not None)
        if kernel is not None and form is Form.CUDA_LIBRARY:
            return ssd_by_library(kernel, *inputs)
    output, final_state, _ = ssd_forward(*inputs)
    return output, final_state


def ssd_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    input_gain: Tensor | None = None,
    *,
    skip: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition of `ssd`, position by position; same arguments and results."""
    _check(query, key, value, log_decay, input_gain, skip, initial_state)
    dtype = compute_dtype(value)
    batch, _, heads, value_dim = value.shape
    groups, key_dim = query.shape[2:]
    q = query.to(dtype).repeat_interleave(heads // groups, 2)
    k = key.to(dtype).repeat_interleave(heads // groups, 2)
    v = value.to(dtype)
    decay = log_decay.to(dtype).exp()
    written = v if input_gain is None else v * input_gain.to(dtype).unsqueeze(-1)
    state = v.new_zeros(batch, heads, key_dim, value_dim) if initial_state is None else initial_state.to(dtype)
    outputs = []
    for q_t, k_t, v_t, decay_t in zip(q.unbind(1), k.unbind(1), written.unbind(1), decay.unbind(1)):
        state = decay_t[..., None, None] * state + k_t.unsqueeze(-1) * v_t.unsqueeze(-2)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q_t))
    output = torch.stack(outputs, 1)
    if skip is not None:
        output = output + skip.to(dtype).unsqueeze(-1) * v
    return output.to(value.dtype), state


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    input_gain: Tensor | None,
    skip: Tensor | None,
    initial_state: Tensor | None,
) -> None:
    check_sequence("query", query, "B T G K")
    check_sequence("value", value, "B T H V")
    batch, positions, heads, value_dim = value.shape
    groups, key_dim = query.shape[2:]
    if groups == 0 or heads % groups:
        raise ValueError(f"query has {groups} groups, but needs a number that divides the {heads} heads of value")
    check_shape("query", query, (batch, positions, groups, key_dim))
    check_shape("key", key, (batch, positions, groups, key_dim))
    check_shape("log_decay", log_decay, (batch, positions, heads))
    check_shape("input_gain", input_gain, (batch, positions, heads))
    check_shape("skip", skip, (heads,))
    check_shape("initial_state", initial_state, (batch, heads, key_dim, value_dim))
    check_floating(query=query, key=key, value=value, log_decay=log_decay, input_gain=input_gain)
    check_floating(skip=skip, initial_state=initial_state)


@torch.library.custom_op("lengthen::ssd_forward", mutates_args=())
def ssd_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    input_gain: Tensor | None,
    skip: Tensor | None,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, final state, and the states between segments of SEGMENT positions [B, segments - 1, H, K, V]."""
    inputs = (query, key, value, log_decay, input_gain, skip, initial_state)
    if choose_form(*inputs, compiled_function="ssd_forward") is Form.COMPILED:
        return ssd_compiled_forward(*inputs)
    return ssd_chunked_forward(*inputs)


@ssd_forward.register_fake
def _(query, key, value, log_decay, input_gain, skip, initial_state):  # type: ignore[no-untyped-def]
    batch, positions, heads, value_dim = value.shape
    state = (batch, heads, query.shape[3], value_dim)
    dtype = compute_dtype(value)
    boundaries = (positions - 1) // SEGMENT
    return (
        value.new_empty(value.shape),
        value.new_empty(state, dtype=dtype),
        value.new_empty((batch, boundaries, *state[1:]), dtype=dtype),
    )


@torch.library.custom_op("lengthen::ssd_backward", mutates_args=())
def ssd_backward(
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
    inputs = (query, key, value, log_decay, input_gain, skip, initial_state)
    form = choose_form(output_gradient, final_state_gradient, *inputs, compiled_function="ssd_backward")
    backward = ssd_compiled_backward if form is Form.COMPILED else ssd_chunked_backward
    return backward(output_gradient, final_state_gradient, *inputs, boundary_states, initial_state_wanted)


tie_segmented(ssd_forward, ssd_backward)
