"""The last tokens alone: against windows run one by one, worked examples, segments and decode, refusals."""

import pytest
import torch

from lengthen import stream
from lengthen.errors import InputError
from lengthen.kernels import gated_linear_attention, ssd
from lengthen.models import weights_fingerprint
from lengthen.models.agreement import relative_error
from lengthen.models.hooks import LayerView
from lengthen.training_free import Calibration, method_of
from tests.training_free.small_models import IDS, READ, TEXT, logits, recurrent_tensors, small_model


def run(model, **options):
    return torch.cat([part.losses for part in stream(model, TEXT[:, :20], **options)], 1)


def hook_and_view(method, *, by_head=True, zero):
    """A method's hook and what it sees of a layer at the start of a row, for [B, H, K, V] states."""
    fitted = method_of(method).measured(None, Calibration()) if "ring" in method else {"window": torch.tensor(5)}
    hook = method_of(method).hook(fitted | ({} if "ring" in method else {"layer": torch.tensor(by_head)}))
    memory = hook.memory("layer", {"recurrent": zero})
    return hook, LayerView(layer="layer", kind="", specs={}, real=None, memory=memory)


@torch.no_grad()
@pytest.mark.parametrize("model_name", READ)
@pytest.mark.parametrize("method", ["sliding-window:window", "segment-ring:segments=3,period"])
def test_segments_equal_one_run_and_the_model_comes_back_bit_for_bit(method, model_name):
    model = small_model(model_name)
    weights, before = weights_fingerprint(model), run(model)
    with method_of(f"{method}=3").fit(model).apply(model):
        whole = run(model)
        for segment in (1, 7):
            assert relative_error(run(model, segment=segment), whole) < 1e-5
    assert relative_error(whole, before) > 1e-5
    with method_of(f"{method}=1000").fit(model).apply(model):
        assert torch.equal(run(model), before)
    assert torch.equal(run(model), before) and weights_fingerprint(model) == weights


@pytest.mark.parametrize("kind", ["ssd", "gated_linear_attention", "with a bonus"])
def test_a_difference_of_states_is_each_window_run_from_zero(kind):
    """In calls of 7, 1 and 12 tokens, one of which forgets nearly all; with a bonus a token and the five before it."""
    draws = torch.Generator().manual_seed(0)

    def random(*shape):
        return torch.randn(*shape, generator=draws)

    rows, positions, heads, keys, values, window = 2, 20, 4, 3, 6, 5
    scalar, bonus = kind == "ssd", random(heads, keys) if kind == "with a bonus" else None
    groups = 2 if scalar else heads
    query, key = random(rows, positions, groups, keys), random(rows, positions, groups, keys)
    value, gain = random(rows, positions, heads, values), random(rows, positions, heads).exp()
    log_decay = -random(rows, positions, heads, *([] if scalar else [keys])).abs()
    log_decay[0, 9] = -60
    inputs = query, key, value, log_decay, gain
    kernel, options = (ssd, {}) if scalar else (gated_linear_attention, {} if bonus is None else {"bonus": bonus})
    zero = torch.zeros(rows, heads, keys, values)
    hook, view = hook_and_view("sliding-window:window=5", by_head=scalar, zero=zero)
    found, state = [], None
    for low, high in ((0, 7), (7, 8), (8, 20)):
        y, state = hook.read(view, kernel, *(t[:, low:high] for t in inputs), initial_state=state, **options)
        found.append(y)
    expected = []
    for t in range(positions):
        first = max(0, t - window + (bonus is None))
        y, _ = kernel(*(x[:, first : t + 1] for x in inputs), initial_state=zero, **options)
        expected.append(y[:, -1:])
    assert relative_error(torch.cat(found, 1), torch.cat(expected, 1)) < 1e-5
    assert relative_error(state, kernel(*inputs, initial_state=zero, **options)[1]) < 1e-5


def test_a_window_by_hand():
    """Ones halve a token; a window of 5 holds 1 + 1/2 + ... + 1/16. The skip is of the token itself."""
    hook, view = hook_and_view("sliding-window:window=5", zero=torch.zeros(1, 1, 1, 1))
    ones, halving = torch.ones(1, 9, 1, 1), torch.full((1, 9, 1), 0.5).log()
    y, _ = hook.read(view, ssd, ones, ones, ones, halving, None, skip=torch.tensor([10.0]), initial_state=None)
    assert y.flatten().tolist() == pytest.approx([11, 11.5, 11.75, 11.875] + [11.9375] * 5)


def test_a_ring_by_hand():
    """Ones that halve a token, two segments of two: the third begins without the first, the fourth without the second."""
    hook, view = hook_and_view("segment-ring:segments=2,period=2", zero=torch.zeros(1, 1, 1, 1))
    ones, halving = torch.ones(1, 2, 1, 1), torch.full((1, 2, 1), 0.5).log()
    found, state = [], torch.full((1, 1, 1, 1), 8.0)
    for segment in range(4):
        if segment:
            hook.between(view, {})
        y, state = hook.read(view, ssd, ones, ones, ones, halving, None, initial_state=state)
        found += y.flatten().tolist()
    assert found == pytest.approx([5, 3.5, 2.75, 2.375, 1.75, 1.875, 1.75, 1.875])
    assert state.item() == pytest.approx(1.875)


@torch.no_grad()
@pytest.mark.parametrize("method", ["sliding-window:window=6", "segment-ring:segments=2,period=5"])
@pytest.mark.parametrize("model_name", ["Mamba2", "RWKV6"])
def test_padding_is_no_token_and_packed_rows_begin_anew(method, model_name):
    model = small_model(model_name)
    mask = torch.ones(2, 20, dtype=torch.long)
    mask[0, 13:], mask[1, :7] = 0, 0
    reset = torch.zeros(2, 21, dtype=torch.bool)
    reset[:, 8] = True
    with method_of(method).fit(model).apply(model):
        alone, on = model(IDS[:, :13]), logits(model(IDS[:, :22]))
        rows = [torch.cat([IDS[0, :13], IDS[0, :7]]), torch.cat([IDS[1, :7], IDS[1, :13]])]
        padded = model(torch.stack(rows), attention_mask=mask)
        found = torch.stack([logits(padded)[0, :13], logits(padded)[1, 7:]])
        assert relative_error(found, logits(alone)) < 1e-5
        for key, t in recurrent_tensors(padded.final_state).items():
            assert relative_error(t, recurrent_tensors(alone.final_state)[key]) < 1e-5
        after = logits(model(IDS[:, 13:22], initial_state=padded.final_state))
        assert relative_error(after, on[:, 13:]) < 1e-5
        packed = logits(model(torch.cat([IDS[:, 30:], IDS[:, :13]], 1), reset=reset))
        assert relative_error(packed[:, 8:], logits(alone)) < 1e-5


def test_refusals():
    for method in ("sliding-window", "segment-ring"):
        with pytest.raises(InputError, match=f"{method} changes the read of keys and values, but .* has none"):
            method_of(method).fit(small_model("RWKV7"), Calibration(train_context=32))
        with pytest.raises(InputError, match=f"{method} needs the training context"):
            method_of(method).fit(small_model("GLA"))
    for method in ("sliding-window:window=0", "segment-ring:segments=0", "segment-ring:period=2.5"):
        with pytest.raises(InputError, match="give a whole number, at least 1"):
            method_of(method)
    assert method_of("segment-ring").measured(None, Calibration(train_context=34))["period"] == 8
