"""Lanes half a window apart: the same as overlapping windows, in segments, decode, padding, any order of rows."""

import pytest
import torch

from lengthen import stream
from lengthen.errors import InputError
from lengthen.models import weights_fingerprint
from lengthen.models.agreement import relative_error
from lengthen.models.language_models import run_base
from lengthen.streaming import generate
from lengthen.training_free import Calibration, method_of
from lengthen.training_free.decay_totals import decay_totals
from tests.training_free.small_models import IDS, TEXT, logits, small_model

MODELS = ["Mamba", "Mamba2", "xLSTM", "RWKV6", "Rwkv", "RWKV7", "LSTM"]


def run(model, **options):
    return torch.cat([part.losses for part in stream(model, TEXT[:, :31], **options)], 1)


def overlapping(model, window, lanes):
    """Logits at each position from the earliest window that holds it, windows beginning every window / lanes."""
    stride, found = window // lanes, []
    for t in range(30):
        first = max(0, -(-(t + 1 - window) // stride) * stride)
        found.append(logits(model(IDS[:, first : t + 1]))[:, -1:])
    return torch.cat(found, 1)


@torch.no_grad()
@pytest.mark.parametrize("name", MODELS)
def test_segments_equal_one_run_and_the_model_comes_back_bit_for_bit(name):
    model = small_model(name)
    weights, before = weights_fingerprint(model), run(model)
    with method_of("staggered-lanes:window=8").fit(model).apply(model):
        whole = run(model)
        for segment in (1, 7):
            assert relative_error(run(model, segment=segment), whole) < 1e-5
    assert relative_error(whole, before) > 1e-4
    assert torch.equal(run(model), before) and weights_fingerprint(model) == weights


@torch.no_grad()
@pytest.mark.parametrize("name", ["Mamba", "Mamba2", "RWKV7"])
def test_windows_that_never_end_are_the_model_itself(name):
    """Bit for bit with as many rows: products of matrices round by how many there are."""
    model = small_model(name)
    before = run_base(model, {"input_ids": IDS.repeat(2, 1)})[0][0]
    with method_of("staggered-lanes:window=1000").fit(model).apply(model):
        assert torch.equal(run_base(model, {"input_ids": IDS})[0][0], before[2:])


@torch.no_grad()
@pytest.mark.parametrize("name", ["Mamba2", "Rwkv"])
@pytest.mark.parametrize("method, lanes", [("staggered-lanes", 2), ("overlapped-reset", 4)])
def test_lanes_are_overlapping_windows(name, method, lanes):
    """Of 8 tokens: position 13 is read from 8 on with two lanes, from 6 on with four."""
    model = small_model(name)
    with method_of(f"{method}:window=8").fit(model).apply(model):
        found = logits(model(IDS[:, :30]))
    assert relative_error(found, overlapping(model, 8, lanes)) < 1e-5


@torch.no_grad()
def test_a_state_is_one_row_a_sequence():
    """It can be taken apart, put together in another order and gone on from, by generate() as well."""
    model = small_model("Mamba2")
    fitted = method_of("staggered-lanes:window=8").fit(model)
    with fitted.apply(model):
        expected = logits(model(IDS[:, :30]))
        state = model(IDS[:, :13]).final_state
        assert state.rows == 2
        swapped = logits(model(IDS[[1, 0], 13:30], initial_state=state.index([1, 0])))
        assert relative_error(swapped, expected[[1, 0], 13:]) < 1e-5
        joined = type(state).concatenate([state, model(IDS[:, :5]).final_state])
        on = logits(model(torch.cat([IDS[:, 13:25], IDS[:, 5:17]]), initial_state=joined))
        assert relative_error(on, torch.cat([expected[:, 13:25], expected[:, 5:17]])) < 1e-5
        made = generate(model, IDS[:, :12], 6)[0]
        options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
        by_library = model.generate(input_ids=IDS[:, :12], attention_mask=torch.ones_like(IDS[:, :12]), **options)
        assert torch.equal(by_library[:, 12:], made)
        with decay_totals(model) as totals:
            assert torch.equal(logits(model(IDS[:, :30])), expected)
        assert all(t.shape == (4,) for t in totals.values())


@torch.no_grad()
@pytest.mark.parametrize("name", ["Mamba2", "RWKV7", "LSTM"])
def test_padding_is_no_token(name):
    model = small_model(name)
    mask = torch.ones(2, 26, dtype=torch.long)
    mask[0, :7], mask[1, 19:] = 0, 0
    rows = [torch.cat([IDS[0, :7], IDS[0, :19]]), torch.cat([IDS[1, :19], IDS[1, :7]])]
    with method_of("staggered-lanes:window=8").fit(model).apply(model):
        whole = logits(model(IDS[:, :30]))
        padded = model(torch.stack(rows), attention_mask=mask)
        found = torch.stack([logits(padded)[0, 7:], logits(padded)[1, :19]])
        assert relative_error(found, whole[:, :19]) < 1e-5
        on = logits(model(IDS[:, 19:30], initial_state=padded.final_state))
        assert relative_error(on, whole[:, 19:]) < 1e-5


def test_refusals():
    model = small_model("Mamba2")
    with pytest.raises(InputError, match=r"staggered-lanes runs several rows .* kept for one in Bamba"):
        method_of("staggered-lanes").fit(small_model("Bamba"), Calibration(train_context=32))
    with pytest.raises(InputError, match="overlapped-reset needs the training context"):
        method_of("overlapped-reset").fit(model)
    for text in ("staggered-lanes:lanes=1", "staggered-lanes:window=1", "overlapped-reset:window=3"):
        with pytest.raises(InputError, match="give a"):
            method_of(text)
    fitted, reset = method_of("staggered-lanes:window=32").fit(model), torch.zeros_like(IDS, dtype=torch.bool)
    with fitted.apply(model), pytest.raises(InputError, match="packed rows cannot"):
        model(IDS, reset=reset)
