"""RG-LRU: RecurrentGemma, with its first positions, its windowed attention and its soft-capped logits."""

import pytest
import torch

from lengthen import check, stream, wrap, zero_state
from lengthen.models.agreement import relative_error, state_error
from lengthen.models.binding import sequence_start
from lengthen.models.head import token_losses
from lengthen.models.rg_lru import _bounded_sqrt
from tests.models.family_properties import *  # noqa: F403
from tests.models.family_properties import IDS, TEXT, builder

WINDOW = 20
CLASSES = {
    "RecurrentGemma": {
        "attention sees all": {},
        "a window, grouped heads, wider recurrence, low cap, eager": {
            "attention_window_size": WINDOW,
            "num_key_value_heads": 2,
            "lru_width": 48,
            "conv1d_width": 3,
            "logits_soft_cap": 10.0,
            "attention_bias": True,
            "attn_implementation": "eager",
        },
    },
}


@pytest.fixture
def library_heeds_masks():
    return False


@pytest.fixture
def library_states():
    """The library keeps them on its modules."""
    return lambda model, _: [m.recurrent_states for m in model.modules() if hasattr(m, "recurrent_states")]


@pytest.fixture
def adapted_layers():
    return ["linear_x"]


@pytest.fixture
def recurrence_parameter():
    return "recurrent_param"


@pytest.fixture
def windowed():
    return wrap(builder("RecurrentGemma", list(CLASSES["RecurrentGemma"].values())[1])())


@torch.no_grad()
def test_only_a_row_that_has_read_nothing_has_a_first_position(windowed):
    """Its input enters whole; after a state, however faint, the same input is scaled by sqrt(1 - decay^2)."""
    zero = zero_state(windowed, 2)
    faint = zero.map(lambda t, spec: t + 1e-30 if spec.kind == "recurrent" else t)
    state = faint.where([True, False], zero)
    named = next(iter(windowed(IDS[[0, 0], :1], initial_state=state).final_state.tensors.values()))
    ratio = named["recurrent"][0] / named["recurrent"][1]
    assert (ratio > 0).all() and (ratio < 0.999).all()


def test_the_slope_of_the_square_root_is_cut_as_in_the_library():
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import SqrtBoundDerivative

    x, same = (torch.tensor([0.0, 1e-9, 2.4e-7, 2.6e-7, 0.3]).requires_grad_() for _ in range(2))
    found, expected = _bounded_sqrt(x), SqrtBoundDerivative.apply(same)
    assert torch.equal(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), x), torch.autograd.grad(expected.sum(), same))


@torch.no_grad()
def test_the_cache_holds_no_more_than_the_window(windowed):
    state = list(stream(windowed, TEXT, segment=64))[-1].final_state
    assert state.attention.width == WINDOW - 1
    assert state.attention.lengths.tolist() == [WINDOW - 1] * 2 and state.attention.read.tolist() == [201] * 2


@torch.no_grad()
def test_rows_go_on_at_their_own_positions_past_the_window(windowed):
    """Rows that have read 31, 9 and 25 positions, one of them since a reset, then all read on."""
    head, tail = IDS[:, :31], IDS[:, 31:60]
    mask, reset = torch.ones_like(head), torch.zeros_like(head, dtype=torch.bool)
    mask[1, 9:], mask[2, 3:5], reset[2, 8] = 0, 0, True
    state = windowed(head, attention_mask=mask, reset=reset, initial_state=sequence_start(windowed, 3)).final_state
    assert state.attention.read.tolist() == [31, 9, 23] and state.attention.lengths.tolist() == [19, 9, 19]
    found = windowed(tail, initial_state=state)
    for row, text in enumerate((head[0], head[1, :9], head[2, 8:])):
        alone = windowed(torch.cat([text, tail[row]])[None])
        assert relative_error(found.logits[row], alone.logits[0, -29:]) < 1e-5
        assert state_error(found.final_state.index([row]), alone.final_state) < 1e-5


@torch.no_grad()
def test_positions_start_again_at_a_reset_past_the_window(windowed):
    """In a call and between two: after 31 positions, whose first ones are gone, rows are reset inside and behind the next."""
    head, middle, tail = IDS[:2, :31], IDS[:2, 31:50], IDS[:2, 50:]
    mask, reset = torch.ones_like(middle), torch.zeros_like(middle, dtype=torch.bool)
    reset[0, 12], mask[1, 15:], reset[1, 17] = True, 0, True
    state = windowed(head, initial_state=sequence_start(windowed, 2)).final_state
    state = windowed(middle, attention_mask=mask, reset=reset, initial_state=state).final_state
    assert state.attention.read.tolist() == state.attention.lengths.tolist() == [7, 0]
    found = windowed(tail, initial_state=state).logits
    for row, text in enumerate((middle[0, 12:], middle[1, :0])):
        alone = windowed(torch.cat([text, tail[row]])[None]).logits
        assert relative_error(found[row], alone[0, -25:]) < 1e-5


@torch.no_grad()
def test_token_losses_are_of_the_capped_logits(windowed):
    logits = windowed(IDS).logits
    assert 5 < logits.abs().max() <= 10
    expected = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), IDS[:, 1:], reduction="none")
    hidden = windowed.model(IDS, use_cache=False)[0]
    torch.testing.assert_close(token_losses(windowed, hidden[:, :-1], IDS[:, 1:]), expected)


def test_in_half_precision_the_gate_passes():
    result = check(builder("RecurrentGemma", {})().bfloat16())
    assert result.passed, [c for c in result.checks if not c.passed]
