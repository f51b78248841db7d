"""Streaming: per-token losses do not depend on how a sequence is cut, and memory does not grow with it."""

import pytest
import torch

from lengthen import stream, wrap
from lengthen.errors import InputError
from lengthen.streaming import generate, losses_of, reset_losses
from tests.conftest import tiny_mamba2

TOKENS = torch.randint(256, (3, 701), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def model():
    return wrap(tiny_mamba2())


@pytest.fixture(scope="module")
def whole(model):
    with torch.no_grad():
        logits = model(TOKENS[:, :-1]).logits.double()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), TOKENS[:, 1:].flatten(), reduction="none").view(
        3, 700
    )


@pytest.mark.parametrize("segment", [1, 64, 100, 512, 700, 3000])
def test_losses_equal_one_run_and_each_position_is_counted_once(model, whole, segment):
    parts = list(stream(model, TOKENS, segment=segment, cuts=[37, 64, 700]))
    assert [p.start for p in parts] == [0] + [p.end for p in parts[:-1]] and parts[-1].end == 700
    assert {37, 64} <= {p.end for p in parts}
    torch.testing.assert_close(torch.cat([p.losses for p in parts], 1).double(), whole, rtol=1e-5, atol=1e-5)


def test_a_stream_goes_on_from_where_another_stopped(model, whole):
    first = list(stream(model, TOKENS[:, :301], segment=128))
    rest = list(stream(model, TOKENS[:, 300:], segment=128, initial_state=first[-1].final_state, start=300))
    assert rest[0].start == 300 and rest[-1].end == 700
    torch.testing.assert_close(torch.cat([p.losses for p in rest], 1).double(), whole[:, 300:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("period", [1, 7, 64, 700, 1000])
@pytest.mark.parametrize("segment", [1, 200, 10**6])
def test_the_reset_baseline_equals_resets(model, period, segment):
    if period == 1 and segment == 1:
        pytest.skip("seven hundred calls say nothing more")
    reset = torch.zeros(3, 700, dtype=torch.bool)
    reset[:, ::period] = True
    with torch.no_grad():
        logits = model(TOKENS[:, :-1], reset=reset).logits
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), TOKENS[:, 1:].flatten(), reduction="none").view(
        3, 700
    )
    parts = list(reset_losses(model, TOKENS, period, segment=segment))
    ends = [start + losses.shape[1] for start, losses in parts]
    assert [start for start, _ in parts] == [0, *ends[:-1]] and ends[-1] == 700
    torch.testing.assert_close(torch.cat([losses for _, losses in parts], 1), expected, rtol=1e-5, atol=1e-5)


def test_the_model_s_mode_comes_back_and_no_graph_is_kept(model):
    model.train()
    part = next(stream(model, TOKENS[:, :50]))
    assert not part.losses.requires_grad
    model.eval()


def test_token_losses_do_not_need_a_plain_head(model):
    """A head that something has taken over (an adapter, a hook) is called as it is, in chunks."""
    with torch.no_grad():
        expected, _ = losses_of(model, TOKENS[:, :-1], TOKENS[:, 1:])
        handle = model.lm_head.register_forward_hook(lambda m, a, out: out * 1.0)
        try:
            found, _ = losses_of(model, TOKENS[:, :-1], TOKENS[:, 1:])
        finally:
            handle.remove()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_greedy_continuation_equals_generate(model):
    prompt = TOKENS[:, :90]
    expected = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12, do_sample=False)
    found, state = generate(model, prompt, 12, segment=32)
    assert torch.equal(found, expected[:, 90:]) and state.rows == 3


def test_greedy_continuation_of_a_hybrid_carries_its_attention_cache():
    from lengthen.models.tiny_models import TINY_MODELS, build_tiny_model

    hybrid = build_tiny_model(next(tiny for tiny in TINY_MODELS if tiny.name.startswith("Bamba")))
    prompt = TOKENS[:, :50] % hybrid.config.vocab_size
    hybrid.generation_config.eos_token_id = None
    expected = hybrid.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=10, do_sample=False)
    found, _ = generate(wrap(hybrid), prompt, 10, segment=16)
    assert torch.equal(found, expected[:, 50:])


@pytest.mark.parametrize(
    "tokens, segment, match", [(TOKENS[:, :1], 64, "nothing to predict"), (TOKENS, 0, "at least 1")]
)
def test_bad_input(model, tokens, segment, match):
    with pytest.raises(InputError, match=match):
        next(stream(model, tokens, segment=segment))


def test_an_unwrapped_model_is_refused():
    with pytest.raises(InputError, match="not wrapped"):
        next(stream(tiny_mamba2(), TOKENS))


def test_a_state_of_other_weights_is_refused(model):
    from lengthen.models import weights_fingerprint

    part = next(stream(model, TOKENS[:, :50]))
    marked = part.final_state.with_weights(weights_fingerprint(model))
    next(stream(model, TOKENS[:, 49:], initial_state=marked, start=49))
    with pytest.raises(InputError, match="weights"):
        next(stream(wrap(tiny_mamba2(seed=1)), TOKENS[:, 49:], initial_state=marked, start=49))
