"""The mLSTM of xLSTM: a matrix state with exponential gates, kept finite by a running maximum.

B batch, T positions, H heads, K key dim, V value dim. State: C [B, H, K, V], the normaliser n [B, H, K] and the
maximum m [B, H], all float32 (float64 for float64 inputs). What the state stands for is exp(m) C and exp(m) n.

    m_t = max(f_t + m_{t-1}, i_t)
    C_t = exp(f_t + m_{t-1} - m_t) C_{t-1} + exp(i_t - m_t) gain_t k_t v_t^T        n_t likewise, with k_t
    y_t = C_t^T q_t / (max(|n_t^T q_t|, exp(-m_t)) + epsilon)

Given m this is a scalar-decay recurrence over the value with a one appended: `ssd` runs it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lengthen.kernels.dispatch import Form, choose_form, compiled
from lengthen.kernels.mlstm_normaliser import append_one, divide_by_normaliser
from lengthen.kernels.recurrence import check_floating, check_sequence, check_shape, compute_dtype
from lengthen.kernels.ssd import ssd


class MlstmState(NamedTuple):
    """C [B, H, K, V], n [B, H, K] and m [B, H]."""

    matrix: Tensor
    normaliser: Tensor
    maximum: Tensor


def mlstm(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    input_gate: Tensor,
    log_forget: Tensor,
    input_gain: Tensor | None = None,
    *,
    initial_state: tuple[Tensor, Tensor, Tensor] | None = None,
    epsilon: float = 1e-6,
) -> tuple[Tensor, MlstmState]:
    """Run the mLSTM over a sequence.

    Args:
        query: [B, T, H, K], float32, bfloat16, float16 or float64, scaled by the caller (xLSTM: K ** -0.5).
        key: [B, T, H, K].
        value: [B, T, H, V].
        input_gate: [B, T, H], the input gate before its exponential; -inf writes nothing.
        log_forget: [B, T, H], the log of the forget gate (a log-sigmoid), <= 0; -inf is a reset.
        input_gain: [B, T, H], multiplies the write only.
        initial_state: C [B, H, K, V], n [B, H, K], m [B, H], zeros where left out.
        epsilon: added to the denominator, as in xLSTM's kernels.

    Returns:
        The output [B, T, H, V] in value's type and the final state in float32 or float64.

    Raises:
        ValueError: a shape does not fit, or there are no positions. TypeError: a type does not fit.

    Source: Beck et al., arXiv 2405.04517, equations 19 to 27.
    """
    state = _check(query, key, value, input_gate, log_forget, input_gain, initial_state)
    compute = state.matrix.dtype
    maximum, log_decay, log_gain = torch.ops.lengthen.mlstm_gates(
        input_gate.to(compute), log_forget.to(compute), state.maximum
    )
    gain = log_gain.exp()
    if input_gain is not None:
        gain = gain * input_gain
    initial = torch.cat([state.matrix, state.normaliser.unsqueeze(-1)], -1)
    read, final = ssd(query, key, append_one(value, compute), log_decay, gain, initial_state=initial)
    output = divide_by_normaliser(read, maximum, epsilon, value.dtype)
    dim = value.shape[-1]
    final_state = MlstmState(final[..., :dim].clone(), final[..., dim].clone(), maximum[:, -1].clone())
    return output, final_state


def mlstm_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    input_gate: Tensor,
    log_forget: Tensor,
    input_gain: Tensor | None = None,
    *,
    initial_state: tuple[Tensor, Tensor, Tensor] | None = None,
    epsilon: float = 1e-6,
) -> tuple[Tensor, MlstmState]:
    """The definition of `mlstm`, position by position in the inputs' own type."""
    batch, positions, heads, dim = key.shape
    if initial_state is None:
        C, n = value.new_zeros(batch, heads, dim, value.shape[-1]), value.new_zeros(batch, heads, dim)
        m = value.new_zeros(batch, heads)
    else:
        C, n, m = initial_state
    outputs = []
    for t in range(positions):
        previous, m = m, torch.maximum(log_forget[:, t] + m, input_gate[:, t])
        decay = (log_forget[:, t] + previous - m).exp()
        write = (input_gate[:, t] - m).exp()
        if input_gain is not None:
            write = write * input_gain[:, t]
        written = write[..., None] * key[:, t]
        C = decay[..., None, None] * C + written[..., None] * value[:, t, :, None]
        n = decay[..., None] * n + written
        numerator = (C * query[:, t, ..., None]).sum(-2)
        denominator = torch.maximum((n * query[:, t]).sum(-1).abs(), (-m).exp()) + epsilon
        outputs.append(numerator / denominator[..., None])
    return torch.stack(outputs, 1), MlstmState(C, n, m)


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    input_gate: Tensor,
    log_forget: Tensor,
    input_gain: Tensor | None,
    initial_state: tuple[Tensor, Tensor, Tensor] | None,
) -> MlstmState:
    """The initial state, in the dtype of the computation."""
    check_sequence("key", key, "B T H K")
    check_sequence("value", value, "B T H V")
    batch, positions, heads, dim = key.shape
    size = value.shape[-1]
    check_shape("query", query, key.shape)
    check_shape("value", value, (batch, positions, heads, size))
    for name, tensor in {"input_gate": input_gate, "log_forget": log_forget, "input_gain": input_gain}.items():
        check_shape(name, tensor, (batch, positions, heads))
    check_floating(query=query, key=key, value=value, input_gate=input_gate, log_forget=log_forget)
    check_floating(input_gain=input_gain)
    compute = compute_dtype(query, key, value, input_gate, log_forget, input_gain, *(initial_state or ()))
    shapes = ((batch, heads, dim, size), (batch, heads, dim), (batch, heads))
    if initial_state is None:
        return MlstmState(*(value.new_zeros(shape, dtype=compute) for shape in shapes))
    for name, tensor, shape in zip(("C", "n", "m"), initial_state, shapes):
        check_shape(f"initial_state's {name}", tensor, shape)
        check_floating(**{f"initial_state's {name}": tensor})
    return MlstmState(*(tensor.to(compute) for tensor in initial_state))


@torch.library.custom_op("lengthen::mlstm_gates", mutates_args=())
def mlstm_gates(input_gate: Tensor, log_forget: Tensor, initial: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The maximum after each position and, relative to it, the log-decay and the log of the write [B, T, H]."""
    maximum, log_decay, log_gain = (input_gate.new_empty(input_gate.shape) for _ in range(3))
    if choose_form(input_gate, log_forget, initial, compiled_function="mlstm_gates_forward") is Form.COMPILED:
        assert compiled is not None
        compiled.mlstm_gates_forward(input_gate, log_forget, initial, maximum, log_decay, log_gain)
        return maximum, log_decay, log_gain
    before = initial.double()
    for t, (i, f) in enumerate(zip(input_gate.double().unbind(1), log_forget.double().unbind(1))):
        kept = f + before
        before = torch.maximum(kept, i)
        maximum[:, t] = before
        if t + 1 == maximum.shape[1]:
            # Only the last maximum is handed on, so only there does the state follow its rounding.
            before = maximum[:, t].double()
        log_decay[:, t], log_gain[:, t] = kept - before, i - before
    return maximum, log_decay, log_gain


@torch.library.custom_op("lengthen::mlstm_gates_backward", mutates_args=())
def mlstm_gates_backward(
    dmaximum: Tensor,
    dlog_decay: Tensor,
    dlog_gain: Tensor,
    input_gate: Tensor,
    log_forget: Tensor,
    initial: Tensor,
    maximum: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of input_gate, log_forget and the initial maximum."""
    dinput, dforget = input_gate.new_empty(input_gate.shape), input_gate.new_empty(input_gate.shape)
    dinitial = initial.new_empty(initial.shape)
    saved = (input_gate, log_forget, initial, maximum)
    if choose_form(*saved, dmaximum, compiled_function="mlstm_gates_backward") is Form.COMPILED:
        assert compiled is not None
        compiled.mlstm_gates_backward(dmaximum, dlog_decay, dlog_gain, *saved, dinput, dforget, dinitial)
        return dinput, dforget, dinitial
    before = torch.cat([initial.unsqueeze(1), maximum[:, :-1]], 1).double()
    kept = log_forget.double() + before
    share = ((torch.sign(kept - input_gate.double()) + 1) / 2).to(maximum.dtype)
    own = dmaximum - dlog_decay - dlog_gain
    carried = torch.zeros_like(initial)
    for t in range(input_gate.shape[1] - 1, -1, -1):
        total = own[:, t] + carried
        carried = dlog_decay[:, t] + share[:, t] * total
        dforget[:, t] = carried
        dinput[:, t] = dlog_gain[:, t] + (1 - share[:, t]) * total
    return dinput, dforget, dinitial.copy_(carried)


@mlstm_gates.register_fake
def _(input_gate, log_forget, initial):  # type: ignore[no-untyped-def]
    return tuple(input_gate.new_empty(input_gate.shape) for _ in range(3))


@mlstm_gates_backward.register_fake
def _(dmaximum, dlog_decay, dlog_gain, input_gate, log_forget, initial, maximum):  # type: ignore[no-untyped-def]
    return tuple(x.new_empty(x.shape) for x in (input_gate, log_forget, initial))


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs, output[0])


def _differentiate(ctx, dmaximum, dlog_decay, dlog_gain):  # type: ignore[no-untyped-def]
    return torch.ops.lengthen.mlstm_gates_backward(dmaximum, dlog_decay, dlog_gain, *ctx.saved_tensors)


mlstm_gates.register_autograd(_differentiate, setup_context=_save)
