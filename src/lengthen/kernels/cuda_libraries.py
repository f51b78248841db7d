"""The kernels of flash-linear-attention (fla) and mamba_ssm on a GPU, called with our arguments and layouts.

Dims: B batch, T positions, H heads, G groups of heads sharing query and key, K key dim, V value dim;
D channels and N state per channel of the selective scan.

For each operator one function finds the kernel that serves exactly these arguments (None: the portable form runs), and
another calls it. fla's kernels take decays as exponentials of differences of summed log-decays, where -inf would give
NaN: log-decays count as at least LOWEST, of which the exponential is exactly 0 in fp32, and get a zero gradient there.
"""

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

Kernel = Callable[..., tuple[Tensor, Tensor]]

LOWEST = -120.0  # exp is 0 in fp32 from -104 on; the rest is room for the rounding of the sums
SMALLEST_HEAD, LARGEST_HEAD = 16, 256  # the key dims that fla's chunk kernels serve
LARGEST_STATE = 256  # N of mamba_ssm's selective scan
CARRIED_ELEMENTS = 1 << 24  # numbers a block of `carried_output` holds: 64 MB in fp32
HALF = (torch.bfloat16, torch.float16)


@functools.cache
def library_kernel(module: str, name: str, *arguments: str) -> Callable[..., Any] | None:
    """A function by its module and name, if it is installed, imports, and takes all these arguments."""
    try:
        kernel = getattr(importlib.import_module(module), name, None)
    except (ImportError, RuntimeError):  # a library without triton, or triton without a driver
        return None
    if kernel is None or not set(arguments) <= set(inspect.signature(kernel).parameters):
        return None
    return kernel


@functools.cache
def fla_kernel(operator: str, name: str, *arguments: str) -> Kernel | None:
    """fla's function from and to a state [B, H, K, V], by its operator's folder and name; None as in library_kernel."""
    state = ("scale", "initial_state", "output_final_state")
    kernel = library_kernel(f"fla.ops.{operator}", name, *arguments, *state)
    if kernel is not None and "state_v_first" in inspect.signature(kernel).parameters:
        return functools.partial(kernel, state_v_first=False)
    return kernel


def _fla_serves(key: Tensor, value: Tensor, *, half_only: bool = False) -> bool:
    dtypes = HALF if half_only else (*HALF, torch.float32)
    return value.dtype in dtypes and key.dtype in dtypes and SMALLEST_HEAD <= key.shape[-1] <= LARGEST_HEAD


def ssd_kernel(query: Tensor, value: Tensor) -> Kernel | None:
    """fla's kernel for these arguments of `ssd`."""
    return fla_kernel("simple_gla", "chunk_simple_gla", "q", "k", "v", "g") if _fla_serves(query, value) else None


def ssd_by_library(
    kernel: Kernel,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    input_gain: Tensor | None,
    skip: Tensor | None,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """`ssd` through `ssd_kernel`'s."""
    sharing = value.shape[2] // query.shape[2]
    output, final_state = kernel(
        query.repeat_interleave(sharing, 2),
        key.repeat_interleave(sharing, 2),
        _gained(value, input_gain),
        g=_bounded(log_decay),
        scale=1.0,
        initial_state=_single(initial_state),
        output_final_state=True,
    )
    if skip is not None:
        output = output + skip.unsqueeze(-1) * value
    return output.to(value.dtype), final_state.float()


def gated_delta_rule_kernel(query: Tensor, value: Tensor, log_decay: Tensor | None) -> Kernel | None:
    """fla's kernel for these arguments of `gated_delta_rule`; fla's take half precision only."""
    if not _fla_serves(query, value, half_only=True):
        return None
    if log_decay is None:
        return fla_kernel("delta_rule", "chunk_delta_rule", "q", "k", "v", "beta")
    if log_decay.dim() == 3:
        return fla_kernel("gated_delta_rule", "chunk_gated_delta_rule", "q", "k", "v", "g", "beta")
    return fla_kernel("kda", "chunk_kda", "q", "k", "v", "g", "beta")


def gated_delta_rule_by_library(
    kernel: Kernel,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor | None,
    beta: Tensor,
    input_gain: Tensor | None,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """`gated_delta_rule` through `gated_delta_rule_kernel`'s."""
    decay = {} if log_decay is None else {"g": _bounded(log_decay)}
    sharing = value.shape[2] // query.shape[2]
    output, final_state = kernel(
        q=query.repeat_interleave(sharing, 2),
        k=key.repeat_interleave(sharing, 2),
        v=_gained(value, input_gain),
        beta=beta.to(value.dtype),
        scale=1.0,
        initial_state=_single(initial_state),
        output_final_state=True,
        **decay,
    )
    return output.to(value.dtype), final_state.float()


def gated_linear_attention_kernel(key: Tensor, value: Tensor, bonus: Tensor | None) -> Kernel | None:
    """fla's kernel for these arguments of `gated_linear_attention`, as a function of q, k, v and g."""
    if not _fla_serves(key, value):
        return None
    if bonus is None:
        return fla_kernel("gla", "chunk_gla", "q", "k", "v", "g")
    kernel = fla_kernel("rwkv6", "chunk_rwkv6", "r", "k", "v", "w", "u")
    return None if kernel is None else functools.partial(_rwkv6_before_its_write, kernel)


def _rwkv6_before_its_write(
    kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, g: Tensor, **options: Any
) -> tuple[Tensor, Tensor]:
    return kernel(r=q, k=k, v=v, w=g, u=k.new_zeros(k.shape[2:]), **options)


def gated_linear_attention_by_library(
    kernel: Kernel,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    input_gain: Tensor | None,
    bonus: Tensor | None,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """`gated_linear_attention` through `gated_linear_attention_kernel`'s.

    The bonus is added here: the kernel's would see the input gain, which belongs to the write alone.
    """
    output, final_state = kernel(
        query.to(value.dtype),
        key.to(value.dtype),
        _gained(value, input_gain),
        g=_bounded(log_decay),
        scale=1.0,
        initial_state=_single(initial_state),
        output_final_state=True,
    )
    if bonus is not None:
        output = output + (query * bonus.float() * key).sum(-1, keepdim=True) * value
    return output.to(value.dtype), final_state.float()


def rwkv7_kernel(key: Tensor, value: Tensor) -> Kernel | None:
    """fla's kernel for these arguments of `rwkv7`; it takes half precision only."""
    if not _fla_serves(key, value, half_only=True):
        return None
    return fla_kernel("rwkv7", "chunk_rwkv7", "r", "w", "k", "v", "a", "b")


def rwkv7_by_library(
    kernel: Kernel,
    receptance: Tensor,
    log_decay: Tensor,
    key: Tensor,
    value: Tensor,
    a: Tensor,
    b: Tensor,
    input_gain: Tensor | None,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """`rwkv7` through `rwkv7_kernel`'s."""
    output, final_state = kernel(
        r=receptance.to(value.dtype),
        w=_bounded(log_decay),
        k=key.to(value.dtype),
        v=_gained(value, input_gain),
        a=a.to(value.dtype),
        b=b.to(value.dtype),
        scale=1.0,
        initial_state=_single(initial_state),
        output_final_state=True,
    )
    return output.to(value.dtype), final_state.float()


def selective_scan_kernel(
    x: Tensor, A: Tensor, decay_dt: Tensor | None, reset: Tensor | None
) -> Callable[..., Tensor] | None:
    """mamba_ssm's kernel for these arguments of `selective_scan`; it knows one step and no decay of exactly 0."""
    unserved = decay_dt is not None or reset is not None
    if unserved or torch.float64 in (x.dtype, A.dtype) or A.shape[1] > LARGEST_STATE:
        return None
    names = ("u", "delta", "A", "B", "C")
    return library_kernel("mamba_ssm.ops.selective_scan_interface", "selective_scan_fn", *names)


def selective_scan_by_library(
    kernel: Callable[..., Tensor],
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    skip: Tensor | None,
    gate: Tensor | None,
    dt_bias: Tensor | None,
    dt_softplus: bool,
    input_gain: Tensor | None,
    initial_state: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """`selective_scan` through `selective_scan_kernel`'s, which starts from zero and differentiates outputs alone.

    N positions are appended whose step is 0, so that they leave the state as it is, and of which position n reads
    element n: the final state comes as outputs, in fp32 and with its gradients. The output is linear in the initial
    state, whose part is added to all of them.
    """
    positions, states = x.shape[1], A.shape[1]
    step = dt.float() if dt_bias is None else dt.float() + dt_bias
    step = F.softplus(step) if dt_softplus else step
    written = x.float() if input_gain is None else x.float() * input_gain
    u, delta, writes = (F.pad(sequence, (0, 0, 0, states)) for sequence in (written, step, B.float()))
    identity = torch.eye(states, device=C.device).expand(C.shape[0], -1, -1)
    reads = torch.cat([C.float(), identity], 1)
    y = kernel(u.mT, delta.mT, A.float(), writes.mT, reads.mT).mT
    if initial_state is not None:
        y = y + carried_output(delta, A.float(), reads, initial_state.float())
    output, final_state = y[:, :positions], y[:, positions:].mT.contiguous()
    if skip is not None:
        output = output + skip * x
    if gate is not None:
        output = output * F.silu(gate.float())
    return output.to(x.dtype), final_state


def carried_output(step: Tensor, A: Tensor, C: Tensor, initial_state: Tensor) -> Tensor:
    """What a state [B, D, N] before position 0 adds to the outputs [B, T, D] of a selective scan, block by block.

    step [B, T, D], A [D, N], C [B, T, N]: y_t[d] = sum_n C_t[n] exp(A[d,n] sum_{s<=t} step_s[d]) h[d,n].
    """
    positions = max(1, CARRIED_ELEMENTS // initial_state.numel())
    blocks = zip(step.cumsum(1).split(positions, 1), C.split(positions, 1))
    outputs = [
        checkpoint(_carried, elapsed, A, reads, initial_state, use_reentrant=False, preserve_rng_state=False)
        for elapsed, reads in blocks
    ]
    return torch.cat(outputs, 1)


def _carried(elapsed: Tensor, A: Tensor, C: Tensor, state: Tensor) -> Tensor:
    decayed = (elapsed.unsqueeze(-1) * A).exp() * state.unsqueeze(1)
    return torch.einsum("btdn,btn->btd", decayed, C)


def _bounded(log_decay: Tensor) -> Tensor:
    return log_decay.float().clamp_min(LOWEST)


def _single(state: Tensor | None) -> Tensor | None:
    return None if state is None else state.float()


def _gained(value: Tensor, input_gain: Tensor | None) -> Tensor:
    return value if input_gain is None else (value * input_gain.unsqueeze(-1)).to(value.dtype)
