"""The extension itself, below the operators, answers what does not fit with a sentence and never with a crash."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from lengthen.kernels.dispatch import compiled
from lengthen.kernels.recurrence import CHUNK

pytestmark = pytest.mark.skipif(compiled is None, reason="the extension is not built")

B, T, H, K, V, D, N = 2, 5, 2, 3, 4, 6, 3


def selective_scan() -> dict[str, Tensor | int | bool | None]:
    names = ("skip", "gate", "dt_bias", "input_gain", "decay_dt", "reset", "initial_state", "checkpoints")
    return dict.fromkeys(names) | {
        "x": torch.zeros(B, T, D),
        "dt": torch.zeros(B, T, D),
        "A": torch.zeros(D, N),
        "B": torch.zeros(B, T, N),
        "C": torch.zeros(B, T, N),
        "dt_softplus": False,
        "output": torch.zeros(B, T, D),
        "final_state": torch.zeros(B, D, N),
    }


def gated_linear_attention() -> dict[str, Tensor | int | bool | None]:
    return dict.fromkeys(("input_gain", "bonus", "initial_state", "checkpoints")) | {
        "query": torch.zeros(B, T, H, K),
        "key": torch.zeros(B, T, H, K),
        "value": torch.zeros(B, T, H, V),
        "log_decay": torch.zeros(B, T, H, K),
        "output": torch.zeros(B, T, H, V),
        "final_state": torch.zeros(B, H, K, V),
    }


def linear_scan() -> dict[str, Tensor | int | bool | None]:
    return dict.fromkeys(("input_gain", "initial_state", "checkpoints")) | {
        "log_decay": torch.zeros(B, T, D),
        "x": torch.zeros(B, T, D),
        "output": torch.zeros(B, T, D),
        "final_state": torch.zeros(B, D),
    }


def rwkv7() -> dict[str, Tensor | int | bool | None]:
    keys = ("receptance", "log_decay", "key", "a", "b")
    return dict.fromkeys(("input_gain", "initial_state", "checkpoints")) | {
        **{name: torch.zeros(B, T, H, K) for name in keys},
        "value": torch.zeros(B, T, H, V),
        "output": torch.zeros(B, T, H, V),
        "final_state": torch.zeros(B, H, K, V),
    }


OPERATORS = [selective_scan, gated_linear_attention, linear_scan, rwkv7]


@pytest.mark.parametrize("arguments", OPERATORS)
def test_takes_what_fits(arguments: Callable[[], dict[str, Tensor]]) -> None:
    getattr(compiled, f"{arguments.__name__}_forward")(**arguments(), chunk=CHUNK, threads=2)


@pytest.mark.parametrize("arguments", OPERATORS)
def test_refuses_what_does_not(arguments: Callable[[], dict[str, Tensor]]) -> None:
    call = getattr(compiled, f"{arguments.__name__}_forward")
    for name, tensor in arguments().items():
        if not isinstance(tensor, Tensor):
            continue
        for wrong, message in [
            (tensor[..., :-1], "has shape"),
            (tensor.double(), "is neither float32 nor bfloat16|is not float32"),
            (tensor[0], "has shape|axes"),
        ]:
            with pytest.raises(ValueError, match=message):
                call(**arguments() | {name: wrong}, chunk=CHUNK, threads=1)
    for name in ("output", "final_state"):
        spread = torch.zeros(*arguments()[name].shape, 2)[..., 0]
        with pytest.raises(ValueError, match="contiguous"):
            call(**arguments() | {name: spread}, chunk=CHUNK, threads=1)
    with pytest.raises(ValueError, match="chunk is below 1"):
        call(**arguments(), chunk=0, threads=1)
    with pytest.raises(ValueError, match="threads is below 1"):
        call(**arguments(), chunk=CHUNK, threads=0)
    with pytest.raises(ValueError, match="checkpoints has shape"):
        call(**arguments() | {"checkpoints": torch.zeros(B, 9, 1, 1)}, chunk=CHUNK, threads=1)
