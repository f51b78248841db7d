"""RWKV-7's recurrence: a matrix state with a diagonal-plus-rank-one transition.

B batch, T positions, H heads, K key dim, V value dim. State [B, H, K, V], float32 (float64 for float64 inputs);
RWKV's own layout [value, key] is its transpose.

    h_t = diag(exp(w_t)) h_{t-1} + b_t (a_t^T h_{t-1}) + gain_t k_t v_t^T
    y_t = h_t^T r_t

In RWKV-7's words a is -kappa_hat and b is kappa_hat times the in-context learning rate.
"""

import torch
from torch import Tensor

from lengthen.kernels.cuda_libraries import rwkv7_by_library, rwkv7_kernel
from lengthen.kernels.dispatch import Form, choose_form, compiled
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
from lengthen.kernels.rwkv7_portable import portable_backward, portable_forward


def rwkv7(
    receptance: Tensor,
    log_decay: Tensor,
    key: Tensor,
    value: Tensor,
    a: Tensor,
    b: Tensor,
    input_gain: Tensor | None = None,
    *,
    reset: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run RWKV-7's recurrence over a sequence.

    Args:
        receptance: [B, T, H, K], float32, bfloat16, float16 or float64.
        log_decay: [B, T, H, K], <= 0; -inf is a decay of exactly 0, with a gradient of exactly 0. The rank-one part
            of the transition goes on then: a reset zeroes it too.
        key: [B, T, H, K].
        value: [B, T, H, V].
        a: [B, T, H, K], reads the state before the position.
        b: [B, T, H, K], writes what `a` read.
        input_gain: [B, T, H], multiplies the write of key and value only.
        reset: [B, T] bool; nothing before these positions reaches them.
        initial_state: [B, H, K, V], zeros where left out.

    Returns:
        The output [B, T, H, V] in value's type and the final state [B, H, K, V] in float32 or float64.

    Raises:
        ValueError: a shape does not fit, or there are no positions. TypeError: a type does not fit.

    Source: Peng et al., arXiv 2503.14456, equation 17.
    """
    check_sequence("key", key, "B T H K")
    check_sequence("value", value, "B T H V")
    batch, positions, heads, dim = key.shape
    for name, tensor in {"receptance": receptance, "log_decay": log_decay, "a": a, "b": b}.items():
        check_shape(name, tensor, key.shape)
    check_shape("value", value, (batch, positions, heads, value.shape[-1]))
    check_shape("input_gain", input_gain, (batch, positions, heads))
    check_shape("reset", reset, (batch, positions))
    check_shape("initial_state", initial_state, (batch, heads, dim, value.shape[-1]))
    check_floating(receptance=receptance, log_decay=log_decay, key=key, value=value, a=a, b=b)
    check_floating(input_gain=input_gain, initial_state=initial_state)
    if reset is not None:
        if reset.dtype != torch.bool:
            raise TypeError(f"reset is {reset.dtype}, but needs torch.bool")
        log_decay = log_decay.masked_fill(reset[..., None, None], -torch.inf)
        a = a.masked_fill(reset[..., None, None], 0)
    inputs = (receptance, log_decay, key, value, a, b, input_gain, initial_state)
    if value.is_cuda:
        kernel = rwkv7_kernel(key, value)
        form = choose_form(*inputs, compiled_function="rwkv7_forward", cuda_library=kernel is not None)
        if kernel is not None and form is Form.CUDA_LIBRARY:
            return rwkv7_by_library(kernel, *inputs)
    compute = compute_dtype(*inputs)
    output, final_state, _ = torch.ops.lengthen.rwkv7(
        *inputs[:-1],
        None if initial_state is None else initial_state.to(compute),
        compute,
        needs_gradient(*inputs),
    )
    return output, final_state


def rwkv7_reference(
    receptance: Tensor,
    log_decay: Tensor,
    key: Tensor,
    value: Tensor,
    a: Tensor,
    b: Tensor,
    input_gain: Tensor | None = None,
    *,
    reset: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition of `rwkv7`, position by position in the inputs' own type."""
    batch, positions, heads, dim = key.shape
    h = value.new_zeros(batch, heads, dim, value.shape[-1]) if initial_state is None else initial_state
    written = key if input_gain is None else input_gain[..., None] * key
    outputs = []
    for t in range(positions):
        if reset is not None:
            h = torch.where(reset[:, t, None, None, None], 0.0, h)
        read = (a[:, t, ..., None] * h).sum(-2, keepdim=True)
        h = log_decay[:, t, ..., None].exp() * h + b[:, t, ..., None] * read
        h = h + written[:, t, ..., None] * value[:, t, :, None]
        outputs.append((h * receptance[:, t, ..., None]).sum(-2))
    return torch.stack(outputs, 1), h


@torch.library.custom_op("lengthen::rwkv7", mutates_args=())
def rwkv7_forward(
    receptance: Tensor,
    log_decay: Tensor,
    key: Tensor,
    value: Tensor,
    a: Tensor,
    b: Tensor,
    input_gain: Tensor | None,
    initial_state: Tensor | None,
    compute: torch.dtype,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, final state, and the states before each chunk [B, chunks, H * K, V] (no chunk unless `save`)."""
    output, final_state, checkpoints = matrix_outputs(key, value, compute, save)
    inputs = (receptance, log_decay, key, value, a, b, input_gain)
    form = choose_form(*inputs, initial_state, compiled_function="rwkv7_forward")
    if form is Form.COMPILED:
        assert compiled is not None
        compiled.rwkv7_forward(
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


@torch.library.custom_op("lengthen::rwkv7_backward", mutates_args=())
def rwkv7_backward(
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
) -> list[Tensor]:
    """Gradients of receptance to input_gain, in that order (empty for one left out), and of initial_state."""
    inputs = (receptance, log_decay, key, value, a, b, input_gain)
    gradients = empty_gradients(*inputs)
    dinitial = torch.empty_like(final_state_gradient, memory_format=torch.contiguous_format)
    form = choose_form(*inputs, output_gradient, compiled_function="rwkv7_backward")
    if form is Form.COMPILED:
        assert compiled is not None
        compiled.rwkv7_backward(
            output_gradient,
            final_state_gradient,
            checkpoints,
            *inputs,
            *gradients[:6],
            None if input_gain is None else gradients[6],
            dinitial,
            CHUNK,
            torch.get_num_threads(),
        )
    else:
        portable_backward(output_gradient, final_state_gradient, checkpoints, *inputs, gradients, dinitial)
    return [*gradients, dinitial]


@rwkv7_forward.register_fake
def _(receptance, log_decay, key, value, a, b, input_gain, initial, compute, save):  # type: ignore[no-untyped-def]
    return matrix_outputs(key, value, compute, save)


tie_chunked(rwkv7_forward, rwkv7_backward)
