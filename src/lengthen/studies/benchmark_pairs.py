"""What the benchmark's pairs are made of: one thing to time against one peer, and where peers are found."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from lengthen.errors import InputError

Step = Callable[[], object]
FORWARD, BOTH = "forward", "forward+backward"
PRODUCTS = ", bf16 products"


@dataclass(frozen=True)
class Case:
    """One thing to time against one peer. `build` gives our step and the peer's on the same weights and inputs."""

    op: str
    shape: str
    length: int
    mode: str
    peer: str
    build: Callable[[Case], tuple[Step, Step]]
    matrix_flops: float = 0.0
    with_memory: bool = False

    @property
    def name(self) -> str:
        return f"{self.op}-{self.shape}-{self.length}-{self.mode}-{self.peer}".replace(" ", "-").replace(",", "")


def steps(
    case: Case, ours: Callable[..., Tensor], peer: Callable[..., Tensor], inputs: list[Tensor]
) -> tuple[Step, Step]:
    """Steps that run a function of the inputs, and its gradients where the mode asks for them."""

    def step(function: Callable[..., Tensor]) -> Step:
        def forward() -> None:
            with torch.no_grad():
                function(*inputs)

        leaves = [tensor.clone().requires_grad_() for tensor in inputs]

        def both() -> None:
            output = function(*leaves)
            torch.autograd.grad(output, leaves, torch.ones_like(output))

        return forward if case.mode == FORWARD else both

    return step(ours), step(peer)


def require(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise InputError(f"{package} is not installed; pip install it, or leave its comparisons out.")


def fla_naive(operator: str) -> ModuleType:
    """fla's pure PyTorch form of an operator, from its file: importing the package would ask for triton and a GPU."""
    require("fla")
    require("einops")
    spec = importlib.util.find_spec("fla")
    assert spec is not None
    for place in spec.submodule_search_locations or []:
        path = Path(place, "ops", operator, "naive.py")
        if path.exists():
            naive = importlib.util.spec_from_file_location(f"lengthen_fla_naive_{operator}", path)
            assert naive is not None and naive.loader is not None
            module = importlib.util.module_from_spec(naive)
            sys.modules[naive.name] = module
            naive.loader.exec_module(module)
            return module
    raise InputError(f"The installed fla has no pure PyTorch form of {operator}; install flash-linear-attention 0.6.")
