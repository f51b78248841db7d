"""How answers are scored, by named rules, and what a number of scores says.

exact: the continuation is the answer, token by token. strict: BABILong's rule (Kuratov et al., 2024), the target is the
only candidate that the answer names. substring: RULER's rule (Hsieh et al., 2024) and lm-eval's, the share of targets
that the answer holds somewhere. Scores by different rules are not comparable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

Scoring = Literal["exact", "strict", "substring"]
Z_975 = 1.959963984540054
ENOUGH = 0.85
"""Accuracy from which a length counts as reached, about RULER's threshold (85.6 %)."""


def exact(output: Sequence[int], answer: Sequence[int]) -> float:
    """1 where the ids put out are those of the answer."""
    return float(len(output) == len(answer) and all(int(a) == int(b) for a, b in zip(output, answer)))


def strict(output: str, targets: Sequence[str], candidates: Sequence[str], question: str) -> float:
    """1 where the target is the only candidate in the first sentence of the output.

    Letter case does not count; neither do candidates that the question itself names, nor what comes after an example that
    the model makes up.
    """
    said = output.lower().split(".")[0].split("<context>")[0].split("<example>")[0].split("question")[0]
    asked = question.lower()
    named = {c for c in map(str.lower, candidates) if c in said and c not in asked}
    return float(named == {t.lower() for t in targets})


def substring(output: str, targets: Sequence[str]) -> float:
    """The share of targets that stand somewhere in the output, letter case apart."""
    return sum(t.lower() in output.lower() for t in targets) / len(targets)


def wilson(accuracy: float, n: int) -> tuple[float, float]:
    """The 95 % interval of a proportion by Wilson's score (1927).

    For a mean of n scores between 0 and 1 it is no narrower than it should be, since none varies more than scores of 0
    and 1 with the same mean.
    """
    z2 = Z_975**2
    centre = (accuracy + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_975 / (1 + z2 / n) * math.sqrt(accuracy * (1 - accuracy) / n + z2 / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def effective_length(accuracies: Mapping[int, Sequence[float]]) -> int | None:
    """The largest tested length up to which the accuracy, over all depths, is at least 0.85 at every tested length.

    accuracies: length -> the accuracy of each depth. None where the shortest length is not reached.
    """
    reached = None
    for length in sorted(accuracies):
        if sum(accuracies[length]) / len(accuracies[length]) < ENOUGH:
            break
        reached = length
    return reached
