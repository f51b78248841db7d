"""The kernels of flash-linear-attention (fla) on a GPU, called with our arguments and layouts.

Dims: B batch, T positions, H heads, G groups of heads sharing query and key, K key dim, V value dim.

For each operator one function finds the kernel that serves exactly these arguments (None: the portable form runs), and
another calls it. The kernels difference sums of log-decays, where -inf would give NaN: log-decays count as
at least LOWEST, whose decay vanishes in fp32 and whose gradient is zero.
"""

import functools
import importlib
import inspect
from collections.abc import Callable

import torch
from torch import Tensor

Kernel = Callable[..., tuple[Tensor, Tensor]]

LOWEST = -88.0
LARGEST_HEAD = 256  # the key dim that fla's chunk kernels serve
HALF = (torch.bfloat16, torch.float16)


@functools.cache
def fla_kernel(operator: str, name: str, *arguments: str) -> Kernel | None:
    """A function of fla's by its operator's folder and name, if it is installed and takes all these arguments."""
    try:
        module = importlib.import_module(f"fla.ops.{operator}")
    except (ImportError, RuntimeError):  # fla without triton, or triton without a driver
        return None
    kernel = getattr(module, name, None)
    if kernel is None or not set(arguments) <= set(inspect.signature(kernel).parameters):
        return None
    return kernel


STATE = ("scale", "initial_state", "output_final_state")


def ssd_kernel(query: Tensor, value: Tensor) -> Kernel | None:
    """fla's kernel for these arguments of `ssd`."""
    if value.dtype is torch.float64 or query.shape[3] > LARGEST_HEAD:
        return None
    return fla_kernel("simple_gla", "chunk_simple_gla", "q", "k", "v", "g", *STATE)


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
        g=log_decay.float().clamp_min(LOWEST),
        scale=1.0,
        initial_state=None if initial_state is None else initial_state.float(),
        output_final_state=True,
    )
    if skip is not None:
        output = output + skip.unsqueeze(-1) * value
    return output.to(value.dtype), final_state.float()


def gated_delta_rule_kernel(query: Tensor, value: Tensor, log_decay: Tensor | None) -> Kernel | None:
    """fla's kernel for these arguments of `gated_delta_rule`; fla's take half precision only."""
    if value.dtype not in HALF or query.dtype not in HALF or query.shape[3] > LARGEST_HEAD:
        return None
    if log_decay is None:
        return fla_kernel("delta_rule", "chunk_delta_rule", "q", "k", "v", "beta", *STATE)
    if log_decay.dim() == 3:
        return fla_kernel("gated_delta_rule", "chunk_gated_delta_rule", "q", "k", "v", "g", "beta", *STATE)
    return fla_kernel("kda", "chunk_kda", "q", "k", "v", "g", "beta", *STATE)


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
    decay = {} if log_decay is None else {"g": log_decay.float().clamp_min(LOWEST)}
    sharing = value.shape[2] // query.shape[2]
    output, final_state = kernel(
        q=query.repeat_interleave(sharing, 2),
        k=key.repeat_interleave(sharing, 2),
        v=_gained(value, input_gain),
        beta=beta.to(value.dtype),
        scale=1.0,
        initial_state=None if initial_state is None else initial_state.float(),
        output_final_state=True,
        **decay,
    )
    return output.to(value.dtype), final_state.float()


def _gained(value: Tensor, input_gain: Tensor | None) -> Tensor:
    return value if input_gain is None else (value * input_gain.unsqueeze(-1)).to(value.dtype)
