"""The unigram loss: the entropy of the targets themselves, read in columns."""

import math

import numpy as np
import pytest
import torch

from lengthen.data import HeldOutSequences, load_corpus
from lengthen.diagnosis.unigram import unigram_loss


def test_the_unigram_loss_does_not_depend_on_how_tokens_are_read(monkeypatch):
    tokens = torch.randint(50, (3, 301), generator=torch.Generator().manual_seed(0))
    whole = unigram_loss(tokens, 300)
    monkeypatch.setattr("lengthen.diagnosis.unigram.COLUMNS", 7)
    assert unigram_loss(tokens, 300) == whole and unigram_loss(tokens[:, :101], 100) == unigram_loss(tokens, 100)


def test_it_is_the_entropy_of_the_targets_alone():
    tokens = np.array([[9, 0, 0, 1, 1, 5], [9, 0, 0, 1, 1, 5]])  # the first is no target, the last beyond the length
    assert unigram_loss(tokens, 4) == pytest.approx(math.log(2))
    assert unigram_loss(np.zeros((2, 9), dtype=int), 8) == 0
    even = np.tile(np.arange(257), (3, 1))
    assert unigram_loss(even, 256) == pytest.approx(math.log(256))


def test_a_token_that_appears_late_is_counted(monkeypatch):
    monkeypatch.setattr("lengthen.diagnosis.unigram.COLUMNS", 2)
    tokens = np.array([[0, 1, 1, 1, 300, 1, 300, 300, 300]])
    assert unigram_loss(tokens, 8) == pytest.approx(math.log(2))


def test_targets_of_their_own_are_what_is_predicted():
    """They end where their inputs do: after the last one there is nothing to be read."""
    inputs, targets = np.arange(64).reshape(2, 32), np.arange(64).reshape(2, 32) % 4
    sequences = HeldOutSequences(load_corpus([*inputs], targets=[*targets]), length=32, count=2)
    assert unigram_loss(sequences, 32) == pytest.approx(math.log(4))
    assert unigram_loss(sequences, 3) == pytest.approx(math.log(3))
