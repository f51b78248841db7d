"""Compares a recurrence with its float64 definition: outputs, final state and every gradient."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
import torch.utils.deterministic
from torch import Tensor

from lengthen.kernels.dispatch import compiled, portable_only

Operator = Callable[..., tuple[Tensor, Tensor]]

INSTRUCTION_SETS = ["avx512", "avx2", "portable"]
FORMS = ["torch", *INSTRUCTION_SETS]
"""The portable PyTorch form, and the compiled kernel for each instruction set."""


@contextmanager
def running(form: str) -> Iterator[None]:
    """Inside, operators run in this form; skips the test where the machine lacks it."""
    if form == "torch":
        with portable_only():
            yield
        return
    if compiled is None:
        pytest.skip("the extension is not built")
    before = compiled.instruction_set()
    try:
        compiled.set_instruction_set(form)
    except ValueError:
        pytest.skip(f"this machine has no {form}")
    try:
        yield
    finally:
        compiled.set_instruction_set(before)


def errors(actual: Tensor, expected: Tensor) -> tuple[float, float]:
    """norm(a - r) / norm(r) and max|a - r| / max|r|; where r is all zero, a must be too."""
    difference = actual.double() - expected
    if not expected.any():
        return difference.norm().item(), difference.abs().max().item()
    return (
        (difference.norm() / expected.norm()).item(),
        (difference.abs().max() / expected.abs().max()).item(),
    )


def evaluate(operator: Operator, inputs: dict[str, Tensor], **options: object) -> dict[str, Tensor]:
    """Outputs of the operator and gradients of fixed random sums of them, by name."""
    leaves = {
        name: tensor.detach().requires_grad_() if tensor.is_floating_point() else tensor
        for name, tensor in inputs.items()
    }
    outputs = operator(**leaves, **options)
    generator = torch.Generator().manual_seed(7)
    total = torch.zeros((), dtype=torch.float64)
    named = {}
    for index, output in enumerate(outputs):
        weight = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        total = total + (weight.to(output) * output).double().sum().cpu()
        named[f"output {index}"] = output.detach()
    wanted = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    gradients = torch.autograd.grad(total, list(wanted.values()))
    return named | {f"gradient of {name}": gradient for name, gradient in zip(wanted, gradients)}


class _Evaluation(NamedTuple):
    key: tuple[object, ...]
    inputs: dict[str, Tensor]
    results: Any


_latest: _Evaluation | None = None
"""What a definition was last asked: a test asks it the same for every form, one after the other."""


def _by_definition(how: Callable[..., Any], reference: Operator, inputs: dict[str, Tensor], options: dict) -> Any:
    """how(reference, inputs in float64, **options), or the latest result where nothing has changed."""
    global _latest
    key = (how.__code__, reference, tuple(options.items()))
    if _latest is None or _latest.key != key or not _same(_latest.inputs, inputs):
        double = {name: t.detach().double() if t.is_floating_point() else t for name, t in inputs.items()}
        kept = {name: tensor.detach().clone() for name, tensor in inputs.items()}
        _latest = _Evaluation(key, kept, how(reference, double, **options))
    return _latest.results


def _same(some: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    return some.keys() == others.keys() and all(
        tensor.dtype == others[name].dtype and torch.equal(tensor, others[name]) for name, tensor in some.items()
    )


def assert_agrees(
    operator: Operator, reference: Operator, inputs: dict[str, Tensor], tolerance: float, **options: object
) -> dict[str, Tensor]:
    """Assert that the operator agrees with its definition in float64 on the very same inputs."""
    actual = evaluate(operator, inputs, **options)
    expected = _by_definition(evaluate, reference, inputs, options)
    failures = []
    for name, value in expected.items():
        assert torch.isfinite(value).all(), f"{name} of the reference is not finite"
        worst = max(errors(actual[name], value))
        if not worst <= tolerance:
            failures.append(f"{name}: {worst:.2e}")
    assert not failures, f"beyond {tolerance:.0e}: " + ", ".join(failures)
    return actual


def in_segments(
    operator: Operator, inputs: dict[str, Tensor], state_name: str, sizes: list[int], sequences: set[str]
) -> tuple[Tensor, Tensor]:
    """Run the operator over pieces of these sizes, each from the final state of the one before."""
    outputs, start = [], 0
    inputs = dict(inputs)
    for size in sizes:
        piece = {name: t[:, start : start + size] if name in sequences else t for name, t in inputs.items()}
        output, inputs[state_name] = operator(**piece)
        outputs.append(output)
        start += size
    return torch.cat(outputs, 1), inputs[state_name]


def assert_agrees_over_131072(operator: Operator, reference: Operator, inputs: dict[str, Tensor]) -> None:
    """Outputs and final state over a long sequence: 5e-5 is promised for 131,072 positions."""
    with torch.no_grad():
        results = operator(**inputs)
        expected = _by_definition(lambda function, given: function(**given), reference, inputs, {})
    for result, value in zip(results, expected):
        assert max(errors(result, value)) < 5e-5


def assert_writes_everything(operator: Operator, inputs: dict[str, Tensor], **options: object) -> None:
    """Results and gradients are finite although every buffer the operator allocates starts out as NaN."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        assert torch.empty(3).isnan().all()
        results = evaluate(operator, inputs, **options)
    finally:
        torch.use_deterministic_algorithms(before)
    for name, value in results.items():
        assert torch.isfinite(value).all(), name


def assert_gives_the_initial_state_s_gradient_only_when_wanted(
    operator: Operator, inputs: dict[str, Tensor], forward: Any, backward: Any, arguments: list[Tensor | None]
) -> None:
    """Without it the other gradients are the same to the bit, and memory for none is taken.

    forward, backward: the custom operators behind `operator`; arguments: the forward's, the initial state last.
    """
    everything = evaluate(operator, inputs)
    rest = {name: tensor for name, tensor in inputs.items() if name != "initial_state"}
    found = evaluate(lambda **given: operator(**given, initial_state=inputs["initial_state"].detach()), rest)
    assert everything.keys() - found.keys() == {"gradient of initial_state"}
    for name, value in found.items():
        assert torch.equal(value, everything[name]), name

    output, final_state, boundary_states = forward(*arguments)
    for wanted, shape in ((True, final_state.shape), (False, (0,))):
        given = (output, final_state, *arguments, boundary_states, wanted)
        assert backward(*given)[-1].shape == shape
        torch.library.opcheck(backward, given)


def assert_definition_differentiates(reference: Operator, inputs: dict[str, Tensor], **options: object) -> None:
    """Check autograd through a definition against finite differences, in float64."""
    inputs = {name: t.double() if t.is_floating_point() else t for name, t in inputs.items()}
    names = [name for name, tensor in inputs.items() if tensor.is_floating_point()]

    def function(*values: Tensor) -> tuple[Tensor, ...]:
        return tuple(reference(**(inputs | dict(zip(names, values))), **options))

    assert torch.autograd.gradcheck(function, [inputs[name].requires_grad_() for name in names])


def assert_compiles_and_exports(operator: Operator, inputs: dict[str, Tensor], **options: object) -> None:
    """The operator goes whole through torch.compile and torch.export and computes the same."""

    def function(values: dict[str, Tensor]) -> tuple[Tensor, ...]:
        return tuple(operator(**values, **options))

    class Module(torch.nn.Module):
        def forward(self, values: dict[str, Tensor]) -> tuple[Tensor, ...]:
            return function(values)

    expected = function(inputs)
    compiled_function = torch.compile(function, fullgraph=True, backend="aot_eager")
    exported = torch.export.export(Module(), (inputs,)).module()
    for results in (compiled_function(inputs), exported(inputs)):
        for result, value in zip(results, expected):
            assert torch.equal(result, value)
    leaves = {n: t.clone().requires_grad_() if t.is_floating_point() else t for n, t in inputs.items()}
    wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]
    one, other = (
        torch.autograd.grad(sum(result.sum() for result in call(leaves)), wanted)
        for call in (function, compiled_function)
    )
    for gradient, value in zip(one, other):
        assert torch.equal(gradient, value)
