"""Norms of states kept to limits: worked examples, where the limits come from, segments and decode, refusals."""

import math

import pytest
import torch

from lengthen import stream
from lengthen.errors import InputError
from lengthen.kernels import gated_linear_attention, ssd
from lengthen.models import weights_fingerprint
from lengthen.models.agreement import relative_error
from lengthen.models.hooks import LayerView
from lengthen.state import TensorSpec
from lengthen.training_free import Calibration, method_of
from lengthen.training_free.state_normalisation import SegmentNormalisation, StateNormalisation
from tests.training_free.small_models import CALIBRATION, IDS, READ, TEXT, logits, recurrent_tensors, small_model

SPECS = {"recurrent": TensorSpec("recurrent", head_axis=1), "window": TensorSpec("window")}


def view():
    return LayerView(layer="layer", kind="mamba2", specs=SPECS, real=None, memory={})


def calibration():
    return Calibration(train_context=32, text=CALIBRATION)


def run(model, **options):
    return torch.cat([part.losses for part in stream(model, TEXT[:, :20], **options)], 1)


@torch.no_grad()
@pytest.mark.parametrize(
    "method, nothing, model_name",
    [("state-normalisation:quantile=0.3", StateNormalisation(limit=math.inf), name) for name in READ]
    + [
        ("segment-normalisation:period=6,quantile=0.3", SegmentNormalisation(period=1000, limit=1e-9), name)
        for name in ("Mamba", "RWKV6", "RWKV7", "LinearAttention", "LSTM")
    ],
)
def test_segments_equal_one_run_and_the_model_comes_back_bit_for_bit(method, nothing, model_name):
    model = small_model(model_name)
    weights, before = weights_fingerprint(model), run(model)
    fitted = method_of(method).fit(model, calibration())
    with fitted.apply(model):
        whole = run(model)
        for segment in (1, 7):
            assert relative_error(run(model, segment=segment), whole) < 1e-5
    assert relative_error(whole, before) > 1e-5
    with nothing.fit(model).apply(model):
        assert torch.equal(run(model), before)
    assert torch.equal(run(model), before) and weights_fingerprint(model) == weights


def test_each_token_by_hand():
    """Ones are written and nothing decays; at most 1.5 may stay: 1, then 2 and 2.5 that become 1.5. The skip adds 10."""
    hook = method_of("state-normalisation:limit=1.5").hook({"layer": torch.tensor(1.5)})
    ones, still = torch.ones(1, 3, 1, 1), torch.zeros(1, 3, 1)
    y, state = hook.read(view(), ssd, ones, ones, ones, still, None, skip=torch.tensor([10.0]), initial_state=None)
    assert y.flatten().tolist() == [11, 11.5, 11.5] and state.item() == 1.5


def test_a_bonus_reads_the_state_before_its_token():
    """0 and 3 of the first token by its bonus, then 1 + 3, 1.5 + 3."""
    hook = method_of("state-normalisation:limit=1.5").hook({"layer": torch.tensor(1.5)})
    ones = torch.ones(1, 3, 1, 1)
    options = {"bonus": torch.tensor([[3.0]]), "initial_state": None}
    y, state = hook.read(view(), gated_linear_attention, ones, ones, ones, 0 * ones, None, **options)
    assert y.flatten().tolist() == [3, 4, 4.5] and state.item() == 1.5


def test_each_segment_by_hand():
    """Heads of norms 5 and 0.5, at most 1: the first is divided by 5."""
    hook = method_of("segment-normalisation:limit=1,period=4").hook(
        {"layer": torch.tensor(1.0), "period": torch.tensor(4)}
    )
    state = {"recurrent": torch.tensor([[[[3.0, 4.0]], [[0.3, 0.4]]]]), "window": torch.ones(1, 2, 3)}
    found = hook.between(view(), dict(state))
    torch.testing.assert_close(found["recurrent"], torch.tensor([[[[0.6, 0.8]], [[0.3, 0.4]]]]))
    assert torch.equal(found["window"], state["window"])


@torch.no_grad()
def test_limits_are_norms_within_the_training_context():
    """The largest norms at the ends of sixteenths of the windows, counted together over text."""
    model, given = small_model("Mamba2"), calibration()
    fitted = method_of("state-normalisation:quantile=1").fit(model, given)
    assert (given.tokens_read, given.forwards) == (96, 1)
    largest = {}
    for end in range(2, 32, 2):
        for (layer, _), t in recurrent_tensors(model(CALIBRATION[:, :end]).final_state).items():
            largest.setdefault(layer, []).append(t.flatten(2).norm(dim=-1).amax(0))
    for layer, norms in largest.items():
        torch.testing.assert_close(fitted.tensors[layer], torch.stack(norms).amax(0))
    with fitted.apply(model):
        state = model(IDS.repeat(1, 4)).final_state
    for (layer, _), t in recurrent_tensors(state).items():
        assert (t.flatten(2).norm(dim=-1) <= fitted.tensors[layer] * (1 + 1e-6)).all()


@torch.no_grad()
@pytest.mark.parametrize("method", ["state-normalisation:limit=0.01", "segment-normalisation:limit=0.01,period=5"])
def test_padding_is_no_token(method):
    model = small_model("Mamba2")
    mask = torch.ones(2, 20, dtype=torch.long)
    mask[:, :7] = 0
    with method_of(method).fit(model).apply(model):
        alone = model(IDS[:, :13])
        padded = model(torch.cat([IDS[:, :7], IDS[:, :13]], 1), attention_mask=mask)
    assert relative_error(logits(padded)[:, 7:], logits(alone)) < 1e-5
    for key, t in recurrent_tensors(padded.final_state).items():
        assert relative_error(t, recurrent_tensors(alone.final_state)[key]) < 1e-5


@pytest.mark.parametrize(
    "method, model_name, sentence",
    [
        ("state-normalisation", "RWKV7", "state-normalisation changes the read of keys and values, but .* has none"),
        ("segment-normalisation", "xLSTM", "needs the norm of each head's state, but .* no common measure"),
        ("segment-normalisation", "Rwkv", "no common measure"),
        ("state-normalisation", "Mamba2", "state-normalisation needs calibration text"),
    ],
)
def test_refusals(method, model_name, sentence):
    with pytest.raises(InputError, match=sentence):
        method_of(method).fit(small_model(model_name), Calibration(train_context=32))
    for settings in ("limit=0", "quantile=0", "quantile=1.5"):
        with pytest.raises(InputError, match="above 0"):
            method_of(f"{method}:{settings}")
