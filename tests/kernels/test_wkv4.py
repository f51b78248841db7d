"""RWKV-4's average agrees with its definition in every form, whatever the size of its keys."""

import pytest
import torch
from torch import Tensor

from lengthen.kernels import wkv4, wkv4_reference
from tests.kernels.recurrence_comparison import (
    FORMS,
    assert_agrees,
    assert_agrees_over_131072,
    assert_compiles_and_exports,
    assert_definition_differentiates,
    running,
)

SEQUENCES = ("key", "value", "log_decay")
STATE = ("numerator", "denominator", "maximum")
FP32 = 1e-5  # what is promised; a quotient of two sums of a few thousand steps


def make(batch: int, positions: int, channels: int, *, seed: int = 0, size: float = 2.0) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    log_decay = -torch.exp(normal(channels) - 3).expand(batch, positions, channels).clone()
    log_decay[torch.rand(batch, positions, generator=g) < 0.02] = -torch.inf
    return {
        "key": size * normal(batch, positions, channels),
        "value": normal(batch, positions, channels),
        "log_decay": log_decay,
        "bonus": normal(channels),
        "numerator": normal(batch, channels),
        "denominator": 0.5 + torch.rand(batch, channels, generator=g),
        "maximum": normal(batch, channels),
    }


def flat(operator):
    """The operator with its state's tensors as arguments and results of their own."""

    def call(**inputs: Tensor) -> tuple[Tensor, ...]:
        state = tuple(inputs.pop(name) for name in STATE) if "maximum" in inputs else None
        output, final_state = operator(**inputs, initial_state=state)
        return output, *final_state

    return call


RUN, DEFINITION = flat(wkv4), flat(wkv4_reference)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("positions", [1, 2, 127, 260])
def test_agrees_with_the_definition(form: str, positions: int) -> None:
    inputs = make(2, positions, 21)
    with running(form):
        actual = assert_agrees(RUN, DEFINITION, inputs, FP32)
    assert not actual["gradient of log_decay"][inputs["log_decay"] == -torch.inf].any()


@pytest.mark.acceptance
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("positions", [63, 64, 65, 500, 2049])
@pytest.mark.parametrize("batch", [1, 3])
def test_agrees_with_the_definition_at_length(form: str, positions: int, batch: int) -> None:
    with running(form):
        assert_agrees(RUN, DEFINITION, make(batch, positions, 100), FP32)


@pytest.mark.acceptance
@pytest.mark.parametrize("form", ["torch", "avx512"])
def test_agrees_over_131072_positions(form: str) -> None:
    with running(form):
        assert_agrees_over_131072(RUN, DEFINITION, make(1, 131_072, 3))


def test_the_definition_differentiates() -> None:
    inputs = make(1, 5, 2)
    inputs["log_decay"].clamp_(min=-2)  # a difference across -inf is undefined
    assert_definition_differentiates(DEFINITION, inputs)


@pytest.mark.parametrize("form", FORMS)
def test_is_the_plain_average_of_the_equation(form: str) -> None:
    """Without a maximum, in float64, from nothing."""
    inputs = {name: t.double() for name, t in make(1, 40, 3).items() if name not in STATE}
    inputs["log_decay"] = inputs["log_decay"][:, :1].clamp(min=-2).expand(-1, 40, -1)
    key, value, decay = (inputs[name][0] for name in SEQUENCES)
    expected = []
    for t in range(40):
        age = torch.arange(t - 1, -1, -1)[:, None]
        weights = torch.cat([(age * decay[0] + key[:t]).exp(), (inputs["bonus"] + key[t : t + 1]).exp()])
        expected.append((weights * value[: t + 1]).sum(0) / weights.sum(0))
    with running(form):
        torch.testing.assert_close(RUN(**inputs)[0][0], torch.stack(expected), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shift", [-300.0, 300.0])
def test_a_shift_of_all_keys_changes_nothing(form: str, shift: float) -> None:
    """exp(300) and exp(-300) are out of float32's range; from nothing only differences of keys count."""
    inputs = {name: t for name, t in make(1, 50, 8).items() if name not in STATE}
    inputs["key"] = (inputs["key"] * 1024).round() / 1024  # so that adding the shift rounds nothing
    with running(form):
        plain, shifted = RUN(**inputs), RUN(**inputs | {"key": inputs["key"] + shift})
    for one, other in ((plain[0], shifted[0]), (plain[1] / plain[2], shifted[1] / shifted[2])):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    weights = [maximum + denominator.log() for _, _, denominator, maximum in (plain, shifted)]
    torch.testing.assert_close(weights[0] + shift, weights[1], rtol=1e-6, atol=0)


@pytest.mark.parametrize("form", FORMS)
def test_where_nothing_is_written_the_state_stays_bit_for_bit(form: str) -> None:
    inputs = make(2, 9, 5)
    inputs["key"].fill_(-torch.inf)
    inputs["log_decay"].zero_()
    for name in STATE:
        inputs[name][0] = 0
    leaves = {name: tensor.requires_grad_() for name, tensor in inputs.items()}
    with running(form):
        output, *state = RUN(**leaves)
    assert all(torch.equal(found, inputs[name]) for found, name in zip(state, STATE))
    assert not output[0].any() and output.isfinite().all()
    gradients = torch.autograd.grad(output.sum() + sum(t.sum() for t in state), list(leaves.values()))
    assert all(gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("form", FORMS)
def test_a_reset_is_a_fresh_start_and_segments_are_one_run(form: str) -> None:
    inputs = make(2, 80, 6)
    inputs["log_decay"].clamp_(min=-2)
    inputs["log_decay"][:, 30] = -torch.inf
    with running(form):
        whole = RUN(**inputs)
        fresh = {n: t[:, 30:] if n in SEQUENCES else t for n, t in inputs.items() if n not in STATE}
        for one, other in zip(whole, RUN(**fresh)):
            torch.testing.assert_close(one[:, 30:] if one.dim() == 3 else one, other, rtol=0, atol=0)
        state, parts = {name: inputs[name] for name in STATE}, []
        for low, high in ((0, 1), (1, 64), (64, 80)):
            piece = {n: t[:, low:high] if n in SEQUENCES else t for n, t in inputs.items() if n not in STATE}
            output, *final = RUN(**piece, **state)
            state = dict(zip(STATE, final))
            parts.append(output)
    torch.testing.assert_close(torch.cat(parts, 1), whole[0], rtol=1e-5, atol=1e-6)
    for name, expected in zip(STATE, whole[1:]):
        torch.testing.assert_close(state[name], expected, rtol=1e-5, atol=1e-6)


def test_bfloat16_sequences_have_a_float32_state() -> None:
    inputs = make(1, 40, 8)
    for name in SEQUENCES:
        inputs[name] = inputs[name].bfloat16()
    actual = assert_agrees(RUN, DEFINITION, inputs, 1e-2)  # the output is rounded to 8 bits
    assert [actual[f"output {i}"].dtype for i in range(4)] == [torch.bfloat16] + 3 * [torch.float32]


def test_compiles_and_exports() -> None:
    assert_compiles_and_exports(RUN, make(1, 20, 4))


def test_what_does_not_fit_is_refused() -> None:
    inputs = {name: t for name, t in make(2, 9, 5).items() if name not in STATE}
    with pytest.raises(ValueError, match=r"bonus has shape \[4\]"):
        wkv4(**inputs | {"bonus": torch.zeros(4)})
    with pytest.raises(ValueError, match=r"initial_state's maximum has shape \[2, 4\]"):
        wkv4(**inputs, initial_state=(torch.zeros(2, 5), torch.zeros(2, 5), torch.zeros(2, 4)))
    with pytest.raises(TypeError, match="value is"):
        wkv4(**inputs | {"value": inputs["value"].long()})
