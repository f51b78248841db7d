"""The diagnosis calibrated on trained models whose answer is known: the demonstration's, before and after, and stock."""

import copy
import math

import numpy as np
import pytest
import torch

from lengthen import StatePassing, Zero, demonstration, diagnose, pretrain, stream
from lengthen.data import HeldOutSequences
from lengthen.diagnosis import effective_remembrance
from lengthen.diagnosis.drift import training_states, window_statistics
from lengthen.diagnosis.patching import state_patching
from lengthen.diagnosis.position_loss import bucket_intervals
from lengthen.training import Mamba2Recipe, Optimisation, run_training
from tests.diagnosis.test_drift import surely_below

pytestmark = pytest.mark.acceptance
T, LENGTH, FAR = 64, 4096, 1024


@pytest.fixture(scope="module", params=[0, 1, 2])
def trained(request, plays):
    """(seed, {"before": the demonstration's model, "after": with state passing, "stock": of the stock initialisation})."""
    seed, (corpus, _) = request.param, plays
    before, _ = pretrain(corpus, steps=demonstration.PRETRAINING_STEPS, recipe=demonstration.RECIPE, seed=seed)
    stock, _ = pretrain(corpus, steps=demonstration.PRETRAINING_STEPS, recipe=Mamba2Recipe(), seed=seed)
    after = copy.deepcopy(before)
    optimisation = Optimisation(
        steps=demonstration.STEPS, rows=demonstration.ROWS, learning_rate=demonstration.LEARNING_RATE
    )
    run_training(after, corpus, StatePassing(seed=seed), optimisation, train_context=T, seed=seed + 1)
    return seed, {"before": before, "after": after, "stock": stock}


@pytest.fixture(scope="module")
def judged(trained, plays):
    seed, models = trained
    tokens = HeldOutSequences(plays[1], length=LENGTH, count=16, seed=seed)
    return {name: diagnose(model, tokens, train_context=T, seed=seed) for name, model in models.items()}


def dense_break_point(model, plays, seed):
    """Independently: 64 sequences, losses of one run and of windows of T, and where their mean parts by 2 % for good."""
    tokens = torch.as_tensor(HeldOutSequences(plays[1], length=LENGTH, count=64, seed=seed + 100)[:, :])
    with torch.no_grad():
        excess = []
        for row in tokens:
            whole = model(row[None, :-1]).logits[0]
            windows = model(row[:-1].view(-1, T)).logits.flatten(0, 1)
            losses = [torch.nn.functional.cross_entropy(found, row[1:], reduction="none") for found in (whole, windows)]
            excess.append(losses[0] - losses[1])
    means = torch.stack(excess).double().mean(0).numpy()
    edges = [end for _, end in bucket_intervals(T, LENGTH)]
    within = [np.mean(means[a:b]) <= math.log(1.02) for a, b in zip([0, *edges], edges)]
    return [0, *edges][max(i for i, holds in enumerate(within) if holds) + 1]


def test_before_it_fails_where_a_dense_curve_does_and_the_advice_names_state_passing(trained, judged, plays):
    seed, models = trained
    found, dense = judged["before"], dense_break_point(models["before"], plays, seed)
    edges = [start for start, _ in bucket_intervals(T, LENGTH)]
    print(f"seed {seed}: {found.verdict} Dense curve: {dense}. {found.recommendation.finding}")
    assert found.fails and abs(edges.index(found.break_point) - edges.index(dense)) <= 1
    assert found.recommendation.rule == "fails" and found.recommendation.intervention in ("state-passing", "tbptt")
    assert found.generalisation_length <= found.break_point and found.far_over_own_reset > 2


def test_after_state_passing_and_with_the_stock_initialisation_nothing_fails(trained, judged):
    seed, _ = trained
    for name in ("after", "stock"):
        found = judged[name]
        print(f"seed {seed}, {name}: {found.verdict} {found.recommendation.finding}")
        assert found.fails is False and found.generalisation_length == LENGTH and found.far_over_own_reset < 1.02
    assert judged["stock"].recommendation.rule == "forgets"


def test_state_passing_makes_what_is_far_back_count_less(trained, plays):
    seed, models = trained
    tokens = HeldOutSequences(plays[1], length=LENGTH, count=16, seed=seed)
    before, after = (
        effective_remembrance(models[name], tokens, ends=[LENGTH], starts=[LENGTH - FAR]).points[-1].mean
        for name in ("before", "after")
    )
    print(f"seed {seed}: EffRem at {LENGTH} without the first {LENGTH - FAR}: {before:.3f}, {after:.3f} after")
    assert before >= 3 * after


def test_drift_is_seen_at_16_contexts_and_rarely_within_one(trained, judged, plays):
    seed, models = trained
    far = [head for head in judged["before"].drift.heads if head.position == 16 * T]
    assert len(far) == 8 and all(head.outside for head in far)
    random = np.random.default_rng(seed)
    fresh = HeldOutSequences(plays[1], length=64_000, count=16, seed=seed + 1)
    tokens = HeldOutSequences(plays[1], length=LENGTH, count=16, seed=seed)
    for name, model in models.items():
        shown, alarms = training_states(model, tokens, T, seed=seed), 0
        for _ in range(100):
            position, firsts = int(random.integers(T)) + 1, random.integers(63_000, size=4).tolist()
            groups = window_statistics(model, fresh, firsts, position, [position], None)
            alarms += sum(any(head.outside for head in shown.judge(position, group[0])) for group in groups)
        print(f"seed {seed}, {name}: {alarms} false alarms of 400")
        assert surely_below(alarms, 400, 0.08)


@pytest.mark.parametrize("depth", range(4))
def test_patching_names_the_one_slow_layer_of_four(depth, plays):
    corpus, held_out = plays
    model = Mamba2Recipe(layers=4).build(seed=0)
    torch.manual_seed(depth)
    with torch.no_grad():
        model.backbone.layers[depth].mixer.A_log.uniform_(*demonstration.SLOW_DECAYS).log_()
    optimisation = Optimisation(steps=300, learning_rate=4e-3, warmup=30, final_share=0.1)
    run_training(model, corpus, Zero(), optimisation, train_context=T)
    tokens = HeldOutSequences(held_out, length=LENGTH, count=16)
    *_, last = stream(model, tokens[:, : 32 * T + 1])
    found = state_patching(model, tokens, T, 32 * T, last.final_state)
    print(
        f"depth {depth}: excess {found.excess:.3f}, " + ", ".join(f"{p.layer} {p.share:.2f}" for p in found.patches[:4])
    )
    assert found.patches[0].layer == f"backbone.layers.{depth}.mixer"
    assert found.patches[0].share > 0.8 > 0.2 > found.patches[1].share


def test_a_context_too_short_is_told_and_state_passing_at_it_does_not_help(plays):
    """Four tokens, and heads that remember ten thousand."""
    corpus, held_out = plays
    recipe = Mamba2Recipe(layers=1, decay_range=(2e-5, 5e-4))
    model, _ = pretrain(corpus, train_context=4, rows=256, recipe=recipe)
    tokens = HeldOutSequences(held_out, length=32_768, count=16)
    before = diagnose(model, tokens, train_context=4, max_length=32_768)
    run_training(model, corpus, StatePassing(), Optimisation(steps=500, rows=256, learning_rate=3e-3), train_context=4)
    after = diagnose(model, tokens, train_context=4, max_length=32_768)
    print(f"{before.recommendation.finding} {before.recommendation.advice} Afterwards: {after.verdict}")
    assert before.recommendation.rule == "context_too_short" and before.fails and after.fails
