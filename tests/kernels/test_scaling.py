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


def inputs_of(operator: str, positions: int) -> tuple[Tensor, ...]:
    g = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    def heads(count: int) -> list[Tensor]:
        return [normal(1, positions, H, 64) for _ in range(count)]

    if operator == "selective_scan":
        A = -torch.arange(1.0, 17).repeat(D, 1)
        x, dt = normal(1, positions, D), F.softplus(normal(1, positions, D) - 3)
        return x, dt, A, normal(1, positions, 16), normal(1, positions, 16)
    if operator == "linear_scan":
        return F.logsigmoid(normal(1, positions, D)) / 16, normal(1, positions, D)
    if operator == "short_conv":
        return normal(1, positions, D), normal(D, 4)
    gate = normal(1, positions, H)
    if operator == "rwkv7":
        receptance, decay, key, value, rate = heads(5)
        removed = F.normalize(key, dim=-1)
        return receptance, F.logsigmoid(decay) / 16, key, value, -removed, removed * rate.sigmoid()
    query, key, value = heads(3)
    if operator == "gated_linear_attention":
        return query, key, value, F.logsigmoid(normal(1, positions, H, 64)) / 16
    if operator == "mlstm":
        return query, key, value, gate, F.logsigmoid(normal(1, positions, H) + 3)
    return query, F.normalize(key, dim=-1), value, F.logsigmoid(gate) / 16, torch.rand(1, positions, H, generator=g)


def step_of(operator: str, positions: int) -> Callable[[], object]:
    """One forward and backward pass over a sequence."""
    function = getattr(kernels, operator)
    leaves = [tensor.requires_grad_() for tensor in inputs_of(operator, positions)]

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
    assert 16 * at_2048 / at_32768 >= 0.85


@pytest.mark.parametrize("operator", OPERATORS)
def test_two_threads_nearly_halve_the_time(operator: str) -> None:
    step = step_of(operator, 8192)

    def speed_up() -> float:
        pairs = []
        for _ in range(7):
            alone = seconds(step, time.perf_counter)
            torch.set_num_threads(2)
            try:
                pairs.append(alone / seconds(step, time.perf_counter))
            finally:
                torch.set_num_threads(1)
        return statistics.median(pairs)

    # Other work on the machine only ever makes two threads look slower.
    assert any(speed_up() >= 1.7 for _ in range(3))
