"""Verifies every path of the recurrences on a GPU against their definitions, and prints speeds.

    python tests/gpu/verify_kernels.py

For each recurrence and decay: the form that is chosen here (a library's kernel where one is installed, else the
portable form), its worst error against the float64 definition over outputs and gradients, one long call against
segments of 2,048, and positions a second. Exit 1 when an error is beyond its bound.
"""

import sys
import time
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))

from recurrence_comparison import assert_agrees, errors, in_segments
from test_gated_delta_rule import SEQUENCES as DELTA_SEQUENCES
from test_gated_delta_rule import delta_rule
from test_gated_delta_rule import make as make_delta_rule
from test_gated_delta_rule import reference as delta_rule_reference
from test_ssd import SEQUENCES as SSD_SEQUENCES
from test_ssd import make as make_ssd

from lengthen.kernels import cuda_libraries, ssd, ssd_reference

BF16 = 2e-2  # both inputs and products are rounded to 8 bits
TF32 = 5e-3  # the libraries' fp32 products may run in tf32


def on_gpu(inputs: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    kept = ("log_decay", "initial_state")
    return {n: t.cuda() if n in kept else t.cuda().to(dtype) for n, t in inputs.items()}


def seconds(function, inputs: dict[str, Tensor]) -> float:
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in inputs.items()}

    def step() -> None:
        torch.autograd.grad(function(**leaves)[0].float().sum(), list(leaves.values()))

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(10):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / 10


def main() -> int:
    if not torch.cuda.is_available():
        print("No GPU is visible to PyTorch, so there is nothing to verify.")
        return 1
    print(torch.cuda.get_device_name(), torch.__version__)
    failed = False
    cases = [("ssd", "head", ssd, ssd_reference, make_ssd, SSD_SEQUENCES, ("simple_gla", "chunk_simple_gla"))]
    kernels = {
        "none": ("delta_rule", "chunk_delta_rule"),
        "head": ("gated_delta_rule", "chunk_gated_delta_rule"),
        "channel": ("kda", "chunk_kda"),
    }
    for decay, kernel in kernels.items():
        cases.append(
            ("gated_delta_rule", decay, delta_rule, delta_rule_reference, make_delta_rule, DELTA_SEQUENCES, kernel)
        )
    for name, decay, function, reference, make, sequences, kernel in cases:
        options = {} if name == "ssd" else {"decay": decay}
        found = cuda_libraries.fla_kernel(*kernel) is not None
        for dtype, bound in ((torch.bfloat16, BF16), (torch.float32, TF32)):
            library = found and (name == "ssd" or dtype in cuda_libraries.HALF)
            inputs = on_gpu(make(2, 300, 4, 2, 64, 64, **options), dtype)
            label = f"{name}, decay: {decay}, {dtype}, {'fla ' + kernel[1] if library else 'portable'}"
            try:
                assert_agrees(function, reference, inputs, bound)
            except AssertionError as error:
                failed = True
                print(f"{label}: {error}")
                continue
            long = on_gpu(make(1, 65_536, 4, 2, 64, 64, **options), dtype)
            with torch.no_grad():
                whole = function(**long)[1]
                pieces = in_segments(function, long, "initial_state", [2048] * 32, sequences)[1]
            drift = max(errors(whole, pieces.double()))
            failed |= drift > bound
            speed = 2048 * 8 / seconds(function, on_gpu(make(8, 2048, 16, 16, 64, 64, **options), dtype))
            print(f"{label}: agrees; one call against segments {drift:.1e}; {speed:,.0f} positions/s forward+backward")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
