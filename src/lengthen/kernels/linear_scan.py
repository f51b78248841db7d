"""The elementwise linear scan: one real state per channel (RG-LRU, HGRN, minGRU).

B batch, T positions, D channels. State [B, D], float32 (float64 for float64 inputs).

    h_t = exp(g_t) h_{t-1} + gain_t x_t

The output is the state itself. Normalisations of the input, such as the RG-LRU's square root, are the caller's.
"""

import torch
from torch import Tensor

from lengthen.kernels.dispatch import Form, choose_form, compiled
from lengthen.kernels.gradients import tie_chunked
from lengthen.kernels.recurrence import (
    CHUNK,
    check_floating,
    check_sequence,
    check_shape,
    chunks,
    compute_dtype,
    empty_gradients,
    fresh_like,
    needs_gradient,
    scan_chunk,
    scan_chunk_backward,
    slabs,
    time_first,
)


def linear_scan(
    log_decay: Tensor, x: Tensor, input_gain: Tensor | None = None, *, initial_state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Run an elementwise linear recurrence over a sequence.

    Args:
        log_decay: [B, T, D], <= 0; -inf is a decay of exactly 0, with a gradient of exactly 0.
        x: [B, T, D], float32, bfloat16, float16 or float64.
        input_gain: [B, T, D], multiplies x.
        initial_state: [B, D], zeros where left out.

    Returns:
        The states [B, T, D] in x's type and the final state [B, D] in float32 or float64.

    Raises:
        ValueError: a shape does not fit, or there are no positions. TypeError: a type does not fit.

    Source: Martin and Cundy, arXiv 1709.04057, equation 1.
    """
    check_sequence("x", x, "B T D")
    check_shape("log_decay", log_decay, x.shape)
    check_shape("input_gain", input_gain, x.shape)
    check_shape("initial_state", initial_state, (x.shape[0], x.shape[2]))
    check_floating(log_decay=log_decay, x=x, input_gain=input_gain, initial_state=initial_state)
    inputs = (log_decay, x, input_gain, initial_state)
    compute = compute_dtype(*inputs)
    output, final_state, _ = torch.ops.lengthen.linear_scan(
        log_decay,
        x,
        input_gain,
        None if initial_state is None else initial_state.to(compute),
        compute,
        needs_gradient(*inputs),
    )
    return output, final_state


def linear_scan_reference(
    log_decay: Tensor, x: Tensor, input_gain: Tensor | None = None, *, initial_state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The definition of `linear_scan`, position by position in the inputs' own type."""
    write = x if input_gain is None else input_gain * x
    h = torch.zeros_like(x[:, 0]) if initial_state is None else initial_state
    states = []
    for g, u in zip(log_decay.unbind(1), write.unbind(1)):
        h = g.exp() * h + u
        states.append(h)
    return torch.stack(states, 1), h.clone()


@torch.library.custom_op("lengthen::linear_scan", mutates_args=())
def linear_scan_forward(
    log_decay: Tensor,
    x: Tensor,
    input_gain: Tensor | None,
    initial_state: Tensor | None,
    compute: torch.dtype,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, final state, and the states before each chunk [B, chunks, D] (no chunk unless `save`)."""
    output, final_state, checkpoints = _outputs(x, compute, save)
    form = choose_form(log_decay, x, input_gain, initial_state, compiled_function="linear_scan_forward")
    if form is Form.COMPILED:
        assert compiled is not None
        compiled.linear_scan_forward(
            log_decay,
            x,
            input_gain,
            initial_state,
            output,
            final_state,
            checkpoints if save else None,
            CHUNK,
            torch.get_num_threads(),
        )
        return output, final_state, checkpoints
    for rows in slabs(x.shape[0], x.shape[2]):
        state = torch.zeros_like(final_state[rows]) if initial_state is None else initial_state[rows]
        for index, positions in enumerate(chunks(x.shape[1])):
            if save:
                checkpoints[rows, index] = state
            states = scan_chunk(*_read(log_decay, x, input_gain, rows, positions, compute), state)
            output[rows, positions] = states.transpose(0, 1)
            state = states[-1]
        final_state[rows] = state
    return output, final_state, checkpoints


@torch.library.custom_op("lengthen::linear_scan_backward", mutates_args=())
def linear_scan_backward(
    output_gradient: Tensor,
    final_state_gradient: Tensor,
    checkpoints: Tensor,
    log_decay: Tensor,
    x: Tensor,
    input_gain: Tensor | None,
) -> list[Tensor]:
    """Gradients of log_decay, x, input_gain (empty where left out) and initial_state."""
    inputs = (log_decay, x, input_gain)
    gradients = empty_gradients(*inputs)
    dlog_decay, dx, dgain = gradients
    dinitial = torch.empty_like(final_state_gradient, memory_format=torch.contiguous_format)
    form = choose_form(*inputs, output_gradient, compiled_function="linear_scan_backward")
    if form is Form.COMPILED:
        assert compiled is not None
        compiled.linear_scan_backward(
            output_gradient,
            final_state_gradient,
            checkpoints,
            *inputs,
            dlog_decay,
            dx,
            None if input_gain is None else dgain,
            dinitial,
            CHUNK,
            torch.get_num_threads(),
        )
        return [*gradients, dinitial]
    compute = dinitial.dtype
    for rows in slabs(x.shape[0], x.shape[2]):
        dstate = final_state_gradient[rows]
        for index, positions in reversed(list(enumerate(chunks(x.shape[1])))):
            g, write = _read(log_decay, x, input_gain, rows, positions, compute)
            start = checkpoints[rows, index]
            states = scan_chunk(g, write, start)
            own = time_first(output_gradient, rows, positions, compute)
            dstates, dstate = scan_chunk_backward(g, own, dstate)
            before = torch.cat([start.unsqueeze(0), states[:-1]])
            dlog_decay[rows, positions] = (g.exp() * before * dstates).transpose(0, 1)
            dwrite = dstates.transpose(0, 1)
            if input_gain is None:
                dx[rows, positions] = dwrite
            else:
                dx[rows, positions] = dwrite * input_gain[rows, positions]
                dgain[rows, positions] = dwrite * x[rows, positions]
        dinitial[rows] = dstate
    return [*gradients, dinitial]


def _read(
    log_decay: Tensor, x: Tensor, input_gain: Tensor | None, rows: slice, positions: slice, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """A chunk's log-decays and writes, time first."""
    g, write = time_first(log_decay, rows, positions, dtype), time_first(x, rows, positions, dtype)
    return g, write if input_gain is None else write * time_first(input_gain, rows, positions, dtype)


def _outputs(x: Tensor, compute: torch.dtype, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Uninitialised output, final state and checkpoints."""
    batch, positions, channels = x.shape
    kept = len(chunks(positions)) if save else 0
    return (
        fresh_like(x),
        x.new_empty((batch, channels), dtype=compute),
        x.new_empty((batch, kept, channels), dtype=compute),
    )


@linear_scan_forward.register_fake
def _(log_decay, x, input_gain, initial_state, compute, save):  # type: ignore[no-untyped-def]
    return _outputs(x, compute, save)


tie_chunked(linear_scan_forward, linear_scan_backward)
