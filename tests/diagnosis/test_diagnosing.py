"""diagnose(): buckets, break point and verdict against independent computations and known answers."""

import itertools
import math

import numpy as np
import pytest
import torch

from lengthen import diagnose, wrap
from lengthen.diagnosis.confidence import mean_and_stderr, t_975
from lengthen.diagnosis.position_loss import IntervalSums, bucket_intervals
from lengthen.errors import InputError
from lengthen.results import Diagnosis
from tests.conftest import tiny_mamba2


@pytest.mark.parametrize("context, length", [(64, 4096), (64, 64), (64, 65), (1, 64), (7, 500), (100, 12345)])
def test_buckets_tile_the_positions_with_edges_at_multiples(context, length):
    buckets = bucket_intervals(context, length)
    assert buckets[0][0] == 0 and buckets[-1][1] == length and all(a < b for a, b in buckets)
    assert all(b == c for (_, b), (c, _) in itertools.pairwise(buckets))
    assert all(b % context == 0 for _, b in buckets[:-1] if b > context)


def test_interval_sums_do_not_depend_on_segments():
    losses = torch.randn(4, 100, generator=torch.Generator().manual_seed(0)).abs()
    intervals = [(0, 100), (3, 4), (10, 55), (99, 100)]
    for cuts in ([0, 100], [0, 1, 50, 100], [0, 33, 34, 99, 100]):
        sums = IntervalSums(intervals, 4)
        for a, b in itertools.pairwise(cuts):
            sums.add(a, losses[:, a:b])
        expected = np.stack([losses[:, a:b].double().mean(1).numpy() for a, b in intervals], 1)
        np.testing.assert_allclose(sums.means(), expected, rtol=1e-12)


def test_an_infinite_loss_spoils_only_its_own_interval():
    losses = torch.ones(2, 10)
    losses[1, 5] = math.inf
    sums = IntervalSums([(0, 5), (5, 6), (6, 10)], 2)
    sums.add(0, losses)
    assert sums.means().tolist() == [[1, 1, 1], [1, math.inf, 1]]


@pytest.mark.parametrize("degrees, value", [(10, 2.228), (15, 2.131), (31, 2.040), (1000, 1.962)])
def test_t_quantiles(degrees, value):
    assert abs(t_975(degrees) - value) < 1e-3


def test_mean_and_stderr():
    values = np.array([1.0, 2.0, 4.0])
    assert mean_and_stderr(values) == pytest.approx((7 / 3, values.std(ddof=1) / math.sqrt(3)))
    assert math.isnan(mean_and_stderr(values[:1])[1]) and mean_and_stderr(np.array([1.0, math.inf]))[0] == math.inf


def independent_losses(model, tokens):
    with torch.no_grad():
        logits = model(torch.as_tensor(tokens[:, :-1])).logits.double()
    flat = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), torch.as_tensor(tokens[:, 1:]).flatten(), reduction="none"
    )
    return flat.view(len(tokens), -1).numpy()


def test_buckets_equal_an_independent_computation():
    model = wrap(tiny_mamba2())
    tokens = np.random.default_rng(0).integers(256, size=(16, 2049))
    found = diagnose(model, tokens, train_context=32, positions=[100, 2048], segment=300)
    losses = independent_losses(model, tokens)
    reset = np.concatenate([independent_losses(model, tokens[:, k : k + 33]) for k in range(0, 2048, 32)], 1)
    for b in found.buckets:
        mean, own = losses[:, b.start : b.end].mean(1), reset[:, b.start : b.end].mean(1)
        assert (b.loss, b.own_reset_loss) == pytest.approx((mean.mean(), own.mean()), rel=1e-6)
        assert b.excess == pytest.approx((mean - own).mean(), abs=1e-6)
        assert b.excess_stderr == pytest.approx((mean - own).std(ddof=1) / 4, rel=1e-4, abs=1e-8)
    assert found.far == pytest.approx(math.exp(losses[:, 1024:2048].mean()), rel=1e-6)
    assert found.in_context == pytest.approx(math.exp(reset.mean()), rel=1e-6)
    assert [(p.start, p.end) for p in found.positions] == [(88, 100), (1792, 2048)]
    assert {s.position for s in found.states} == {32, 64, 128, 256, 512, 1024, 2048}
    assert len(found.states) == 7 * 2 * 4


def test_with_few_sequences_no_break_point_is_claimed():
    found = diagnose(wrap(tiny_mamba2()), np.zeros((3, 2049), dtype=np.int64), train_context=32)
    assert found.break_point is None and found.fails is None and "at least 16" in found.verdict


def test_an_overflowing_model_fails_at_its_position():
    model = wrap(tiny_mamba2())
    tokens = np.random.default_rng(0).integers(255, size=(16, 1025))
    tokens[:, 500] = 255
    with torch.no_grad():
        model.backbone.embeddings.weight[255] = math.nan
    found = diagnose(model, tokens, train_context=16)
    assert found.fails and found.break_point == 512 and "no longer finite" in found.verdict


def test_a_model_that_is_never_finite_gets_no_verdict():
    model = wrap(tiny_mamba2())
    with torch.no_grad():
        model.backbone.norm_f.weight.fill_(math.nan)
    found = diagnose(model, np.zeros((16, 1025), dtype=np.int64), train_context=16)
    assert not found.fails and found.break_point is None and "check the weights" in found.verdict


def test_the_result_reads_back(tmp_path):
    found = diagnose(wrap(tiny_mamba2()), np.zeros((2, 129), dtype=np.int64), train_context=32, max_length=128)
    assert Diagnosis.load(found.save(tmp_path / "d.json")).to_json() == found.to_json()


@pytest.mark.parametrize(
    "options, match",
    [
        ({"train_context": 0}, "training context"),
        ({"train_context": 64, "max_length": 32}, "below the training context"),
        ({"train_context": 64}, "positions"),
        ({"train_context": 8, "max_length": 64, "positions": [0]}, "position 0"),
    ],
)
def test_bad_input(options, match):
    with pytest.raises(InputError, match=match):
        diagnose(wrap(tiny_mamba2()), np.zeros((2, 100), dtype=np.int64), **options)


def test_tokens_the_model_does_not_have_are_refused():
    with pytest.raises(InputError, match="256"):
        diagnose(wrap(tiny_mamba2()), np.full((2, 65), 256), train_context=8, max_length=64)
    with pytest.raises(InputError, match="vocabulary"):
        diagnose(wrap(tiny_mamba2(vocab_size=64)), ["a" * 5000], train_context=64, n=1)


def test_a_model_that_learnt_nothing_is_told_so_before_any_verdict(plays):
    found = diagnose(tiny_mamba2(), plays[1], train_context=64, max_length=256)
    assert found.recommendation.rule == "learnt_nothing"
    assert found.verdict.startswith("The model has learnt nothing")
