"""The gated delta rule agrees with its definition in every form, and is a well-behaved operator."""

import math

import pytest
import torch
from torch import Tensor

from lengthen.kernels import gated_delta_rule, gated_delta_rule_reference
from tests.kernels.recurrence_comparison import (
    FORMS,
    assert_agrees,
    assert_agrees_over_131072,
    assert_gives_the_initial_state_s_gradient_only_when_wanted,
    errors,
    evaluate,
    in_segments,
    running,
)

SEQUENCES = {"query", "key", "value", "log_decay", "beta", "input_gain"}
DECAYS = ["none", "head", "channel"]
ARGUMENTS = ["query", "key", "value", "log_decay", "beta", "input_gain", "initial_state"]
FP32 = 5e-6  # rounding of a few thousand fp32 steps, well inside the promised 1e-5
BF16 = 1e-2  # the output is rounded to 8 bits
LONG = [1, 2, 63, 64, 65, 500, 2049]


def make(
    batch: int,
    positions: int,
    heads: int,
    groups: int,
    key_dim: int,
    value_dim: int,
    *,
    decay: str = "head",
    full: bool = True,
) -> dict[str, Tensor | None]:
    g = torch.Generator().manual_seed(positions)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    inputs: dict[str, Tensor | None] = {
        "query": normal(batch, positions, groups, key_dim) / math.sqrt(key_dim),
        "key": torch.nn.functional.normalize(normal(batch, positions, groups, key_dim), dim=-1),
        "value": normal(batch, positions, heads, value_dim),
        "log_decay": -0.2 * torch.rand(batch, positions, heads, generator=g),
        "beta": torch.rand(batch, positions, heads, generator=g),
    }
    if decay == "channel":
        inputs["log_decay"] = -0.2 * torch.rand(batch, positions, heads, key_dim, generator=g)
    if full:
        inputs |= {
            "input_gain": torch.rand(batch, positions, heads, generator=g),
            "initial_state": 10 * normal(batch, heads, key_dim, value_dim),
        }
    if decay == "none":
        del inputs["log_decay"]
    return inputs


def delta_rule(log_decay: Tensor | None = None, **inputs: Tensor) -> tuple[Tensor, Tensor]:
    return gated_delta_rule(log_decay=log_decay, **inputs)


def reference(log_decay: Tensor | None = None, **inputs: Tensor) -> tuple[Tensor, Tensor]:
    return gated_delta_rule_reference(log_decay=log_decay, **inputs)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("positions", [1, 2, 63, 64, 65, 130, 577])
def test_agrees_with_the_definition(form: str, decay: str, positions: int) -> None:
    with running(form):
        assert_agrees(delta_rule, reference, make(2, positions, 4, 2, 12, 18, decay=decay), FP32)


@pytest.mark.acceptance
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("positions", LONG)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("full", [False, True])
def test_agrees_with_the_definition_at_length(form: str, decay: str, positions: int, batch: int, full: bool) -> None:
    with running(form):
        inputs = make(batch, positions, 2, 1, 64, 32, decay=decay, full=full)
        assert_agrees(delta_rule, reference, inputs, FP32)


@pytest.mark.acceptance
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("decay", DECAYS)
def test_holds_its_digits_over_131072_positions(form: str, decay: str) -> None:
    inputs = make(1, 131_072, 1, 1, 8, 4, decay=decay)
    if "log_decay" in inputs:
        inputs["log_decay"] = torch.full_like(inputs["log_decay"], -1e-5)
    with running(form):
        assert_agrees_over_131072(delta_rule, reference, inputs)


@pytest.mark.parametrize("form", FORMS)
def test_without_options(form: str) -> None:
    with running(form):
        assert_agrees(delta_rule, reference, make(1, 100, 3, 1, 5, 33, full=False), FP32)


@pytest.mark.parametrize("form", FORMS)
def test_one_key_written_again_and_again(form: str) -> None:
    # The hardest triangular system: every key overlaps every other in full, and every value replaces the last.
    inputs = make(1, 150, 2, 1, 12, 18, decay="none")
    inputs["key"] = inputs["key"][:, :1].expand_as(inputs["key"]).clone()
    inputs["beta"] = torch.ones_like(inputs["beta"])
    with running(form):
        assert_agrees(delta_rule, reference, inputs, FP32)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("decay", DECAYS)
def test_steps_up_to_two_turn_what_is_stored_round(form: str, decay: str) -> None:
    # Beyond 1 the transition's eigenvalue along the key is negative, down to -1 without a decay.
    inputs = make(2, 200, 2, 1, 12, 18, decay=decay)
    inputs["beta"] = 2 * inputs["beta"]
    inputs["beta"][:, ::7] = 2.0
    with running(form):
        assert_agrees(delta_rule, reference, inputs, FP32)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("decay", DECAYS)
def test_bfloat16_sequences(form: str, decay: str) -> None:
    inputs = {name: tensor.bfloat16() for name, tensor in make(2, 100, 4, 1, 32, 16, decay=decay).items()}
    with running(form):
        actual = assert_agrees(delta_rule, reference, inputs, BF16)
    assert actual["output 0"].dtype == torch.bfloat16
    assert actual["output 1"].dtype == torch.float32


@pytest.mark.parametrize("form", FORMS)
def test_strided_inputs(form: str) -> None:
    inputs = make(2, 90, 4, 4, 12, 18)
    for name in ("query", "key", "value"):
        inputs[name] = inputs[name].transpose(1, 3).contiguous().transpose(1, 3)
    for name in ("log_decay", "beta"):
        inputs[name] = inputs[name].repeat_interleave(2, -1)[..., ::2]
    inputs["initial_state"] = inputs["initial_state"].mT.contiguous().mT
    with running(form):
        assert_agrees(delta_rule, reference, inputs, FP32)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("decay", ["head", "channel"])
@pytest.mark.parametrize("log_decay", [0.0, -1e-8, -3e-6, -2e-3, -5.0])
def test_constant_decays_from_none_to_nearly_all(form: str, decay: str, log_decay: float) -> None:
    inputs = make(1, 300, 2, 1, 16, 16, decay=decay)
    inputs["log_decay"] = torch.full_like(inputs["log_decay"], log_decay)
    inputs["initial_state"] *= 1e3
    with running(form):
        assert_agrees(delta_rule, reference, inputs, 1e-5)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("decay", ["head", "channel"])
def test_minus_infinity_forgets_everything_before(form: str, decay: str) -> None:
    inputs = make(2, 200, 4, 2, 12, 18, decay=decay)
    cut = torch.rand(inputs["log_decay"].shape, generator=torch.Generator().manual_seed(1)) < 0.03
    inputs["log_decay"] = inputs["log_decay"].masked_fill(cut, -torch.inf)
    with running(form):
        actual = assert_agrees(delta_rule, reference, inputs, FP32)
    assert cut.any()
    assert not actual["gradient of log_decay"][cut].any()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("decay", ["head", "channel"])
def test_a_reset_leaks_nothing(form: str, decay: str) -> None:
    inputs = make(1, 150, 4, 1, 12, 18, decay=decay)
    inputs["log_decay"][:, 70] = -torch.inf
    changed = {name: tensor.clone() for name, tensor in inputs.items()}
    changed["value"][:, :70] *= 1e4
    changed["initial_state"] *= 1e4
    with running(form):
        (before, state), (after, other_state) = delta_rule(**inputs), delta_rule(**changed)
    assert torch.equal(before[:, 70:], after[:, 70:])
    assert torch.equal(state, other_state)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("decay", DECAYS)
def test_segments_equal_one_run(form: str, decay: str) -> None:
    inputs = make(2, 201, 4, 2, 12, 18, decay=decay)
    with running(form):
        whole = delta_rule(**inputs)
        pieces = in_segments(delta_rule, inputs, "initial_state", [1, 63, 64, 70, 3], SEQUENCES)
    for one, other in zip(whole, pieces):
        assert max(errors(one, other.double())) < 2e-6


@pytest.mark.parametrize("form", FORMS)
def test_threads_agree_bit_for_bit(form: str) -> None:
    inputs = make(2, 130, 4, 2, 12, 18)
    with running(form):
        alone = evaluate(delta_rule, inputs)
        torch.set_num_threads(2)
        try:
            together = evaluate(delta_rule, inputs)
        finally:
            torch.set_num_threads(1)
    for name, value in alone.items():
        assert torch.equal(together[name], value), name


@pytest.mark.parametrize("decay", DECAYS)
def test_the_definition_is_differentiated_rightly(decay: str) -> None:
    inputs = {name: tensor.double() for name, tensor in make(1, 4, 2, 1, 2, 2, decay=decay).items()}

    def function(*values: Tensor) -> tuple[Tensor, Tensor]:
        return reference(**dict(zip(inputs, values)))

    assert torch.autograd.gradcheck(function, [tensor.requires_grad_() for tensor in inputs.values()])


@pytest.mark.parametrize("decay", DECAYS)
def test_float64_stays_float64(decay: str) -> None:
    inputs = {name: tensor.double() for name, tensor in make(2, 130, 4, 2, 12, 18, decay=decay).items()}
    actual = assert_agrees(delta_rule, reference, inputs, 1e-11)
    assert {value.dtype for value in actual.values()} == {torch.float64}


@pytest.mark.parametrize("form", ["torch", "avx512"])
@pytest.mark.parametrize("decay", DECAYS)
def test_is_a_well_formed_operator(form: str, decay: str) -> None:
    inputs = make(2, 70, 4, 4, 3, 5, decay=decay, full=decay == "head")
    arguments = [inputs[name].requires_grad_() if name in inputs else None for name in ARGUMENTS]
    with running(form):
        torch.library.opcheck(torch.ops.lengthen.gated_delta_rule_forward, arguments)


@pytest.mark.parametrize("form", ["torch", "avx2"])
def test_the_initial_state_s_gradient_is_given_when_wanted(form: str) -> None:
    inputs = make(2, 70, 4, 4, 3, 5)
    operators = torch.ops.lengthen.gated_delta_rule_forward, torch.ops.lengthen.gated_delta_rule_backward
    with running(form):
        assert_gives_the_initial_state_s_gradient_only_when_wanted(
            delta_rule, inputs, *operators, [inputs[name] for name in ARGUMENTS]
        )


def test_compiles_and_exports_whole() -> None:
    inputs = make(1, 66, 4, 2, 3, 5)

    def function(values: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return gated_delta_rule(**values)

    expected = function(inputs)
    for one, other in zip(torch.compile(function, fullgraph=True, backend="aot_eager")(inputs), expected):
        assert torch.equal(one, other)

    class Module(torch.nn.Module):
        def forward(self, values: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
            return function(values)

    for one, other in zip(torch.export.export(Module(), (inputs,)).module()(inputs), expected):
        assert torch.equal(one, other)


@pytest.mark.parametrize("form", FORMS)
def test_the_final_state_is_fresh_storage(form: str) -> None:
    inputs = make(1, 1, 4, 2, 3, 5)
    kept = inputs["initial_state"].clone()
    with running(form):
        _, final_state = delta_rule(**inputs)
    final_state.zero_()
    assert torch.equal(inputs["initial_state"], kept)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"value": torch.zeros(1, 0, 4, 5), "query": torch.zeros(1, 0, 2, 3)}, "no positions"),
        ({"query": torch.zeros(1, 3, 3, 3)}, "groups"),
        ({"key": torch.zeros(1, 3, 2, 4)}, "key has shape"),
        ({"log_decay": torch.zeros(1, 3, 4, 5)}, "log_decay has shape"),
        ({"initial_state": torch.zeros(1, 4, 5, 3)}, "initial_state has shape"),
        ({"beta": torch.zeros(1, 3, 4, dtype=torch.int64)}, "beta is torch.int64"),
    ],
)
def test_refuses_what_does_not_fit(change: dict[str, Tensor], error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        gated_delta_rule(**(make(1, 3, 4, 2, 3, 5) | change))
