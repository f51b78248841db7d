"""Mamba-1's selective scan: a diagonal state per channel, with steps, writes and reads chosen by the input.

B batch, T positions, D channels, N state per channel. State [B, D, N], float32 (float64 for float64 inputs).

    h_t[d,n] = exp(A[d,n] dt_t[d]) h_{t-1}[d,n] + dt_t[d] gain_t[d] x_t[d] B_t[n]
    y_t[d]   = (sum_n C_t[n] h_t[d,n] + skip[d] x_t[d]) silu(gate_t[d])
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from lengthen.kernels.cuda_libraries import selective_scan_by_library, selective_scan_kernel
from lengthen.kernels.dispatch import Form, choose_form, compiled
from lengthen.kernels.recurrence import (
    CHUNK,
    check_floating,
    check_sequence,
    check_shape,
    chunks,
    compute_dtype,
    needs_gradient,
)
from lengthen.kernels.selective_scan_portable import Inputs, portable_backward, portable_forward

CHANNEL_GROUP = 128  # channels of one compiled task, as csrc/selective_scan.cpp has it


def selective_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    skip: Tensor | None = None,
    gate: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    input_gain: Tensor | None = None,
    decay_dt: Tensor | None = None,
    reset: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Run Mamba-1's recurrence over a sequence.

    Args:
        x: [B, T, D], float32, bfloat16, float16 or float64.
        dt: [B, T, D], the step, >= 0 after `dt_bias` and `dt_softplus`.
        A: [D, N], negative: the log-decay of one unit of step.
        B: [B, T, N], what a position writes.
        C: [B, T, N], what a position reads.
        skip: [D], Mamba's D; `skip * x` is added to the output.
        gate: [B, T, D]; the output is multiplied by silu(gate).
        dt_bias: [D], added to dt.
        dt_softplus: whether the step is softplus(dt + dt_bias).
        input_gain: [B, T, D], multiplies the write only.
        decay_dt: [B, T, D], >= 0, the step that the decay uses in place of dt's; infinity is a decay of 0.
        reset: [B, T] bool; the state is zeroed before these positions.
        initial_state: [B, D, N], zeros where left out.

    Returns:
        The output [B, T, D] in x's type and the final state [B, D, N] in float32 or float64.

    Raises:
        ValueError: a shape does not fit, or there are no positions. TypeError: a type does not fit.

    Source: Gu and Dao, arXiv 2312.00752, algorithm 2.
    """
    _check(x, dt, A, B, C, skip, gate, dt_bias, input_gain, decay_dt, reset, initial_state)
    inputs = (x, dt, A, B, C, skip, gate, dt_bias, input_gain, decay_dt, initial_state)
    if x.is_cuda:
        kernel = selective_scan_kernel(x, A, decay_dt, reset)
        form = choose_form(*inputs, compiled_function="selective_scan_forward", cuda_library=kernel is not None)
        if kernel is not None and form is Form.CUDA_LIBRARY:
            return selective_scan_by_library(
                kernel,
                x,
                dt,
                A,
                B,
                C,
                skip=skip,
                gate=gate,
                dt_bias=dt_bias,
                dt_softplus=dt_softplus,
                input_gain=input_gain,
                initial_state=initial_state,
            )
    compute = compute_dtype(*inputs)
    output, final_state, _ = torch.ops.lengthen.selective_scan(
        x,
        dt,
        A.to(compute),
        B,
        C,
        None if skip is None else skip.to(compute),
        gate,
        None if dt_bias is None else dt_bias.to(compute),
        input_gain,
        decay_dt,
        reset,
        None if initial_state is None else initial_state.to(compute),
        dt_softplus,
        needs_gradient(*inputs),
    )
    return output, final_state


def selective_scan_reference(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    skip: Tensor | None = None,
    gate: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    input_gain: Tensor | None = None,
    decay_dt: Tensor | None = None,
    reset: Tensor | None = None,
    initial_state: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition of `selective_scan`, position by position in the inputs' own type."""
    step = dt if dt_bias is None else dt + dt_bias
    step = F.softplus(step) if dt_softplus else step
    write = step * x if input_gain is None else step * x * input_gain
    decay_step = step if decay_dt is None else decay_dt
    h = x.new_zeros(*x.shape[::2], A.shape[1]) if initial_state is None else initial_state
    outputs = []
    for t, (d, u, b, c) in enumerate(zip(decay_step.unbind(1), write.unbind(1), B.unbind(1), C.unbind(1))):
        if reset is not None:
            h = torch.where(reset[:, t, None, None], 0.0, h)
        h = torch.exp(d[..., None] * A) * h + u[..., None] * b[:, None]
        outputs.append((h * c[:, None]).sum(-1))
    y = torch.stack(outputs, 1)
    y = y if skip is None else y + skip * x
    return (y if gate is None else y * F.silu(gate)), h


def _check(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    skip: Tensor | None,
    gate: Tensor | None,
    dt_bias: Tensor | None,
    input_gain: Tensor | None,
    decay_dt: Tensor | None,
    reset: Tensor | None,
    initial_state: Tensor | None,
) -> None:
    check_sequence("x", x, "B T D")
    if A.ndim != 2:
        raise ValueError(f"A has shape {list(A.shape)}, but needs the axes [D, N]")
    batch, positions, channels = x.shape
    states = A.shape[1]
    check_shape("A", A, (channels, states))
    for name, tensor in {"dt": dt, "gate": gate, "input_gain": input_gain, "decay_dt": decay_dt}.items():
        check_shape(name, tensor, x.shape)
    for name, tensor in {"B": B, "C": C}.items():
        check_shape(name, tensor, (batch, positions, states))
    for name, tensor in {"skip": skip, "dt_bias": dt_bias}.items():
        check_shape(name, tensor, (channels,))
    check_shape("reset", reset, (batch, positions))
    check_shape("initial_state", initial_state, (batch, channels, states))
    check_floating(x=x, dt=dt, A=A, B=B, C=C, skip=skip, gate=gate, dt_bias=dt_bias, input_gain=input_gain)
    check_floating(decay_dt=decay_dt, initial_state=initial_state)
    if reset is not None and reset.dtype != torch.bool:
        raise TypeError(f"reset is {reset.dtype}, but needs torch.bool")


@torch.library.custom_op("lengthen::selective_scan", mutates_args=())
def selective_scan_forward(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    skip: Tensor | None,
    gate: Tensor | None,
    dt_bias: Tensor | None,
    input_gain: Tensor | None,
    decay_dt: Tensor | None,
    reset: Tensor | None,
    initial_state: Tensor | None,
    dt_softplus: bool,
    save: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Output, final state, and the states before each chunk [B, chunks, N, D] (no chunk unless `save`)."""
    output, final_state, checkpoints = _outputs(x, A, save)
    inputs = (x, dt, A, B, C, skip, gate, dt_bias, input_gain, decay_dt)
    form = choose_form(*inputs, initial_state, compiled_function="selective_scan_forward")
    if form is Form.COMPILED:
        assert compiled is not None
        compiled.selective_scan_forward(
            *inputs,
            None if reset is None else reset.view(torch.uint8),
            dt_softplus,
            initial_state,
            output,
            final_state,
            checkpoints if save else None,
            CHUNK,
            torch.get_num_threads(),
        )
    else:
        portable_forward(
            Inputs(*inputs, reset, dt_softplus), initial_state, output, final_state, checkpoints if save else None
        )
    return output, final_state, checkpoints


@torch.library.custom_op("lengthen::selective_scan_backward", mutates_args=())
def selective_scan_backward(
    output_gradient: Tensor,
    final_state_gradient: Tensor,
    checkpoints: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    skip: Tensor | None,
    gate: Tensor | None,
    dt_bias: Tensor | None,
    input_gain: Tensor | None,
    decay_dt: Tensor | None,
    reset: Tensor | None,
    dt_softplus: bool,
) -> list[Tensor]:
    """Gradients of x to decay_dt, in that order, and of initial_state; an empty tensor for one left out."""
    inputs = (x, dt, A, B, C, skip, gate, dt_bias, input_gain, decay_dt)
    form = choose_form(*inputs, output_gradient, compiled_function="selective_scan_backward")
    if form is not Form.COMPILED:
        return portable_backward(
            Inputs(*inputs, reset, dt_softplus), output_gradient, final_state_gradient, checkpoints
        )
    assert compiled is not None
    batch, positions, channels = x.shape
    states = A.shape[1]
    groups = -(-channels // CHANNEL_GROUP)
    dx, ddt = torch.empty(x.shape, dtype=x.dtype), torch.empty(x.shape, dtype=dt.dtype)
    dA, dinitial = A.new_empty(batch, channels, states), A.new_empty(batch, channels, states)
    dB, dC = A.new_empty(groups, batch, positions, states), A.new_empty(groups, batch, positions, states)
    dskip, dbias = A.new_empty(batch, channels), A.new_empty(batch, channels)
    dgate, dgain, ddecay = (
        None if tensor is None else torch.empty(x.shape, dtype=tensor.dtype) for tensor in (gate, input_gain, decay_dt)
    )
    compiled.selective_scan_backward(
        output_gradient,
        final_state_gradient,
        checkpoints,
        *inputs,
        None if reset is None else reset.view(torch.uint8),
        dt_softplus,
        dx,
        ddt,
        dA,
        dB,
        dC,
        dskip,
        dgate,
        dbias,
        dgain,
        ddecay,
        dinitial,
        CHUNK,
        torch.get_num_threads(),
    )
    gradients = (
        dx,
        ddt,
        dA.sum(0),
        dB.sum(0).to(B.dtype),
        dC.sum(0).to(C.dtype),
        None if skip is None else dskip.sum(0),
        dgate,
        None if dt_bias is None else dbias.sum(0),
        dgain,
        ddecay,
        dinitial,
    )
    return [x.new_empty(0) if gradient is None else gradient for gradient in gradients]


def _outputs(x: Tensor, A: Tensor, save: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Uninitialised output, final state and checkpoints."""
    batch, positions, channels = x.shape
    kept = len(chunks(positions)) if save else 0
    return (
        x.new_empty(x.shape),
        A.new_empty(batch, channels, A.shape[1]),
        A.new_empty(batch, kept, A.shape[1], channels),
    )


@selective_scan_forward.register_fake
def _(x, dt, A, B, C, skip, gate, bias, gain, decay_dt, reset, initial, softplus, save):  # type: ignore[no-untyped-def]
    return _outputs(x, A, save)


@selective_scan_backward.register_fake
def _(dy, dfinal, checkpoints, *inputs_reset_softplus):  # type: ignore[no-untyped-def]
    *inputs, _, _ = inputs_reset_softplus
    return [dy.new_empty(0) if t is None else t.new_empty(t.shape) for t in inputs] + [dfinal.new_empty(dfinal.shape)]


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    *tensors, initial_state, ctx.dt_softplus, _ = inputs
    ctx.has_initial_state = initial_state is not None
    ctx.save_for_backward(*tensors, output[2])


def _differentiate(ctx, output_gradient, final_state_gradient, _):  # type: ignore[no-untyped-def]
    *inputs, reset, checkpoints = ctx.saved_tensors
    *gradients, dinitial = torch.ops.lengthen.selective_scan_backward(
        output_gradient, final_state_gradient, checkpoints, *inputs, reset, ctx.dt_softplus
    )
    return (
        *(None if tensor is None else gradient for tensor, gradient in zip(inputs, gradients)),
        None,
        dinitial if ctx.has_initial_state else None,
        None,
        None,
    )


selective_scan_forward.register_autograd(_differentiate, setup_context=_save)
