"""The raw extension: it writes every element of its outputs, refuses in a sentence, keeps memory for the next."""

import pytest
import torch
from torch import Tensor

from lengthen.kernels.dispatch import compiled
from lengthen.kernels.recurrence import fresh_like
from tests.kernels.recurrence_comparison import INSTRUCTION_SETS, running

pytestmark = pytest.mark.skipif(compiled is None, reason="the extension is not built")

B, T, H, G, K, V, D = 2, 130, 4, 2, 5, 7, 19


def poison(*shape: int) -> Tensor:
    return torch.full(shape, torch.nan)


def ssd_calls() -> list[tuple[str, list, list[Tensor]]]:
    inputs = [
        torch.randn(B, T, G, K),
        torch.randn(B, T, G, K),
        torch.randn(B, T, H, V),
        -torch.rand(B, T, H),
        torch.rand(B, T, H),
        torch.randn(H),
        torch.randn(B, H, K, V),
    ]
    forward = [poison(B, T, H, V), poison(B, H, K, V), poison(B, H * 2, K, V)]
    backward = [
        *(poison(2 * B, T, G, K) for _ in range(2)),
        poison(B, T, H, V),
        poison(B, T, H),
        poison(B, T, H),
        poison(B, H),
        poison(B, H, K, V),
    ]
    gradients = [torch.randn(B, T, H, V), torch.randn(B, H, K, V)]
    return [
        ("ssd_forward", [*inputs, *forward, 64, 2, 1], forward),
        ("ssd_backward", [*gradients, *inputs, forward[2], *backward, 64, 2, 1], backward),
    ]


def delta_rule_calls() -> list[tuple[str, list, list[Tensor]]]:
    inputs = [
        torch.randn(B, T, H, K),
        torch.nn.functional.normalize(torch.randn(B, T, H, K), dim=-1),
        torch.randn(B, T, H, V),
        -torch.rand(B, T, H),
        torch.rand(B, T, H),
        torch.rand(B, T, H),
        torch.randn(B, H, K, V),
    ]
    forward = [poison(B, T, H, V), poison(B, H, K, V), poison(B, H * 2, K, V)]
    backward = [
        *(poison(B, T, H, K) for _ in range(2)),
        poison(B, T, H, V),
        *(poison(B, T, H) for _ in range(3)),
        poison(B, H, K, V),
    ]
    gradients = [torch.randn(B, T, H, V), torch.randn(B, H, K, V)]
    return [
        ("gated_delta_rule_forward", [*inputs, *forward, 64, 1], forward),
        ("gated_delta_rule_backward", [*gradients, *inputs, forward[2], *backward, 64, 1], backward),
    ]


def short_conv_calls() -> list[tuple[str, list, list[Tensor]]]:
    inputs = [
        torch.randn(B, T, D),
        torch.randn(D, 4),
        torch.randn(D),
        torch.randn(B, D, 3),
        (torch.rand(B, T) < 0.1).view(torch.uint8),
        torch.tensor([T, T // 2]),
        True,
    ]
    forward = [poison(B, T, D), poison(B, D, 3)]
    backward = [poison(B, T, D), poison(B, D, 4), poison(B, D), poison(B, D, 3)]
    gradients = [torch.randn(B, T, D), torch.randn(B, D, 3)]
    return [
        ("short_conv_forward", [*inputs, *forward, 1], forward),
        ("short_conv_backward", [*gradients, *inputs, *backward, 1], backward),
    ]


CALLS = {"ssd": ssd_calls, "gated_delta_rule": delta_rule_calls, "short_conv": short_conv_calls}


@pytest.mark.parametrize("form", INSTRUCTION_SETS)
@pytest.mark.parametrize("operator", CALLS)
def test_every_element_is_written(form: str, operator: str) -> None:
    torch.manual_seed(0)
    with running(form):
        for name, arguments, outputs in CALLS[operator]():
            getattr(compiled, name)(*arguments)
            for index, output in enumerate(outputs):
                assert torch.isfinite(output).all(), f"output {index} of {name}"


@pytest.mark.parametrize("operator", CALLS)
def test_what_does_not_fit_is_refused_in_a_sentence(operator: str) -> None:
    for name, arguments, outputs in CALLS[operator]():
        function = getattr(compiled, name)
        for index, argument in enumerate(arguments):
            if not isinstance(argument, Tensor):
                continue
            for wrong in (argument.new_zeros(1, 1, 1, 1, 1), argument.double(), argument[..., :0]):
                with pytest.raises((ValueError, TypeError)):
                    function(*arguments[:index], wrong, *arguments[index + 1 :])
            if any(argument is output for output in outputs) and argument.shape[-1] > 1:
                strided = torch.empty(*argument.shape[:-1], 2 * argument.shape[-1])[..., ::2]
                if name.endswith("backward") and argument.dim() == 3 and operator != "short_conv":
                    continue  # one number a head: any stride will do
                with pytest.raises(ValueError, match="contiguous"):
                    function(*arguments[:index], strided, *arguments[index + 1 :])


@pytest.mark.parametrize("blocks", [0, 3])
def test_shares_of_heads_are_checked(blocks: int) -> None:
    name, arguments, _ = ssd_calls()[0]
    with pytest.raises(ValueError, match="blocks"):
        getattr(compiled, name)(*arguments[:-2], blocks, 1)


def test_an_unknown_instruction_set_is_refused() -> None:
    with pytest.raises(ValueError, match="no instruction set vax"):
        compiled.set_instruction_set("vax")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_outputs_take_the_memory_of_those_that_are_gone(dtype: torch.dtype) -> None:
    like = torch.zeros(3, 2**20, dtype=dtype)[:, : 2**20 - 1]
    first, second = fresh_like(like), fresh_like(like)
    assert first.shape == like.shape and first.dtype == dtype and first.is_contiguous()
    first.fill_(1)
    second.fill_(2)
    assert (first == 1).all()  # both live, in memory of their own
    place, slice_of_first = first.data_ptr(), first[1]
    del first
    assert fresh_like(like).data_ptr() != place  # a view still needs it
    del slice_of_first
    assert fresh_like(like).data_ptr() == place
    assert fresh_like(like[:, : 2**19]).data_ptr() != place  # so small an output would waste most of it


def test_an_output_without_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="no bytes"):
        compiled.large_output(0)
