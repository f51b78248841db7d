"""Losses, heads and speed under a method, against plain means and the untouched model."""

import numpy as np
import pytest
import torch

from lengthen import stream
from lengthen.data import HeldOutSequences, load_corpus
from lengthen.streaming import reset_losses
from lengthen.training_free import Calibration, method_of
from lengthen.training_free.contest import Course
from lengthen.training_free.judging import cost_of, far_loss, far_of, judged
from lengthen.training_free.splits import Splits
from tests.training_free.small_models import recurrent_tensors, small_model
from tests.training_free.texts import T


def sequences(length, count=3):
    corpus = load_corpus([np.random.default_rng(0).integers(3, 64, 2000)])
    return HeldOutSequences(corpus, length=length, count=count)


@pytest.mark.parametrize("name", ["Mamba", "LSTM", "Bamba"])
def test_heads_of_every_sort_are_told(name):
    model = small_model(name)
    tokens = load_corpus([np.random.default_rng(0).integers(3, 64, 2000)])
    sequences = Course(Splits.of(tokens), T, 16, n=2).report()
    heads = judged(model, None, sequences, T).heads
    assert all(h.norm_in_context > 0 and h.norm_far > 0 for h in heads)
    assert all((h.log_decay is None) == (name == "LSTM") for h in heads)


@pytest.mark.parametrize("length, far", [(511, (255, 511)), (512, (256, 512)), (4096, (256, 512)), (8, (4, 8))])
def test_far_is_the_second_half_of_64_contexts_or_of_a_shorter_run(length, far):
    assert far_of(8, length) == far


@torch.no_grad()
@pytest.mark.parametrize("method", [None, "constant-delta:ratio=0.5"])
def test_what_is_judged_is_what_plain_means_say(method):
    """In context over 16 T with the state reset, far over the rest of the second half with it carried."""
    model, tokens = small_model("Mamba2"), sequences(2 * 16 * 4)
    fitted = None if method is None else method_of(method).fit(model)
    found = judged(model, fitted, tokens, 4)
    if fitted is not None:
        assert far_loss(model, fitted, tokens, 4) == pytest.approx(found.far.mean())
        fitted = fitted.apply(model)
        fitted.__enter__()
    resets = torch.cat([losses for _, losses in reset_losses(model, tokens.first(64), 4)], 1)
    parts = list(stream(model, tokens, cuts=(4,)))
    if fitted is not None:
        fitted.__exit__(None, None, None)
    losses = torch.cat([part.losses for part in parts], 1)
    assert found.in_context == pytest.approx(resets.mean(1).numpy(), rel=1e-5)
    assert found.far == pytest.approx(losses[:, 64:].mean(1).numpy(), rel=1e-5)
    states = recurrent_tensors(parts[-1].final_state)
    for head in found.heads:
        expected = states[head.layer, head.tensor][:, head.head].double().pow(2).sum((1, 2)).mean().sqrt()
        assert head.norm_far == pytest.approx(expected.item(), rel=1e-4)


def test_a_method_that_stops_at_every_token_costs_more():
    model, tokens = small_model("Mamba2"), sequences(64)
    assert cost_of(model, None, tokens, 16) == 1.0
    stopping = method_of("hard-reset:period=1").fit(model, Calibration(train_context=16))
    assert cost_of(model, stopping, tokens, 16) > 2  # over ten times, in fact
