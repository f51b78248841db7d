"""RWKV-4's time mixing: an exponentially weighted average per channel, kept finite by a running maximum.

B batch, T positions, D channels. State: the numerator a, the denominator b and the maximum m, each [B, D], float32
(float64 for float64 inputs). What the state stands for is exp(m) a and exp(m) b; where a and b are both 0 nothing has
been read, and m is void.

    y_t = (exp(m_{t-1}) a_{t-1} + exp(bonus + k_t) v_t) / (exp(m_{t-1}) b_{t-1} + exp(bonus + k_t))
    m_t = max(g_t + m_{t-1}, k_t)
    a_t = exp(g_t + m_{t-1} - m_t) a_{t-1} + exp(k_t - m_t) v_t        b_t likewise, with 1 for v_t

The maxima are those of an mLSTM with a head for each channel; given them, a and b are two linear scans.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from lengthen.kernels.linear_scan import linear_scan
from lengthen.kernels.mlstm import mlstm_gates
from lengthen.kernels.recurrence import check_floating, check_sequence, check_shape, compute_dtype

_NOTHING = -1e30
"""The maximum of a state that has read nothing: below every key, and finite, so that no difference is undefined."""


class Wkv4State(NamedTuple):
    """State of `wkv4`: a, b and m, each [B, D]."""

    numerator: Tensor
    denominator: Tensor
    maximum: Tensor


def wkv4(
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    bonus: Tensor,
    *,
    initial_state: tuple[Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, Wkv4State]:
    """Average the values of a sequence, by their keys and their age.

    Args:
        key: [B, T, D], float32, bfloat16, float16 or float64; -inf writes nothing.
        value: [B, T, D].
        log_decay: [B, T, D], <= 0; -inf at a position that writes is a reset: nothing read before
            reaches this output or later ones.
        bonus: [D], added to the key of the position that is read.
        initial_state: a, b, m, each [B, D], zeros where left out.

    Returns:
        The output [B, T, D] in value's type, 0 where nothing has been read, and the final state in float32 or float64.

    Raises:
        ValueError: a shape does not fit, or there are no positions. TypeError: a type does not fit.

    Source: Peng et al., arXiv 2305.13048, equations 16 and 23 to 28 (appendix).
    """
    a, b, m = _check(key, value, log_decay, bonus, initial_state)
    compute = a.dtype
    key, decay = key.to(compute), log_decay.to(compute)
    m = m.masked_fill((a == 0) & (b == 0), _NOTHING)
    maxima, relative_decay, log_gain = mlstm_gates(key, decay, m)
    gain = log_gain.exp()
    numerators, last_numerator = linear_scan(relative_decay, value.to(compute), gain, initial_state=a)
    denominators, last_denominator = linear_scan(relative_decay, gain, initial_state=b)

    # The key that is read, bonus included, less the maximum before: from differences, since large keys round.
    reset = decay == float("-inf")
    lead = bonus.to(compute) + log_gain + (decay - relative_decay).masked_fill(reset, 0)
    a_before, b_before = _before(a, numerators).masked_fill(reset, 0), _before(b, denominators).masked_fill(reset, 0)
    output = _read(a_before, b_before, lead, value.to(compute))
    void = (last_numerator == 0) & (last_denominator == 0)
    return output.to(value.dtype), Wkv4State(last_numerator, last_denominator, maxima[:, -1].masked_fill(void, 0))


def wkv4_reference(
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    bonus: Tensor,
    *,
    initial_state: tuple[Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, Wkv4State]:
    """The definition of `wkv4`, position by position in the inputs' own type."""
    a, b, m = initial_state or (torch.zeros_like(key[:, 0]) for _ in range(3))
    m = m.masked_fill((a == 0) & (b == 0), _NOTHING)
    outputs = []
    for k, v, g in zip(key.unbind(1), value.unbind(1), log_decay.unbind(1)):
        a, b = (t.masked_fill(g == float("-inf"), 0) for t in (a, b))
        outputs.append(_read(a, b, k + bonus - m, v))
        previous, m = m, torch.maximum(g + m, k)
        kept, written = (g + previous - m).exp(), (k - m).exp()
        a, b = kept * a + written * v, kept * b + written
    return torch.stack(outputs, 1), Wkv4State(a, b, m.masked_fill((a == 0) & (b == 0), 0))


def _before(first: Tensor, after: Tensor) -> Tensor:
    """What stood before each position [B, T, D], from what stood first [B, D] and after each [B, T, D]."""
    return torch.cat([first.unsqueeze(1), after[:, :-1]], 1)


def _read(a: Tensor, b: Tensor, lead: Tensor, value: Tensor) -> Tensor:
    """The output for a state and the value of a position whose key leads the state's maximum by so much."""
    top = lead.clamp(min=0)
    old, new = (-top).exp(), (lead - top).exp()
    denominator = old * b + new
    return (old * a + new * value) / denominator.masked_fill(denominator == 0, 1)


def _check(
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    bonus: Tensor,
    initial_state: tuple[Tensor, Tensor, Tensor] | None,
) -> Wkv4State:
    """The initial state, in the dtype of the computation."""
    check_sequence("key", key, "B T D")
    batch, _, channels = key.shape
    check_shape("value", value, key.shape)
    check_shape("log_decay", log_decay, key.shape)
    check_shape("bonus", bonus, (channels,))
    check_floating(key=key, value=value, log_decay=log_decay, bonus=bonus)
    compute = compute_dtype(key, value, log_decay, bonus, *(initial_state or ()))
    if initial_state is None:
        return Wkv4State(*(key.new_zeros((batch, channels), dtype=compute) for _ in range(3)))
    for name, tensor in zip(("numerator", "denominator", "maximum"), initial_state):
        check_shape(f"initial_state's {name}", tensor, (batch, channels))
        check_floating(**{f"initial_state's {name}": tensor})
    return Wkv4State(*(tensor.to(compute) for tensor in initial_state))
