"""Verifies every path of the recurrences on a GPU against their definitions, and prints speeds.

    python tests/gpu/verify_kernels.py

For each recurrence and variant: the form that is chosen here (a library's kernel where one is installed, else the
portable form), its worst error against the float64 definition over outputs and gradients, one long call against
segments of 2,048, and positions a second. Exit 1 when an error is beyond its bound.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2]))

from lengthen import kernels
from lengthen.kernels import cuda_libraries
from tests.kernels import (
    test_gated_delta_rule,
    test_gated_linear_attention,
    test_rwkv7,
    test_selective_scan,
    test_ssd,
)
from tests.kernels.recurrence_comparison import Operator, assert_agrees, errors, in_segments

BF16 = 2e-2  # both inputs and products are rounded to 8 bits
TF32 = 5e-3  # the libraries' fp32 products may run in tf32
KEPT = ("log_decay", "initial_state", "A")  # stay fp32


class Case(NamedTuple):
    """One recurrence in one variant; `make` takes a batch size and a number of positions."""

    label: str
    function: Operator
    reference: Operator
    make: Callable[[int, int], dict[str, Tensor]]
    sequences: set[str]
    kernel: Callable[[dict[str, Tensor]], object | None]


def delta_rule_case(decay: str) -> Case:
    return Case(
        f"gated_delta_rule, decay: {decay}",
        test_gated_delta_rule.delta_rule,
        test_gated_delta_rule.reference,
        lambda batch, positions: test_gated_delta_rule.make(batch, positions, 8, 4, 64, 64, decay=decay),
        test_gated_delta_rule.SEQUENCES,
        lambda given: cuda_libraries.gated_delta_rule_kernel(given["query"], given["value"], given.get("log_decay")),
    )


def attention_case(bonus: bool) -> Case:
    return Case(
        f"gated_linear_attention, bonus: {bonus}",
        kernels.gated_linear_attention,
        kernels.gated_linear_attention_reference,
        lambda batch, positions: test_gated_linear_attention.make(batch, positions, 8, 64, 64, bonus=bonus),
        test_gated_linear_attention.SEQUENCES,
        lambda given: cuda_libraries.gated_linear_attention_kernel(given["key"], given["value"], given.get("bonus")),
    )


def scan_case(label: str, left_out: tuple[str, ...]) -> Case:
    def make(batch: int, positions: int) -> dict[str, Tensor]:
        inputs = test_selective_scan.make(batch, positions, 256, 16)
        return {name: tensor for name, tensor in inputs.items() if name not in left_out}

    return Case(
        f"selective_scan, {label}",
        partial(kernels.selective_scan, dt_softplus=True),
        partial(kernels.selective_scan_reference, dt_softplus=True),
        make,
        test_selective_scan.SEQUENCES,
        lambda given: cuda_libraries.selective_scan_kernel(
            given["x"], given["A"], given.get("decay_dt"), given.get("reset")
        ),
    )


CASES = [
    Case(
        "ssd",
        kernels.ssd,
        kernels.ssd_reference,
        lambda batch, positions: test_ssd.make(batch, positions, 8, 4, 64, 64),
        test_ssd.SEQUENCES,
        lambda given: cuda_libraries.ssd_kernel(given["query"], given["value"]),
    ),
    *map(delta_rule_case, ("none", "head", "channel")),
    *map(attention_case, (False, True)),
    Case(
        "rwkv7",
        kernels.rwkv7,
        kernels.rwkv7_reference,
        lambda batch, positions: test_rwkv7.make(batch, positions, 8, 64, 64),
        test_rwkv7.SEQUENCES,
        lambda given: cuda_libraries.rwkv7_kernel(given["key"], given["value"]),
    ),
    scan_case("without resets", ("decay_dt", "reset")),
    scan_case("with resets", ()),
]


def on_gpu(inputs: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {
        name: tensor.cuda() if name in KEPT or not tensor.is_floating_point() else tensor.cuda().to(dtype)
        for name, tensor in inputs.items()
    }


def seconds(function: Operator, inputs: dict[str, Tensor]) -> float:
    leaves = {n: t.clone().requires_grad_() if t.is_floating_point() else t for n, t in inputs.items()}
    wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]

    def step() -> None:
        output, state = function(**leaves)
        torch.autograd.grad(output.float().sum() + state.sum(), wanted)

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(10):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / 10


def verify(case: Case, dtype: torch.dtype, bound: float, batch: int = 8, length: int = 65_536) -> bool:
    """Print what one case does in one type; whether it keeps its bound."""
    inputs = on_gpu(case.make(2, 300), dtype)
    library = case.kernel(inputs) is not None
    label = f"{case.label}, {dtype}, {'library' if library else 'portable'}"
    try:
        assert_agrees(case.function, case.reference, inputs, bound)
    except AssertionError as error:
        print(f"{label}: {error}")
        return False
    long = on_gpu(case.make(1, length), dtype)
    with torch.no_grad():
        whole = case.function(**long)[1]
        pieces = in_segments(case.function, long, "initial_state", [2048] * (length // 2048), case.sequences)[1]
    drift = max(errors(whole, pieces.double()))
    speed = 2048 * batch / seconds(case.function, on_gpu(case.make(batch, 2048), dtype))
    print(f"{label}: agrees; one call against segments {drift:.1e}; {speed:,.0f} positions/s forward+backward")
    return drift <= bound


def main() -> int:
    if not torch.cuda.is_available():
        print("No GPU is visible to PyTorch, so there is nothing to verify.")
        return 1
    print(torch.cuda.get_device_name(), torch.__version__)
    results = [
        verify(case, dtype, bound) for case in CASES for dtype, bound in ((torch.bfloat16, BF16), (torch.float32, TF32))
    ]
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
