"""Attention in hybrids: carried along one sequence, dropped between sequences, never written in place."""

import pickle

import pytest
import torch

from lengthen import check, stream, wrap, zero_state
from lengthen.errors import InputError
from lengthen.models import attention
from lengthen.models.agreement import relative_error, state_error
from lengthen.models.attention import AttentionCache, SequenceState
from lengthen.models.binding import sequence_start
from lengthen.state import RecurrentState
from tests.conftest import checkpoint_activations, tiny_mamba2
from tests.models.family_properties import IDS, builder

A, B = IDS[:, :31], IDS[:, 31:60]


@pytest.fixture(params=["sdpa", "eager"])
def model(request):
    return wrap(builder("Bamba", {"attn_implementation": request.param})())


def cache_tensors(state):
    return [state.attention.lengths, *(t for pair in state.attention.layers.values() for t in pair)]


@torch.no_grad()
def test_a_plain_call_drops_the_cache_and_a_sequence_state_carries_it(model):
    first = model(A, initial_state=sequence_start(model, 3))
    assert isinstance(first.final_state, SequenceState) and first.final_state.attention.lengths.tolist() == [31] * 3
    whole = model(torch.cat([A, B], 1)).logits[:, 31:]
    carried = model(B, initial_state=first.final_state)
    assert relative_error(carried.logits, whole) < 1e-5
    dropped = model(B, initial_state=first.final_state.alone())
    assert type(dropped.final_state) is RecurrentState
    assert relative_error(dropped.logits, whole) > 1e-2
    fresh = SequenceState(first.final_state, AttentionCache.empty(3, A.device))
    assert relative_error(model(B, initial_state=fresh).logits, dropped.logits) < 1e-6


@torch.no_grad()
def test_rows_of_unequal_length_go_on_at_their_own_positions(model):
    mask = torch.ones_like(A)
    mask[0, :7], mask[1, 20:], mask[2, 5:9] = 0, 0, 0
    first = model(A, attention_mask=mask, initial_state=sequence_start(model, 3))
    assert first.final_state.attention.lengths.tolist() == [24, 20, 27]
    more = torch.ones_like(B)
    more[2, 3:] = 0
    second = model(B, attention_mask=more, initial_state=first.final_state)
    third = model(A, initial_state=second.final_state)
    for row in range(3):
        texts = A[row][mask[row].bool()], B[row][more[row].bool()], A[row]
        expected = model(torch.cat(texts)[None]).logits[0]
        found = [first.logits[row][mask[row].bool()], second.logits[row][more[row].bool()], third.logits[row]]
        assert relative_error(torch.cat(found), expected) < 1e-5


@torch.no_grad()
def test_a_reset_cuts_attention_in_the_call_and_in_the_cache(model):
    first = model(A, initial_state=sequence_start(model, 3))
    reset = torch.zeros_like(B, dtype=torch.bool)
    reset[0, 0], reset[1, 10], reset[1, 11], reset[2, 28] = True, True, True, True
    second = model(B, initial_state=first.final_state, reset=reset)
    assert second.final_state.attention.lengths.tolist() == [29, 18, 1]
    assert relative_error(second.logits[0], model(B[:1]).logits[0]) < 1e-5
    assert relative_error(second.logits[1, 11:], model(B[1:2, 11:]).logits[0]) < 1e-5
    third = model(A, initial_state=second.final_state)
    for row, since in enumerate((0, 11, 28)):
        expected = model(torch.cat([B[row, since:], A[row]])[None]).logits[0, -31:]
        assert relative_error(third.logits[row], expected) < 1e-5


@torch.no_grad()
def test_a_reset_after_the_last_real_token_empties_a_row_s_cache(model):
    mask, reset = torch.ones_like(A), torch.zeros_like(A, dtype=torch.bool)
    mask[1, 20:], reset[1, 25] = 0, True
    first = model(A, attention_mask=mask, reset=reset, initial_state=sequence_start(model, 3))
    assert first.final_state.attention.lengths.tolist() == [31, 0, 31]
    second = model(B, initial_state=first.final_state)
    assert relative_error(second.logits[1], model(B[1:2]).logits[0]) < 1e-5
    assert relative_error(second.logits[0], model(torch.cat([A[:1], B[:1]], 1)).logits[0, 31:]) < 1e-5


def test_nothing_is_written_into_a_cache_and_gradients_flow_through_it(model):
    first = model(A, initial_state=sequence_start(model, 3)).final_state
    before = [t.clone() for t in cache_tensors(first)]
    for _ in range(2):
        second = model(B, initial_state=first)
        assert all(torch.equal(a, b) for a, b in zip(cache_tensors(first), before))
    keys = next(iter(first.attention.layers.values()))[0]
    (grad,) = torch.autograd.grad(second.logits.square().sum(), keys)
    assert grad.abs().sum() > 0
    assert not any(t.requires_grad for t in cache_tensors(first.detach()))


@torch.no_grad()
def test_rows_can_be_forked_and_a_stream_resumed(model):
    parts = list(stream(model, IDS[:, :32], segment=16))
    state = parts[-1].final_state
    fork = pickle.loads(pickle.dumps(state.index([2, 2, 0]).clone().to("cpu").with_weights(None)))
    assert isinstance(fork, SequenceState)
    resumed = torch.cat([p.losses for p in stream(model, IDS[[2, 2, 0], 31:], initial_state=fork, start=31)], 1)
    whole = torch.cat([p.losses for p in stream(model, IDS)], 1)
    assert relative_error(resumed, whole[[2, 2, 0], 31:]) < 1e-5


def test_what_makes_another_state_leaves_the_cache_behind(model, tmp_path):
    state = model(A, initial_state=sequence_start(model, 3)).final_state
    for other in (
        state.alone(),
        state.map(lambda t, _: t),
        state.zeros(),
        state.zero_rows([True, False, False]),
        RecurrentState.concatenate([state, state]),
        RecurrentState.average([state, state]),
    ):
        assert type(other) is RecurrentState
    assert state_error(state.alone(), state) == 0
    with pytest.raises(InputError, match="attention cache"):
        state.save(tmp_path / "state.safetensors")
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="rows"):
        SequenceState(zero_state(model, 2), state.attention)


def test_a_model_without_attention_has_no_cache():
    model = wrap(tiny_mamba2())
    assert type(sequence_start(model, 2)) is RecurrentState


def test_a_cache_is_not_dropped_by_checkpointing_without_a_word(model):
    model.train()
    checkpoint_activations(model)
    with pytest.raises(InputError, match="checkpointing"):
        model(A, initial_state=sequence_start(model, 3))
    model(A, initial_state=zero_state(model, 3))


def test_attention_that_takes_no_mask_is_refused():
    model = wrap(builder("Bamba", {})())
    reset = torch.zeros_like(A, dtype=torch.bool)
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(InputError, match="flash_attention_2"):
        model(A, reset=reset)
    for model, said in (
        (builder("Qwen4Exp", {}), "indexed_attention layers"),
        (builder("MiniMax", {"sliding_window": 16}), "windows of 16 positions in its full_attention layers"),
    ):
        with pytest.raises(InputError, match=said):
            wrap(model())(A, reset=reset)


def failed(model):
    return {c.name for c in check(model).checks if not c.passed}


def test_the_gate_catches_positions_that_restart(model, monkeypatch):
    def restarting(past, reset, positions):
        return torch.arange(positions).expand(past.lengths.shape[0], -1)

    monkeypatch.setattr(attention, "_positions", restarting)
    assert {"segments", "token-by-token", "random-state", "gradient-through-state"} <= failed(model)


def test_the_gate_catches_a_reset_that_attention_ignores(model, monkeypatch):
    visible = attention._visible
    monkeypatch.setattr(attention, "_visible", lambda past, reset, *rest: visible(past, None, *rest))
    assert {"packing", "reset-at-start"} <= failed(model)


def test_the_gate_catches_padding_left_in_the_cache(model, monkeypatch):
    kept = attention.GrowingCache._kept
    monkeypatch.setattr(
        attention.GrowingCache, "_kept", lambda self, n, marks: kept(self, n, attention.Marks(marks.reset, None))
    )
    assert {"left-padding", "right-padding"} <= failed(model)


def test_the_gate_catches_a_cache_written_in_place(model, monkeypatch):
    update = attention.GrowingCache.update

    def in_place(self, keys, values, layer_idx, *args, **kwargs):
        if layer_idx in self.before.layers and not torch.is_grad_enabled():
            self.before.layers[layer_idx][0][:, :, -1:] = keys[:, :, :1]
        return update(self, keys, values, layer_idx, *args, **kwargs)

    monkeypatch.setattr(attention.GrowingCache, "update", in_place)
    assert "state-unchanged" in failed(model)
