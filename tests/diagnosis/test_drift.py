"""Drift: limits that chance rarely exceeds, states that leave them; how long each head remembers."""

import math

import numpy as np
import pytest

from lengthen import stream
from lengthen.diagnosis.drift import LEVEL, training_states, window_statistics
from lengthen.diagnosis.states import head_statistics
from lengthen.errors import InputError
from lengthen.training import Mamba2Recipe

T, N = 16, 16
TOKENS = np.random.default_rng(0).integers(256, size=(N, 64 * T + 1))


def untrained(*decays):
    return Mamba2Recipe(width=16, layers=2, head_dim=8, state_size=8, decay_range=decays).build(seed=0)


@pytest.fixture(scope="module")
def slow():
    return untrained(0.002, 0.05)


@pytest.fixture(scope="module")
def shown(slow):
    return training_states(slow, TOKENS, T)


def groups_at(model, *positions):
    return {
        part.end: head_statistics(part.final_state)
        for part in stream(model, TOKENS, cuts=positions)
        if part.end in positions
    }


def surely_below(alarms, draws, rate):
    """Whether the 95 % upper bound (Clopper and Pearson) of the rate at which these alarms come is at most `rate`."""
    tail = sum(math.comb(draws, k) * rate**k * (1 - rate) ** (draws - k) for k in range(alarms + 1))
    return tail <= 0.05


def test_states_from_within_the_training_context_are_rarely_outside(slow, shown):
    """Over 400 groups of held-out windows at every position, and whichever of the heads."""
    random, alarms = np.random.default_rng(1), 0
    fresh = random.integers(256, size=(N, 2000))
    for position in range(1, T + 1):
        firsts = random.integers(2000 - T, size=25).tolist()
        found = window_statistics(slow, fresh, firsts, position, [position], None)
        alarms += sum(any(drift.outside for drift in shown.judge(position, group[0])) for group in found)
    print(f"{alarms} false alarms of 400, level {LEVEL}")
    assert surely_below(alarms, 400, 0.08)


def test_growing_states_are_outside_and_those_that_settled_are_not(slow, shown):
    far = shown.drift(groups_at(slow, 4 * T, 16 * T), [])
    assert len(far.heads) == 2 * 2 * 4 and all(head.outside for head in far.heads)
    by_position = {p: [h.distance for h in far.heads if h.position == p] for p in (4 * T, 16 * T)}
    assert all(a < b for a, b in zip(by_position[4 * T], by_position[16 * T]))
    quick = untrained(200.0, 400.0)
    assert not any(head.outside for head in training_states(quick, TOKENS, T).drift(groups_at(quick, 16 * T), []).heads)


def test_a_state_that_overflowed_is_outside(shown):
    for value in (math.inf, math.nan):
        assert all(drift.outside for drift in shown.judge(T, np.full((N, len(shown.heads), 4), value)))


def test_the_same_seed_gives_the_same_limits(slow, shown):
    again, other = training_states(slow, TOKENS, T), training_states(slow, TOKENS, T, seed=1)
    assert (again.limits == shown.limits).all() and not (other.limits == shown.limits).all()


def test_too_few_windows_are_refused(slow):
    with pytest.raises(InputError, match="fewer than 64 windows"):
        training_states(slow, TOKENS[:, : 3 * T + 1], T)
