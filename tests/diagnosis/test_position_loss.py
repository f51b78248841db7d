"""Sums of losses by bucket do not depend on how the stream was cut."""

import math

import pytest
import torch

from lengthen.diagnosis.position_loss import IntervalSums, bucket_intervals, buckets_of


@pytest.mark.parametrize(("context", "length"), [(64, 4096), (64, 100), (7, 1000), (2, 5), (64, 64), (64, 30)])
def test_buckets_tile_all_positions_and_have_an_edge_at_the_training_context(context, length):
    found = bucket_intervals(context, length)
    assert found[0][0] == 0 and found[-1][1] == length and all(low < high for low, high in found)
    assert [high for _, high in found[:-1]] == [low for low, _ in found[1:]]
    assert context > length or context in {high for _, high in found}
    assert all(high % context == 0 for _, high in found[:-1] if high > context)


@pytest.mark.parametrize("segment", [1, 3, 7, 50])
def test_means_are_the_same_in_segments_of_any_length(segment):
    losses = torch.rand(3, 50, generator=torch.Generator().manual_seed(0))
    intervals = [(0, 5), (5, 12), (12, 50)]
    sums = IntervalSums(intervals, 3)
    for start in range(0, 50, segment):
        sums.add(start, losses[:, start : start + segment])
    for i, (low, high) in enumerate(intervals):
        assert sums.means()[:, i] == pytest.approx(losses[:, low:high].mean(1).numpy(), rel=1e-6)


def test_a_loss_that_is_not_finite_stays_in_its_own_bucket():
    losses = torch.ones(2, 10)
    losses[1, 6] = math.inf
    sums = IntervalSums([(0, 5), (5, 8), (8, 10)], 2)
    sums.add(0, losses)
    assert sums.means().tolist() == [[1, 1, 1], [1, math.inf, 1]]


def test_a_bucket_tells_the_mean_the_reset_s_and_their_paired_difference():
    carried, reset = (IntervalSums([(0, 4), (4, 8)], 2) for _ in range(2))
    carried.add(0, torch.tensor([[2.0] * 8, [4.0] * 8]))
    reset.add(0, torch.tensor([[1.0] * 8, [3.0] * 8]))
    (bucket,) = buckets_of(carried, reset, 1, seed=0)
    assert (bucket.start, bucket.end, bucket.n) == (0, 4, 2)
    assert (bucket.loss, bucket.own_reset_loss, bucket.excess) == (3.0, 2.0, 1.0)
    assert bucket.stderr > 0 and bucket.excess_stderr == 0.0
