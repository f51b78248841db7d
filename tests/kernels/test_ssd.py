"""The scalar-decay recurrence agrees with its definition in every form, and is a well-behaved operator."""

import math

import pytest
import torch
from torch import Tensor

from lengthen.kernels import ssd, ssd_reference
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

SEQUENCES = {"query", "key", "value", "log_decay", "input_gain"}
ARGUMENTS = ["query", "key", "value", "log_decay", "input_gain", "skip", "initial_state"]
FP32 = 5e-6  # rounding of a few thousand fp32 steps, well inside the promised 1e-5
BF16 = 1e-2  # the output is rounded to 8 bits
LONG = [1, 2, 63, 64, 65, 500, 2049]


def make(
    batch: int, positions: int, heads: int, groups: int, key_dim: int, value_dim: int, *, full: bool = True
) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(positions)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    inputs = {
        "query": normal(batch, positions, groups, key_dim),
        "key": normal(batch, positions, groups, key_dim) / math.sqrt(key_dim),
        "value": normal(batch, positions, heads, value_dim),
        "log_decay": -0.2 * torch.rand(batch, positions, heads, generator=g),
    }
    if full:
        inputs |= {
            "input_gain": torch.rand(batch, positions, heads, generator=g),
            "skip": normal(heads),
            "initial_state": 10 * normal(batch, heads, key_dim, value_dim),
        }
    return inputs


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("positions", [1, 2, 63, 64, 65, 130, 577])
def test_agrees_with_the_definition(form: str, positions: int) -> None:
    with running(form):
        assert_agrees(ssd, ssd_reference, make(2, positions, 4, 2, 12, 18), FP32)


@pytest.mark.acceptance
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("positions", LONG)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("full", [False, True])
def test_agrees_with_the_definition_at_length(form: str, positions: int, batch: int, full: bool) -> None:
    with running(form):
        assert_agrees(ssd, ssd_reference, make(batch, positions, 4, 2, 64, 32, full=full), FP32)


@pytest.mark.acceptance
@pytest.mark.parametrize("form", FORMS)
def test_holds_its_digits_over_131072_positions(form: str) -> None:
    # A constant slow decay repeats its rounding at every position.
    inputs = make(1, 131_072, 2, 1, 8, 4)
    inputs["log_decay"] = torch.full_like(inputs["log_decay"], -1e-5)
    with running(form):
        assert_agrees_over_131072(ssd, ssd_reference, inputs)


@pytest.mark.parametrize("form", FORMS)
def test_without_options(form: str) -> None:
    with running(form):
        assert_agrees(ssd, ssd_reference, make(1, 100, 3, 1, 5, 33, full=False), FP32)


@pytest.mark.parametrize("form", FORMS)
def test_bfloat16_sequences(form: str) -> None:
    inputs = {name: tensor.bfloat16() for name, tensor in make(2, 100, 4, 1, 32, 16).items()}
    with running(form):
        actual = assert_agrees(ssd, ssd_reference, inputs, BF16)
    assert actual["output 0"].dtype == torch.bfloat16
    assert actual["output 1"].dtype == torch.float32


@pytest.mark.parametrize("form", FORMS)
def test_a_constant_decay_per_head_is_retention(form: str) -> None:
    # RetNet, lightning attention and simple GLA with a fixed decay: one number a head, broadcast without a copy.
    inputs = make(2, 150, 4, 4, 12, 18, full=False)
    query, key, value = (inputs[name] for name in ("query", "key", "value"))
    slopes = -(2.0 ** -torch.arange(2.0, 6.0))

    def retention(query: Tensor, key: Tensor, value: Tensor, slopes: Tensor) -> tuple[Tensor]:
        age = torch.arange(150)[:, None] - torch.arange(150)
        kept = torch.where(age >= 0, (slopes[:, None, None] * age.clamp(min=0)).exp(), 0)
        return (torch.einsum("bthk,bshk,hts,bshv->bthv", query, key, kept, value),)

    def by_recurrence(query: Tensor, key: Tensor, value: Tensor, slopes: Tensor) -> tuple[Tensor]:
        return ssd(query, key, value, slopes.expand(*value.shape[:3]))[:1]

    with running(form):
        assert_agrees(by_recurrence, retention, {"query": query, "key": key, "value": value, "slopes": slopes}, FP32)


@pytest.mark.parametrize("form", FORMS)
def test_strided_inputs(form: str) -> None:
    inputs = make(2, 90, 4, 2, 12, 18)
    for name in ("query", "key", "value"):
        inputs[name] = inputs[name].transpose(1, 3).contiguous().transpose(1, 3)
    inputs["log_decay"] = inputs["log_decay"].repeat_interleave(2, -1)[..., ::2]
    inputs["initial_state"] = inputs["initial_state"].mT.contiguous().mT
    inputs["skip"] = inputs["skip"].repeat_interleave(2)[::2]
    with running(form):
        assert_agrees(ssd, ssd_reference, inputs, FP32)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("log_decay", [0.0, -1e-8, -3e-6, -2e-3, -5.0, -60.0, -200.0])
def test_constant_decays_from_none_to_all(form: str, log_decay: float) -> None:
    inputs = make(1, 500, 2, 1, 16, 16)
    inputs["log_decay"] = torch.full_like(inputs["log_decay"], log_decay)
    inputs["initial_state"] *= 1e3
    with running(form):
        # Where a decay leaves nothing its gradient is far below fp32's least number: compare what is left.
        if log_decay < -50:
            inputs["log_decay"].requires_grad_(False)
            for one, other in zip(ssd(**inputs), ssd_reference(**{n: t.double() for n, t in inputs.items()})):
                assert max(errors(one, other)) < FP32
        else:
            assert_agrees(ssd, ssd_reference, inputs, 1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_minus_infinity_forgets_everything_before(form: str) -> None:
    inputs = make(2, 200, 4, 2, 12, 18)
    cut = torch.rand(2, 200, 4, generator=torch.Generator().manual_seed(1)) < 0.03
    inputs["log_decay"] = inputs["log_decay"].masked_fill(cut, -torch.inf)
    with running(form):
        actual = assert_agrees(ssd, ssd_reference, inputs, FP32)
    assert cut.any()
    assert not actual["gradient of log_decay"][cut].any()


@pytest.mark.parametrize("form", FORMS)
def test_a_reset_leaks_nothing(form: str) -> None:
    inputs = make(1, 150, 4, 1, 12, 18)
    inputs["log_decay"][:, 70] = -torch.inf
    changed = {name: tensor.clone() for name, tensor in inputs.items()}
    for name in ("key", "value"):
        changed[name][:, :70] *= 1e6
    changed["initial_state"] *= 1e6
    with running(form):
        (before, state), (after, other_state) = ssd(**inputs), ssd(**changed)
    assert torch.equal(before[:, 70:], after[:, 70:])
    assert torch.equal(state, other_state)


@pytest.mark.parametrize("form", FORMS)
def test_segments_equal_one_run(form: str) -> None:
    inputs = make(2, 201, 4, 2, 12, 18)
    with running(form):
        whole = ssd(**inputs)
        pieces = in_segments(ssd, inputs, "initial_state", [1, 63, 64, 70, 3], SEQUENCES)
    for one, other in zip(whole, pieces):
        assert max(errors(one, other.double())) < 2e-6


@pytest.mark.parametrize("form", FORMS)
def test_threads_agree(form: str) -> None:
    inputs = make(2, 130, 12, 2, 12, 18)
    with running(form):
        alone = evaluate(ssd, inputs)
        torch.set_num_threads(2)
        try:
            together = evaluate(ssd, inputs)
        finally:
            torch.set_num_threads(1)
    for name, value in alone.items():
        assert max(errors(together[name], value.double())) < 2e-6, name


def test_the_definition_is_differentiated_rightly() -> None:
    inputs = {name: tensor.double() for name, tensor in make(1, 4, 2, 1, 2, 2).items()}

    def function(*values: Tensor) -> tuple[Tensor, Tensor]:
        return ssd_reference(**dict(zip(inputs, values)))

    assert torch.autograd.gradcheck(function, [tensor.requires_grad_() for tensor in inputs.values()])


def test_float64_stays_float64() -> None:
    inputs = {name: tensor.double() for name, tensor in make(2, 130, 4, 2, 12, 18).items()}
    actual = assert_agrees(ssd, ssd_reference, inputs, 1e-12)
    assert {value.dtype for value in actual.values()} == {torch.float64}


@pytest.mark.parametrize("form", ["torch", "avx512"])
@pytest.mark.parametrize("full", [False, True])
def test_is_a_well_formed_operator(form: str, full: bool) -> None:
    inputs = make(2, 70, 4, 2, 3, 5, full=full)
    arguments = [inputs[name].requires_grad_() if name in inputs else None for name in ARGUMENTS]
    with running(form):
        torch.library.opcheck(torch.ops.lengthen.ssd_forward, arguments)


@pytest.mark.parametrize("form", ["torch", "avx2"])
def test_the_initial_state_s_gradient_is_given_when_wanted(form: str) -> None:
    inputs = make(2, 70, 4, 2, 3, 5)
    operators = torch.ops.lengthen.ssd_forward, torch.ops.lengthen.ssd_backward
    with running(form):
        assert_gives_the_initial_state_s_gradient_only_when_wanted(
            ssd, inputs, *operators, [inputs[name] for name in ARGUMENTS]
        )


def test_compiles_and_exports_whole() -> None:
    inputs = make(1, 66, 4, 2, 3, 5)

    def function(values: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return ssd(**values)

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
        _, final_state = ssd(**inputs)
    final_state.zero_()
    assert torch.equal(inputs["initial_state"], kept)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"value": torch.zeros(1, 0, 4, 5), "query": torch.zeros(1, 0, 2, 3)}, "no positions"),
        ({"query": torch.zeros(1, 3, 3, 3)}, "groups"),
        ({"query": torch.zeros(3, 3)}, "needs the axes"),
        ({"key": torch.zeros(1, 3, 2, 4)}, "key has shape"),
        ({"initial_state": torch.zeros(1, 4, 5, 3)}, "initial_state has shape"),
        ({"log_decay": torch.zeros(1, 3, 4, dtype=torch.int64)}, "log_decay is torch.int64"),
    ],
)
def test_refuses_what_does_not_fit(change: dict[str, Tensor], error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        ssd(**(make(1, 3, 4, 2, 3, 5) | change))
