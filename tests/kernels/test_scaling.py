"""Compiled kernels cost the same per position at any length, and two threads nearly halve the time."""

import statistics
import time
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lengthen import kernels
from lengthen.kernels.dispatch import compiled

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.skipif(compiled is None, reason="the extension is not built"),
]

H, D = 8, 512  # heads of 64, or channels
OPERATORS = [
    "selective_scan",
    "ssd",
    "gated_linear_attention",
    "gated_delta_rule",
    "rwkv7",
    "linear_scan",
    "mlstm",
    "short_conv",
]


OVER_CHANNELS = ("selective_scan", "linear_scan", "short_conv")


def inputs_of(operator: str, positions: int, rows: int) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    def heads(count: int) -> list[Tensor]:
        return [normal(rows, positions, H, 64) for _ in range(count)]

    if operator == "selective_scan":
        A = -torch.arange(1.0, 17).repeat(D, 1)
        x, dt = normal(rows, positions, D), F.softplus(normal(rows, positions, D) - 3)
        return x, dt, A, normal(rows, positions, 16), normal(rows, positions, 16)
    if operator == "linear_scan":
        return F.logsigmoid(normal(rows, positions, D)) / 16, normal(rows, positions, D)
    if operator == "short_conv":
        return normal(rows, positions, D), normal(D, 4)
    gate = normal(rows, positions, H)
    if operator == "rwkv7":
        receptance, decay, key, value, rate = heads(5)
        removed = F.normalize(key, dim=-1)
        return receptance, F.logsigmoid(decay) / 16, key, value, -removed, removed * rate.sigmoid()
    query, key, value = heads(3)
    if operator == "gated_linear_attention":
        return query, key, value, F.logsigmoid(normal(rows, positions, H, 64)) / 16
    if operator == "mlstm":
        return query, key, value, gate, F.logsigmoid(normal(rows, positions, H) + 3)
    return query, F.normalize(key, dim=-1), value, F.logsigmoid(gate) / 16, torch.rand(rows, positions, H, generator=g)


def step_of(operator: str, positions: int, rows: int = 1, dtype: torch.dtype = torch.float32) -> Callable[[], object]:
    """One forward and backward pass over a sequence."""
    function = getattr(kernels, operator)
    leaves = [tensor.to(dtype).requires_grad_() for tensor in inputs_of(operator, positions, rows)]

    def step() -> None:
        output, _ = function(*leaves)
        torch.autograd.grad(output, leaves, output.detach())

    step()
    return step


def seconds(step: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    step()
    return clock() - start


@pytest.mark.parametrize("operator", OPERATORS)
def test_cost_grows_linearly(operator: str) -> None:
    steps = [(step_of(operator, 2048), 8), (step_of(operator, 32_768), 1)]
    times = [[min(seconds(step, time.process_time) for _ in range(n)) for step, n in steps] for _ in range(7)]
    at_2048, at_32768 = (min(column) for column in zip(*times))  # other work only ever adds to a time
    kept = 16 * at_2048 / at_32768
    print(f"{operator}: {kept:.0%} of the speed at 2,048 positions is left at 32,768")
    assert kept >= 0.85


@pytest.mark.parametrize("operator", OPERATORS)
def test_two_threads_nearly_halve_the_time(operator: str) -> None:
    # Threads share out rows and heads: eight of either. In float32 the linear scan is as fast as memory can be read and
    # written, which two threads do no 1.7 times faster; in bfloat16, as it is trained in, it is not.
    dtype = torch.bfloat16 if operator == "linear_scan" else torch.float32
    step = step_of(operator, 2048, 8, dtype) if operator in OVER_CHANNELS else step_of(operator, 8192)

    def best(threads: int) -> float:
        torch.set_num_threads(threads)
        step()  # starts the threads
        return min(seconds(step, time.perf_counter) for _ in range(3))

    def speed_up() -> float:
        try:
            return statistics.median(best(1) / best(2) for _ in range(7))
        finally:
            torch.set_num_threads(1)

    # Other work on the machine only ever makes two threads look slower.
    found = max(speed_up() for _ in range(3))
    print(f"{operator}: {found:.2f} times as fast on two threads")
    assert found >= 1.7
