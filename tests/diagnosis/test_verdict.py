"""From buckets to a break point, a generalisation length and a sentence."""

import math
from dataclasses import replace

import pytest

from lengthen.diagnosis.verdict import break_point, exceeds, generalisation_length, sentence
from lengthen.results import Bucket


@pytest.mark.parametrize(
    "excesses, length",
    [
        ((0, 0, 0, 0, 0), 1024),
        ((0, 0, 0.01, 0.03, 0.01), 256),
        ((0, 0.5, 0, 0, 0), 64),
        ((0.5, 0.01, 0, 0, math.nan), 512),  # what lies within the training context does not count
        ((0, 0, math.inf, 0, 0), 128),
    ],
)
def test_generalisation_length(excesses, length):
    assert generalisation_length(curve(*excesses), 64) == length


def curve(*excesses, stderr=0.005, n=16):
    edges = [0, 64, 128, 256, 512, 1024]
    return [Bucket(a, b, 2 + e, 0.01, 2.0, 0.01, e, stderr, n) for a, b, e in zip(edges, edges[1:], excesses)]


@pytest.mark.parametrize(
    "buckets, point",
    [
        (curve(0, 0, 0, 0, 0), None),
        (curve(0, 0, 0.1, 0.2, 0.5), 128),
        (curve(0, 0.5, 0.1, 0.0, 0.5), 512),  # it fell back once: only the last stretch counts
        (curve(0, 0, 0.1, 0.2, 0.0), None),
        (curve(0, 0, 0, 0.015, 0.019), None),  # below 2 % of perplexity
        (curve(0, 0, 0, 0.1, 0.1, stderr=0.06), None),  # not sure
        (curve(0.5, 0, 0, 0, 0), None),  # within the training context
        (curve(0, 0, 0, 0, math.inf), 512),
        (curve(0, 0, 0, 0, math.nan), 512),
    ],
)
def test_break_point(buckets, point):
    assert break_point(buckets, 64) == point
    assert ("Fails" in sentence(buckets, 64, point, 16, 1024)) == (point is not None)


def test_a_difference_that_chance_may_make_is_no_failure():
    assert exceeds(curve(0, 0, 0, 0, 0.03, stderr=0.01)[-1])
    assert not exceeds(curve(0, 0, 0, 0, 0.03, stderr=0.015)[-1])  # 0.03 / 0.015 is below the 2.13 of 15 degrees
    assert not exceeds(curve(0, 0, 0, 0, 0.019, stderr=0.0)[-1])  # sure, and below 2 %


def test_no_verdict_is_given_where_there_can_be_none():
    buckets = curve(0, 0, 0.1, 0.2, 0.5)
    assert sentence(buckets, 64, 128, 15, 1024).startswith("No verdict: 15 sequences are too few")
    assert sentence(buckets, 1024, None, 16, 1024).startswith("No verdict: 1024 positions do not reach past")
    endless = [replace(buckets[-1], own_reset_loss=math.nan)]
    assert "not finite even with the state zeroed" in sentence(endless, 64, None, 16, 1024)


def test_the_sentence_says_from_where_and_by_how_much():
    told = sentence(curve(0, 0, 0.1, 0.2, math.log(3)), 64, 128, 16, 1024)
    assert told.startswith("Fails: from position 128 (2 times the training context) the perplexity exceeds")
    assert told.endswith("and is 3 times it at 512 to 1,024.")
    assert sentence(curve(0, 0, 0, 0, -0.01), 64, None, 16, 1024).endswith("(last bucket -1.0 %).")
    assert "no longer finite" in sentence(curve(0, 0, 0, 0, math.inf), 64, 512, 16, 1024)
