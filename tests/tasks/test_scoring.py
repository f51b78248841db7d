"""Scorings against the rules that their sources state, the interval against its closed form, the effective length."""

import math

import pytest

from lengthen.tasks.scoring import effective_length, exact, strict, substring, wilson

PLACES = ("kitchen", "garden", "office")


@pytest.mark.parametrize(
    "output, right",
    [
        (" kitchen", 1),
        (" The KITCHEN.", 1),  # letter case
        (" kitchen or garden", 0),  # a second candidate
        (" garden. No, kitchen", 0),  # the first sentence counts
        (" kitchen. Then the garden", 1),
        (" kitchen and office", 1),  # the question names the office itself
        (" kitchen <context> garden", 1),  # an example that the model makes up
        (" kitchen\nQuestion: where is the garden", 1),
        (" somewhere", 0),
        ("", 0),
    ],
)
def test_strict_asks_for_the_target_alone(output, right):
    question = "Where was Anna before the office?"
    assert strict(output, ("kitchen",), PLACES, question) == right


def test_substring_gives_the_share_of_targets():
    assert substring(" The number is 1234567, I think.", ("1234567",)) == 1
    assert substring(" 1, 22 and 4", ("1", "22", "33", "4")) == 0.75
    assert substring(" bagel", ("BAG",)) == 1  # anywhere, letter case apart
    assert substring("", ("1",)) == 0


def test_exact_asks_for_every_token():
    assert exact([1, 2, 3], [1, 2, 3]) == 1
    assert exact([1, 2, 4], [1, 2, 3]) == 0
    assert exact([1, 2], [1, 2, 3]) == 0


@pytest.mark.parametrize("right, n", [(0, 10), (10, 10), (7, 10), (50, 100)])
def test_the_interval_solves_its_equation(right, n):
    """Its ends are the proportions p at which |accuracy - p| = z sqrt(p (1 - p) / n)."""
    for p in wilson(right / n, n):
        assert abs(right / n - p) == pytest.approx(1.959964 * math.sqrt(p * (1 - p) / n), abs=1e-6)


def test_the_effective_length_ends_where_a_length_fails():
    assert effective_length({8: [1.0, 1.0], 16: [0.9, 0.8], 32: [0.9, 0.7], 64: [1.0]}) == 16
    assert effective_length({64: [1.0], 8: [0.5]}) is None
