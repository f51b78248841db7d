"""Sequences have one fingerprint however they are read, and another as soon as anything of them differs."""

import numpy as np
import pytest
import torch

from lengthen.diagnosis import sequence_losses as module
from lengthen.diagnosis.position_loss import IntervalSums
from lengthen.diagnosis.sequence_losses import fingerprint, sequence_losses

TOKENS = torch.arange(22).reshape(2, 11)


class WithTargets:
    """Frames with targets of their own."""

    def __init__(self, values, targets):
        self.values, self.targets, self.shape = values, targets, values.shape

    def __getitem__(self, key):
        return self.values[key]


def test_arrays_tensors_and_types_of_integers_are_alike(monkeypatch):
    found = fingerprint(TOKENS)
    assert found == fingerprint(TOKENS.numpy()) == fingerprint(TOKENS.int())
    monkeypatch.setattr(module, "COLUMNS", 22)
    assert fingerprint(TOKENS) == found


@pytest.mark.parametrize("changed", [TOKENS + 1, TOKENS.float(), TOKENS.reshape(1, 22), TOKENS[:, :10], TOKENS.flip(0)])
def test_another_value_type_shape_or_order_is_another_fingerprint(changed):
    assert fingerprint(changed) != fingerprint(TOKENS)


def test_with_own_targets_they_count_and_the_value_after_the_last_position_does_not():
    values, targets = np.random.default_rng(0).random((2, 11, 3)), np.zeros((2, 10), np.int64)
    found = fingerprint(WithTargets(values, targets))
    beyond, inside = values.copy(), values.copy()
    beyond[:, 10], inside[:, 9] = 0, 0
    assert fingerprint(WithTargets(beyond, targets)) == found
    assert found not in {fingerprint(WithTargets(inside, targets)), fingerprint(WithTargets(values, targets + 1))}


def test_means_are_told_sequence_by_sequence_for_the_first_intervals():
    carried, reset = (IntervalSums([(0, 4), (4, 10)], 2) for _ in range(2))
    carried.add(0, torch.tensor([[1.0] * 10, [2.0] * 10]))
    found = sequence_losses(TOKENS, carried, reset, 1)
    assert found.carried == [[1.0], [2.0]] and found.own_reset == [[0.0], [0.0]]
    assert found.tokens == fingerprint(TOKENS) and found.overlap is None
