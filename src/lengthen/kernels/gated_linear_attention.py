"""Gated linear attention: a matrix state whose every key channel decays at its own rate (GLA, HGRN-2, RWKV-6).

B batch, T positions, H heads, K key dim, V value dim. State [B, H, K, V], float32 (float64 for float64 inputs).

    h_t = diag(exp(g_t)) h_{t-1} + gain_t k_t v_t^T
    y_t = h_t^T q_t                                     without a bonus
    y_t = (h_{t-1} + diag(bonus) k_t v_t^T)^T q_t       with one
"""

import torch
from torch import Tensor

from lengthen.kernels.cuda_libraries import gated_linear_attention_by_library, gated_linear_attention_kernel
from lengthen.kernels.dispatch import Form, choose_form, compiled
from lengthen.kernels.gated_linear_attention_portable import portable_backward, portable_forward
from lengthen.kernels.gradients import tie_chunked
from lengthen.kernels.recurrence import (
    CHUNK,
    check_floating,
    check_sequence,
    check_shape,
    compute_dtype,
    empty_gradients,
    matrix_outputs,
    needs_gradient,
)


def gated_linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    input_gain: Tensor | None = None,
    *,
    bonus: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run linear attention with a decay vector per head over a sequence.

    Args:
        query: [B, T, H, K], float32, bfloat16, float16 or float64; scaling is the caller's.
        key: [B, T, H, K].
        value: [B, T, H, V].
        log_decay: [B, T, H, K], <= 0; -inf is a decay of exactly 0, with a gradient of exactly 0.
        input_gain: [B, T, H], multiplies the write only.
        bonus: [H, K], RWKV-6's u: the output then reads the state before the write, and the current position
            through this weight.
        initial_state: [B, H, K, V], zeros where left out.

    Returns:
        The output [B, T, H, V] in value's type and the final state [B, H, K, V] in float32 or float64.

    Raises:
        ValueError: a shape does not fit, or there are no positions. TypeError: a type does not fit.

    Source: Yang et al., arXiv 2312.06635, equation 3; Peng et al., arXiv 2404.05892, section 4.
    """
    _check(query, key, value, log_decay, input_gain, bonus, initial_state)
    inputs = (query, key, value, log_decay, input_gain, bonus, initial_state)
    if value.is_cuda:
        kernel = gated_linear_attention_kernel(key, value, bonus)
        function = "gated_linear_attention_forward"
        form = choose_form(*inputs, compiled_function=function, cuda_library=kernel is not None)
        if kernel is not None and form is Form.CUDA_LIBRARY:
            return gated_linear_attention_by_library(kernel, *inputs)
    compute = compute_dtype(*inputs)
    output, final_state, _ = torch.ops.lengthen.gated_linear_attention(
        query,
        key,
        value,
        log_decay,
        input_gain,
        None if bonus is None else bonus.to(compute),
        None if initial_state is None else initial_state.to(compute),
        compute,
        needs_gradient(*inputs),
    )
    return output, final_state


def gated_linear_attention_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    input_gain: Tensor | None = None,
    *,
    bonus: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition of `gated_linear_attention`, position by position in the inputs' own type."""
    batch, _, heads, dim = query.shape
    h = value.new_zeros(batch, heads, dim, value.shape[-1]) if initial_state is None else initial_state
    outputs = []
    for t, (q, k, v, g) in enumerate(zip(query.unbind(1), key.unbind(1), value.unbind(1), log_decay.unbind(1))):
        outer = k[..., None] * v[..., None, :]
        read = None if bonus is None else h + bonus[..., None] * outer
        h = g.exp()[..., None] * h + (outer if input_gain is None else input_gain[:, t, :, None, None] * outer)
        outputs.append(((h if read is None else read) * q[..., None]).sum(-2))
    return torch.stack(outputs, 1), h


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    input_gain: Tensor | None,
    bonus: Tensor | None,
    initial_state: Tensor | None,
) -> None:
    check_sequence("query", query, "B T H K")
    check_sequence("value", value, "B T H V")
    batch, positions, heads, dim = query.shape
    check_shape("key", key, query.shape)
    check_shape("value", value, (batch, positions, heads, value.shape[-1]))
    check_shape("log_decay", log_decay, query.shape)
    check_shape("input_gain", input_gain, (batch, positions, heads))
    check_shape("bonus", bonus, (heads, dim))
    check_shape("initial_state", initial_state, (batch, heads, dim, value.shape[-1]))
    check_floating(query=query, key=key, value=value, log_decay=log_decay, input_gain=input_gain, bonus=bonus)
    check_floating(initial_state=initial_state)


@torch.library.custom_op("lengthen::gated_linear_attention", mutates_args=())
def gated_linear_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    input_gain: Tensor | None,
    bonus: Tensor | None,
    initial_state: Tensor | None,
    compute: torch.dtype,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, final state, and the states before each chunk [B, chunks, H * K, V] (no chunk unless `save`)."""
    output, final_state, checkpoints = matrix_outputs(query, value, compute, save)
    inputs = (query, key, value, log_decay, input_gain, bonus)
    form = choose_form(*inputs, initial_state, compiled_function="gated_linear_attention_forward")
    if form is Form.COMPILED:
        assert compiled is not None
        compiled.gated_linear_attention_forward(
            *inputs,
            initial_state,
            output,
            final_state,
            checkpoints if save else None,
            CHUNK,
            torch.get_num_threads(),
        )
    else:
        portable_forward(*inputs, initial_state, output, final_state, checkpoints if save else None)
    return output, final_state, checkpoints


@torch.library.custom_op("lengthen::gated_linear_attention_backward", mutates_args=())
def gated_linear_attention_backward(
    output_gradient: Tensor,
    final_state_gradient: Tensor,
    checkpoints: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    input_gain: Tensor | None,
    bonus: Tensor | None,
) -> list[Tensor]:
    """Gradients of query to bonus, in that order, and of initial_state; an empty tensor for one left out."""
    inputs = (query, key, value, log_decay, input_gain, bonus)
    gradients = empty_gradients(*inputs)
    dinitial = torch.empty_like(final_state_gradient, memory_format=torch.contiguous_format)
    form = choose_form(*inputs, output_gradient, compiled_function="gated_linear_attention_backward")
    if form is Form.COMPILED:
        assert compiled is not None
        batch, _, heads, dim = query.shape
        dbonus = dinitial.new_empty(batch, heads, dim)
        compiled.gated_linear_attention_backward(
            output_gradient,
            final_state_gradient,
            checkpoints,
            *inputs,
            *gradients[:4],
            None if input_gain is None else gradients[4],
            dbonus,
            dinitial,
            CHUNK,
            torch.get_num_threads(),
        )
        if bonus is not None:
            gradients[5] = dbonus.sum(0)
    else:
        portable_backward(output_gradient, final_state_gradient, checkpoints, *inputs, gradients, dinitial)
    return [*gradients, dinitial]


@gated_linear_attention_forward.register_fake
def _(query, key, value, log_decay, input_gain, bonus, initial, compute, save):  # type: ignore[no-untyped-def]
    return matrix_outputs(query, value, compute, save)


tie_chunked(gated_linear_attention_forward, gated_linear_attention_backward)
