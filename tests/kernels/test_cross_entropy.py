"""The linear head's loss agrees with its definition without ever holding the whole logits."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from lengthen.kernels import cross_entropy, linear_cross_entropy, linear_cross_entropy_reference
from tests.kernels.recurrence_comparison import errors


def make(tokens: int, channels: int, vocabulary: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    targets = torch.randint(0, vocabulary, (tokens,), generator=g)
    targets[::7] = -100
    return (
        torch.randn(tokens, channels, generator=g, dtype=dtype),
        torch.randn(vocabulary, channels, generator=g, dtype=dtype),
        targets,
        torch.randn(vocabulary, generator=g, dtype=dtype),
    )


def loss_and_gradients(function, hidden, weight, targets, bias, reduction):
    leaves = [x.detach().clone().requires_grad_() for x in (hidden, weight, bias)]
    loss = function(leaves[0], leaves[1], targets, leaves[2], reduction=reduction)
    scale = torch.linspace(0.5, 2, loss.numel(), dtype=loss.dtype).view(loss.shape)
    return loss.detach(), *torch.autograd.grad((loss * scale).sum(), leaves)


@pytest.mark.parametrize("reduction", ["sum", "none"])
@pytest.mark.parametrize(
    # fp32: rounding of sums of 40 products; bf16: 8 bits of each logit.
    ("dtype", "tolerance"),
    [(torch.float64, 1e-13), (torch.float32, 2e-6), (torch.bfloat16, 2e-2)],
)
def test_agrees_with_the_definition_in_pieces(monkeypatch, reduction, dtype, tolerance) -> None:
    monkeypatch.setattr(cross_entropy, "LOGITS_ELEMENTS", 97 * 7)
    inputs = make(50, 40, 97, dtype)
    actual = loss_and_gradients(linear_cross_entropy, *inputs, reduction)
    double = [x.double() if x.is_floating_point() else x for x in inputs]
    expected = loss_and_gradients(linear_cross_entropy_reference, *double, reduction)
    assert actual[0].dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    for one, other in zip(actual, expected):
        assert max(errors(one, other)) < tolerance


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_ignored_targets_have_no_loss_and_no_gradient(reduction: str) -> None:
    hidden, weight, targets, bias = make(20, 4, 11, torch.float32)
    changed = torch.where((targets == -100).unsqueeze(1), 100 * hidden, hidden)
    expected = loss_and_gradients(linear_cross_entropy, hidden, weight, targets, bias, reduction)
    actual = loss_and_gradients(linear_cross_entropy, changed, weight, targets, bias, reduction)
    for one, other in zip(actual, expected):
        assert torch.equal(one, other)
    assert not actual[1][targets == -100].any()
    if reduction == "none":
        assert not actual[0][targets == -100].any()


def test_gradients_can_be_asked_for_again() -> None:
    hidden, weight, targets, bias = make(20, 4, 11, torch.float32)
    leaves = [x.requires_grad_() for x in (hidden, weight, bias)]
    loss = linear_cross_entropy(hidden, weight, targets, bias)
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    again = torch.autograd.grad(3 * loss, leaves)
    for one, other in zip(first, again):
        assert torch.equal(3 * one, other)


def test_without_gradients_the_sum_is_the_same() -> None:
    hidden, weight, targets, _ = make(20, 4, 11, torch.float32)
    with torch.no_grad():
        loss = linear_cross_entropy(hidden, weight.requires_grad_(), targets)
    assert torch.allclose(loss, linear_cross_entropy(hidden, weight, targets))
    assert not loss.requires_grad


@pytest.mark.parametrize("operator", ["summed_loss_with_gradients", "token_losses"])
def test_is_a_well_formed_operator(operator: str) -> None:
    hidden, weight, targets, bias = make(9, 4, 11, torch.float32)
    leaves = [x.requires_grad_() for x in (hidden, weight)]
    torch.library.opcheck(getattr(torch.ops.lengthen, operator), (*leaves, targets, bias.requires_grad_(), -100))


@pytest.mark.parametrize("reduction", ["sum", "none"])
def test_compiles_whole(reduction: str) -> None:
    hidden, weight, targets, bias = make(9, 4, 11, torch.float32)

    def function(hidden: Tensor) -> Tensor:
        return linear_cross_entropy(hidden, weight, targets, bias, reduction=reduction)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(hidden), function(hidden))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"weight": torch.zeros(11, 5)}, "hidden"),
        ({"targets": torch.zeros(9)}, "targets"),
        ({"bias": torch.zeros(4)}, "bias"),
        ({"reduction": "mean"}, "mean"),
    ],
)
def test_refuses_what_does_not_fit(change: dict[str, object], error: str) -> None:
    arguments = dict(zip(("hidden", "weight", "targets", "bias"), make(9, 4, 11, torch.float32)))
    with pytest.raises(ValueError, match=error):
        linear_cross_entropy(**(arguments | change))


MEASURE = """
import torch
from lengthen.kernels import linear_cross_entropy
torch.set_num_threads(1)
def megabytes(kind):
    lines = open("/proc/self/status").read().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if kind in line)
hidden = torch.randn(32768, 768).requires_grad_()
weight = torch.randn(50304, 768).mul_(0.02).requires_grad_()
targets = torch.randint(0, 50304, (32768,))
(linear_cross_entropy(hidden[:200], weight, targets[:200]) / 200).backward()
hidden.grad = weight.grad = None
open("/proc/self/clear_refs", "w").write("5")  # the peak starts again from here
before = megabytes("VmRSS")
(linear_cross_entropy(hidden, weight, targets) / 32768).backward()
print(megabytes("VmHWM") - before)
"""


@pytest.mark.acceptance
def test_a_vocabulary_of_fifty_thousand_takes_little_memory() -> None:
    # 255 MB of it are the two gradients themselves.
    result = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    print(f"loss over 50,304 tokens at 32,768 positions of 768: {float(result.stdout):.0f} MiB")
    assert float(result.stdout) < 300, "MB beyond the hidden states, 32,768 positions of 768, 50,304 tokens"
