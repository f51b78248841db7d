"""Numbers as a reader wants them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from lengthen.results import Spread

NONE = "–"
"""Stands where a number was not measured or is not finite."""


def number(value: float | None, digits: int = 3) -> str:
    """A few significant digits, thousands with separators, powers of ten beyond 0.001 and a million."""
    if value is None or not math.isfinite(value):
        return NONE
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.{max(digits - 2, 0)}e}".replace("e-0", "e-").replace("e+0", "e").replace("e+", "e")
    if abs(value) >= 10**digits - 0.5:
        return f"{value:,.0f}"
    return f"{value:#.{digits}g}".rstrip(".")


def with_error(value: float | None, stderr: float | None) -> str:
    """A mean with its standard error, both to the error's second digit."""
    if value is None or stderr is None or not (math.isfinite(value) and math.isfinite(stderr)):
        return number(value)
    if not 1e-3 <= abs(value) < 1e6 or stderr <= 0:
        return f"{number(value)} ± {number(stderr, 2)}"
    decimals = min(max(0, 1 - math.floor(math.log10(stderr))), max(0, 3 - math.floor(math.log10(abs(value)))))
    return f"{value:,.{decimals}f} ± {stderr:,.{decimals}f}"


def ratio(value: float | None) -> str:
    """A ratio: three decimals below ten, three digits above."""
    if value is None or not math.isfinite(value):
        return NONE
    return f"{value:.3f}" if abs(value) < 9.9995 else number(value)


def percent_with_error(share: float | None, stderr: float | None) -> str:
    """A share as percent with its standard error, which a dash does without."""
    told = percent(share)
    if share is None or told == NONE or stderr is None or not math.isfinite(stderr):
        return told
    return f"{told.removesuffix(' %')} ± {100 * stderr:,.{_decimals(share)}f} %"


def change(log_ratio: float, stderr: float) -> str:
    """A ratio given by its logarithm, as a change in percent with its standard error."""
    times = perplexity_of(log_ratio)
    return percent_with_error(times - 1, times * stderr)


def percent(share: float | None) -> str:
    """A share as percent with its sign: 0.0213 is +2.1 %."""
    if share is None or not math.isfinite(share):
        return NONE
    decimals = _decimals(share)
    return f"{round(100 * share, decimals) + 0.0:+,.{decimals}f} %"  # -0.0 + 0.0 is 0.0


def _decimals(share: float) -> int:
    return 1 if abs(share) < 10 else 0


def percents(low: float | None, high: float | None) -> str:
    """An interval of shares."""
    return NONE if NONE in (percent(low), percent(high)) else f"{percent(low)} to {percent(high)}"


def between(low: float | None, high: float | None) -> str:
    """An interval."""
    return NONE if NONE in (number(low), number(high)) else f"{number(low)} to {number(high)}"


def ranged(spread: Spread) -> str:
    """A mean over seeds with the least and the greatest in brackets."""
    mean = number(spread.mean)
    return mean if mean == NONE else f"{mean} [{number(spread.low)}, {number(spread.high)}]"


def ranged_ratio(spread: Spread) -> str:
    """The same of ratios."""
    mean = ratio(spread.mean)
    return mean if mean == NONE else f"{mean} [{ratio(spread.low)}, {ratio(spread.high)}]"


def short(value: float | None) -> str:
    """Two significant digits at most, such as an error and its tolerance."""
    if value is None or not math.isfinite(value):
        return NONE
    return number(value, 2) if abs(value) >= 99.5 else f"{value:.2g}".replace("e-0", "e-")


def perplexity_of(loss: float) -> float:
    """exp(loss), infinite where that overflows."""
    return math.exp(loss) if loss < 700 else math.inf if loss == loss else math.nan


def told_as(loss: str) -> str:
    """What losses of a kind are told as."""
    return "perplexity" if loss == "cross-entropy" else loss


def value_of(loss: float, kind: str) -> float:
    """A mean loss as it is told."""
    return perplexity_of(loss) if told_as(kind) == "perplexity" else loss


def span(counts: Iterable[int]) -> str:
    """Several counts: the one that they are, or the least and the greatest."""
    low, *_, high = sorted([*counts] * 2)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def compact(count: int) -> str:
    """A number of tokens in few characters: 512, 4k, 1M, k being 1,024 and M its square."""
    for size, unit in ((1 << 20, "M"), (1 << 10, "k")):
        if count and count % size == 0:
            return f"{count // size}{unit}"
    return f"{count:,}"


def memory(count: int) -> str:
    """Bytes in the binary unit that suits them."""
    mebibytes = f"{count / 2**20:.2f}"
    return f"{mebibytes} MiB" if float(mebibytes) < 1024 else f"{count / 2**30:.2f} GiB"
