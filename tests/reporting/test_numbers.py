"""Numbers as they are told: in few digits that read back as the number, and a dash where there is none."""

import math
import random

import pytest

from lengthen.reporting.numbers import (
    NONE,
    between,
    change,
    compact,
    memory,
    number,
    percent,
    percent_with_error,
    percents,
    perplexity_of,
    ranged,
    ranged_ratio,
    ratio,
    short,
    span,
    value_of,
    with_error,
)
from lengthen.results import Spread


@pytest.mark.parametrize(
    ("value", "shown"),
    [(5.416, "5.42"), (139.4, "139"), (0.0213, "0.0213"), (1234.5, "1,234"), (2.5e7, "2.5e7"), (1.27e-5, "1.3e-5")]
    + [(value, NONE) for value in (None, math.nan, math.inf)],
)
def test_number(value, shown):
    assert number(value) == shown


@pytest.mark.parametrize(
    ("value", "stderr", "shown"),
    [(5.4163, 0.087, "5.416 ± 0.087"), (138.7, 15.2, "139 ± 15"), (12.34, 1.26, "12.3 ± 1.3"), (5.4, math.nan, "5.40")],
)
def test_a_mean_is_told_to_the_second_digit_of_its_error(value, stderr, shown):
    assert with_error(value, stderr) == shown


def test_ratios_changes_and_errors():
    assert ratio(1.0304) == "1.030" and ratio(24.53) == "24.5" and ratio(math.nan) == NONE
    assert change(math.log(1.02), 0.01) == "+2.0 ± 1.0 %" and change(math.log(0.9), math.nan) == "-10.0 %"
    assert change(math.log(21), 0.1) == "+2,000 ± 210 %" and change(math.inf, 1.0) == change(math.nan, 0.1) == NONE
    assert short(2e-5) == "2e-5" and short(0.0) == "0" and short(None) == NONE


def read(told):
    return float(told.replace(",", "").replace(" %", ""))


def test_a_number_reads_back_to_half_its_last_digit():
    draw = random.Random(0)
    for _ in range(2000):
        value = draw.choice([-1, 1]) * 10 ** draw.uniform(-9, 9)
        digits = 3 if 1e-3 <= abs(value) < 1e6 else 2
        assert read(number(value)) == pytest.approx(value, rel=0.5001 * 10 ** (1 - digits)), value
        assert len(number(value)) <= 8
        assert ("e" in number(value)) == (not 1e-3 <= abs(value) < 1e6), value


def test_a_number_that_is_rounded_up_to_another_digit_is_told_as_its_neighbour_is():
    for value in (999.5, 999.7, 999.9999, 1000.0):
        assert number(value) == "1,000" and number(-value) == "-1,000"
    assert [number(v, 2) for v in (99.4, 99.5, 150.0)] == ["99", "100", "150"] and number(2.5e12) == "2.5e12"
    assert [ratio(v) for v in (9.9994, 9.9996, 10.0)] == ["9.999", "10.0", "10.0"]
    assert [short(v) for v in (99.4, 99.6, 100.0, 12345.0, 1e6)] == ["99", "100", "100", "12,345", "1e6"]
    assert [memory(2**30 - n) for n in (2**14, 1, 0)] == ["1023.98 MiB", "1.00 GiB", "1.00 GiB"]


def test_what_is_rounded_to_nothing_has_no_minus():
    assert percent(-0.0001) == percent(0.0) == "+0.0 %" and change(-0.0001, 0.001) == "+0.0 ± 0.1 %"
    assert change(-0.0001, math.nan) == "+0.0 %" and percent_with_error(-0.0001, 0.01) == "+0.0 ± 1.0 %"
    assert percent_with_error(0.5, math.nan) == "+50.0 %" and percent_with_error(math.nan, 0.1) == NONE


@pytest.mark.parametrize("missing", [None, math.nan, math.inf])
def test_what_was_not_measured_is_a_dash(missing):
    value = math.nan if missing is None else missing
    assert {ratio(missing), percent(missing), short(missing), with_error(missing, 0.1), number(missing)} == {NONE}
    assert {percents(missing, 0.1), percents(0.1, missing), between(missing, 1.0), between(1.0, missing)} == {NONE}
    assert {f(Spread(value, 1.0, 2.0)) for f in (ranged, ranged_ratio)} == {NONE}


def test_shares_have_a_sign_and_intervals_both_ends():
    assert [percent(share) for share in (0.0213, -0.5, 0.0, 15.004, 2000.0)] == [
        "+2.1 %",
        "-50.0 %",
        "+0.0 %",
        "+1,500 %",
        "+200,000 %",
    ]
    assert percents(-0.01, 0.02) == "-1.0 % to +2.0 %" and between(0.5, 1234) == "0.500 to 1,234"
    assert ranged(Spread(5.4, 4.8, 12.0)) == "5.40 [4.80, 12.0]"
    assert ranged_ratio(Spread(1.0, 0.9, 12.0)) == "1.000 [0.900, 12.0]"


def test_losses_are_told_as_perplexity_only_where_they_are_cross_entropy():
    assert value_of(1.5, "cross-entropy") == math.exp(1.5) and value_of(1.5, "mean squared error") == 1.5
    assert perplexity_of(800.0) == math.inf and math.isnan(perplexity_of(math.nan))


def test_compact_counts_read_back_and_are_never_longer():
    units = {"k": 1 << 10, "M": 1 << 20}
    for count in (0, 1, 512, 1000, 1024, 1536, 4096, 1 << 20, 3 << 20, (1 << 20) + 1024, 1_000_000):
        told = compact(count)
        plain, unit = (told[:-1], units[told[-1]]) if told[-1] in units else (told, 1)
        assert read(plain) * unit == count and len(told) <= len(f"{count:,}")
    assert [compact(n) for n in (512, 4096, 1 << 20)] == ["512", "4k", "1M"]


def test_counts_are_told_as_one_or_as_their_range_in_any_order():
    assert span([16]) == span([16, 16]) == "16"
    assert span([1000, 16, 50]) == span(iter([16, 50, 1000])) == "16 to 1,000"


def test_memory_is_told_in_the_unit_that_suits_it():
    assert memory(1 << 30) == "1.00 GiB" and memory(5 << 28) == "1.25 GiB" and memory(3 << 18) == "0.75 MiB"
