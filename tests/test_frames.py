"""Frames go the way tokens go: held out, streamed, trained on and judged, with losses of their own kind."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from lengthen import (
    TBPTT,
    FittedNoise,
    Mixture,
    RandomNoise,
    Rows,
    StatePassing,
    Zero,
    diagnose,
    post_train,
    wrap,
    zero_state,
)
from lengthen import stream as run_stream
from lengthen.data import HeldOutSequences, LaneWindows, load_corpus
from lengthen.diagnosis.measure import Measure
from lengthen.diagnosis.verdict import break_point, exceeds, sentence
from lengthen.errors import InputError
from lengthen.models.agreement import relative_error
from lengthen.results import Bucket
from lengthen.streaming import loss_name, reset_losses
from tests.conftest import tiny_mamba2
from tests.models.plain_models import Regressor

GENERATOR = np.random.default_rng(0)
FRAMES = [GENERATOR.standard_normal((n, 5)).astype(np.float32) for n in (300, 171, 140, 90)]
TARGETS = [f.cumsum(0)[:, :3] * 0.1 for f in FRAMES]
CORPUS = load_corpus(FRAMES, targets=TARGETS)
FAST = {"train_context": 16, "steps": 3, "rows": 4, "learning_rate": 1e-2}


class Predictor(Regressor):
    """The next frame."""

    def __init__(self, **options):
        super().__init__(**options)
        self.after = nn.Linear(12, 5)


def test_held_out_sequences_have_the_corpus_s_targets_and_need_no_further_position():
    found = HeldOutSequences(CORPUS, length=140, count=3)
    assert found.shape == (3, 141, 5)
    for inputs, targets in zip(found[:, 0:140], found.targets[:, 0:140]):
        start = next(i for d in FRAMES for i in range(len(d) - 139) if np.array_equal(d[i : i + 140], inputs))
        document = next(k for k, d in enumerate(FRAMES) if np.array_equal(d[start : start + 140], inputs))
        assert np.array_equal(TARGETS[document][start : start + 140].astype(np.float32), targets)
    assert found.first(50).shape == (3, 51, 5) and np.array_equal(found.first(50)[:, 3:9], found[:, 3:9])
    with pytest.raises(InputError, match="needs 301 frames"):
        HeldOutSequences(CORPUS, length=301, count=1)


def test_a_position_without_a_target_is_not_judged():
    classes = [np.where(np.arange(90) == 70, -100, 1)]
    found = HeldOutSequences(load_corpus(FRAMES[3:], targets=classes), length=90, count=1)
    found.targets[:, 0:20]
    with pytest.raises(InputError, match="no target at position 70,"):
        found.targets[:, 0:90]


@pytest.mark.parametrize("segment", [1, 7, 64, 200])
def test_streaming_equals_one_run(segment):
    held_out, model = HeldOutSequences(CORPUS, length=130, count=2), wrap(Regressor("LSTM").eval())
    with torch.no_grad():
        predictions = model(torch.as_tensor(held_out[:, :130])).predictions
    expected = (predictions - torch.as_tensor(held_out.targets[:, :130])).square().mean(-1)
    parts = list(run_stream(model, held_out, segment=segment, cuts=[33]))
    assert parts[-1].end == 130 and 33 in {p.end for p in parts}
    assert relative_error(torch.cat([p.losses for p in parts], 1), expected) < 1e-5
    reset = torch.zeros(2, 130, dtype=torch.bool)
    reset[:, ::16] = True
    with torch.no_grad():
        predictions = model(torch.as_tensor(held_out[:, :130]), reset=reset).predictions
    expected = (predictions - torch.as_tensor(held_out.targets[:, :130])).square().mean(-1)
    found = torch.cat([losses for _, losses in reset_losses(model, held_out, 16, segment=segment)], 1)
    assert relative_error(found, expected) < 1e-5


def test_without_targets_the_next_frame_is_predicted():
    model, frames = wrap(Predictor().eval()), FRAMES[0][None, :101]
    with torch.no_grad():
        predictions = model(torch.as_tensor(frames[:, :-1])).predictions
    expected = (predictions - torch.as_tensor(frames[:, 1:])).square().mean(-1)
    found = torch.cat([p.losses for p in run_stream(model, frames, segment=30)], 1)
    assert relative_error(found, expected) < 1e-6 and loss_name(model, frames) == "mean squared error"


def test_the_loss_s_name_is_told():
    tokens = np.zeros((1, 9), dtype=np.int64)
    assert loss_name(wrap(tiny_mamba2()), tokens) == "cross-entropy"
    model = wrap(Regressor())
    held_out = HeldOutSequences(CORPUS, length=20, count=1)
    assert loss_name(model, held_out) == "mean squared error"
    model.position_losses = lambda predictions, targets: (predictions - targets).abs().sum(-1)
    assert loss_name(model, held_out) == "model's own loss"


# -- training ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "intervention",
    [
        Zero,
        lambda: RandomNoise(0.1),
        FittedNoise,
        StatePassing,
        TBPTT,
        lambda: Mixture([(StatePassing(zero_fraction=0), 0.5), (Zero(), 0.5)]),
    ],
)
def test_post_training_runs_with_every_intervention_in_micro_batches_too(intervention):
    """TBPTT's last windows are padded: every real position counts once, however the step is cut."""
    models = [Regressor("LSTM", num_layers=2), Regressor("LSTM", num_layers=2)]
    options = {"config": {"optim": "sgd"}, **FAST, "steps": 12}
    records = [
        post_train(m, CORPUS, intervention=intervention(), accumulation=a, **options) for m, a in zip(models, (1, 4))
    ]
    assert len(records[0].losses) == 12 and records[1].losses == pytest.approx(records[0].losses, rel=1e-5)
    flat, start = (
        torch.cat([p.detach().flatten() for p in m.parameters()]) for m in (models[0], Regressor("LSTM", num_layers=2))
    )
    other = torch.cat([p.detach().flatten() for p in models[1].parameters()])
    assert not torch.equal(flat, start) and relative_error(other - start, flat - start) < 1e-3


def test_a_trained_step_equals_a_plain_loop_s():
    windows = LaneWindows(CORPUS, context=64, lanes=4)
    model, intervention = wrap(Regressor()), TBPTT()
    losses = []
    for step, batch in zip(range(3), windows):
        rows = Rows.of(batch, step, shuffled=False)
        state = intervention.initial_state(rows, zero_state(model, 4))
        mask = batch.get("attention_mask")
        with torch.no_grad():
            output = model(batch["inputs"], shift_labels=batch["labels"], attention_mask=mask, initial_state=state)
        intervention.observe(rows, output.final_state)
        losses.append(float(output.loss))
    still = {**FAST, "train_context": 64, "learning_rate": 1e-30}
    assert post_train(Regressor(), CORPUS, intervention=TBPTT(), **still).losses == pytest.approx(losses, rel=1e-5)


def test_what_is_saved_is_the_module_s_own_weights(tmp_path):
    from safetensors.torch import load_file

    model = Regressor()
    post_train(model, CORPUS, out=tmp_path, **FAST)
    fresh = Regressor(seed=1)
    fresh.load_state_dict(load_file(tmp_path / "model" / "model.safetensors"))
    x = torch.as_tensor(FRAMES[0][None])
    with torch.no_grad():
        assert torch.equal(fresh.eval()(x), model.eval()(x).predictions)


def test_a_run_resumes_where_it_stopped(tmp_path):
    whole, part = Regressor(), Regressor()
    expected = post_train(whole, CORPUS, **{**FAST, "steps": 6})
    options = {**FAST, "steps": 6, "out": tmp_path, "save_steps": 2}

    class Stopped(StatePassing):
        def initial_state(self, rows, zero):
            if rows.step == 5 and not (tmp_path / "stopped").exists():
                (tmp_path / "stopped").touch()
                raise KeyboardInterrupt
            return super().initial_state(rows, zero)

    with pytest.raises(KeyboardInterrupt):
        post_train(part, CORPUS, intervention=Stopped(), **options)
    resumed = Regressor()
    assert post_train(resumed, CORPUS, intervention=Stopped(), resume=True, **options).losses == expected.losses
    assert all(torch.equal(a, b) for a, b in zip(resumed.parameters(), whole.parameters()))


@pytest.mark.parametrize("name", ["gradient_checkpointing", "activation_checkpointing"])
def test_checkpointing_that_a_module_does_not_have_is_refused(name):
    with pytest.raises(InputError, match=f"no gradient checkpointing to switch on; leave {name} out"):
        post_train(Regressor(), CORPUS, config={name: True}, **FAST)


def test_in_bf16_a_run_is_nearly_the_same():
    losses = [post_train(Regressor("LSTM"), CORPUS, config={"bf16": b}, **FAST).losses for b in (False, True)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-2) and losses[0] != losses[1]


def test_frames_are_not_for_a_language_model():
    for call in (
        lambda: post_train(tiny_mamba2(), CORPUS, **FAST),
        lambda: diagnose(tiny_mamba2(), CORPUS, train_context=8),
    ):
        with pytest.raises(InputError, match="frames, not tokens"):
            call()
    with pytest.raises(InputError, match="reads token ids"):
        diagnose(tiny_mamba2(), np.stack([FRAMES[0]] * 2), train_context=4)


# -- diagnosis ---------------------------------------------------------------------------------------------------------


def test_a_diagnosis_tells_mean_losses():
    model, documents = Regressor().eval(), [FRAMES[0]] * 16
    corpus = load_corpus(documents, targets=[TARGETS[0]] * 16)
    found = diagnose(model, corpus, train_context=4, positions=[64])
    wrap(model)
    held_out = HeldOutSequences(corpus, length=256, count=16)
    with torch.no_grad():
        predictions = model(torch.as_tensor(held_out[:, :256])).predictions
        losses = (predictions - torch.as_tensor(held_out.targets[:, :256])).square().mean(-1).double().numpy()
    assert found.loss == "mean squared error"
    assert found.far == pytest.approx(losses[:, 128:256].mean(), rel=1e-5)
    assert found.far_stderr == pytest.approx(losses[:, 128:256].mean(1).std(ddof=1) / 4, rel=1e-4)
    assert found.positions[0].perplexity == pytest.approx(losses[:, 56:64].mean(), rel=1e-5)
    assert "mean squared error" in found.verdict and "perplexity" not in found.verdict


def curve(*losses, baseline=0.01, stderr=1e-5):
    edges = [0, 64, 128, 256, 512, 1024]
    return [
        Bucket(a, b, x, 1e-4, baseline, 1e-4, x - baseline, stderr, 16) for a, b, x in zip(edges, edges[1:], losses)
    ]


@pytest.mark.parametrize(
    "buckets, point",
    [
        (curve(0.01, 0.01, 0.01, 0.0103, 0.02), 256),  # 3 %, though the difference is a mere 0.0003
        (curve(0.01, 0.01, 0.01, 0.0101, 0.0101), None),  # 1 %
        (curve(0.01, 0.01, 0.02, 0.02, 0.02, stderr=0.01), None),  # not sure
        (curve(-5.0, -5.0, -5.0, -4.8, -4.8, baseline=-5.0), 256),  # a log density's loss may be negative
        (curve(0.01, 0.01, 0.01, 0.01, math.nan), 512),
    ],
)
def test_a_failure_is_a_share_of_the_loss(buckets, point):
    measure = Measure("mean squared error")
    assert break_point(buckets, 64, measure) == point
    assert ("Fails" in sentence(buckets, 64, point, 16, 1024, measure)) == (point is not None)
    assert not exceeds(curve(0, 0, 0, 0, 0.0103)[-1])  # as a cross-entropy that would be 0.03 % of perplexity
