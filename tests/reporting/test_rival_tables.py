"""Rivals in tables: named by model and method, what each takes, and over seeds the geometric mean with its range."""

import dataclasses
import math

import pytest

from lengthen.reporting.numbers import NONE
from lengthen.reporting.rival_tables import rival_heads_table, rival_name, rival_study_tables, rivals_table
from tests.reporting.example_results import rival_study, rivals


@pytest.mark.parametrize(
    ("model", "method", "chosen", "name"),
    [
        ("as given", "untouched", False, "untouched"),
        ("as given", "soft-reset", False, "soft reset"),
        ("control", "untouched", False, "control"),
        ("state passing", "soft-reset", True, "state passing + soft reset, chosen"),
    ],
)
def test_a_row_is_named_by_its_model_its_method_or_both(model, method, chosen, name):
    row = dataclasses.replace(rivals().rivals[0], model=model, method=method, chosen=chosen)
    assert rival_name(row) == name


def test_a_row_tells_losses_with_intervals_and_what_was_taken():
    shown = rivals_table(rivals())
    assert [row[0] for row in shown.rows] == ["untouched", "soft reset", "state passing + hard reset, chosen"]
    assert shown.rows[1] == [
        "soft reset",
        "5.00 (4.80 to 5.20)",
        "+2.0 % (-3.0 % to +7.0 %)",
        "10.0 (9.00 to 11.0)",
        "+100.0 % (+95.0 % to +105.0 %)",
        "4,096",
        "64",
        "4.10",
        "1.250",
        "rate 0.5, every 64",
    ]
    assert shown.rows[0][2] == NONE and shown.rows[0][-1] == "", "the untouched model has no method and no settings"
    assert all(len(row) == len(shown.columns) for row in shown.rows) and "positions 2,048 to 4,096" in shown.note


def test_too_few_sequences_leave_out_the_intervals():
    few = dataclasses.replace(rivals().rivals[1].over_reset, change_low=None, change_high=None)
    far = dataclasses.replace(rivals().rivals[1].far, low=None, high=None)
    row = dataclasses.replace(rivals().rivals[1], far=far, over_reset=few)
    assert rivals_table(dataclasses.replace(rivals(), rivals=[row])).rows[0][3:5] == ["10.0", "+100.0 %"]


def test_heads_are_told_from_the_slowest_to_the_fastest():
    """Of decays -1, -4 and -16 and one head that has none; norms grow by 1 to 4 times the far perplexity over 10."""
    row = dataclasses.replace(rivals().rivals[0], heads=list(reversed(rivals().rivals[0].heads)))
    assert rival_heads_table(dataclasses.replace(rivals(), rivals=[row])).rows == [
        ["untouched", "-1.00", "-4.00", "-16.0", "5.00", "8.00"]
    ]
    heads = [dataclasses.replace(h, log_decay=None, norm_in_context=0.0) for h in row.heads]
    still = dataclasses.replace(row, heads=heads)
    assert rival_heads_table(dataclasses.replace(rivals(), rivals=[still])).rows == [["untouched", *[NONE] * 5]]


def test_over_seeds_a_figure_is_its_geometric_mean_with_its_range_and_a_taking_its_median():
    slow, mild = rival_study_tables(rival_study())
    assert (slow.title, mild.title) == ("slow (seeds 0, 1)", "mild (seed 0)")
    assert slow.rows[0][:5] == ["untouched", "5.00 [5.00, 5.00]", NONE, "40.0 [20.0, 80.0]", "8.000 [4.000, 16.0]"]
    assert mild.rows[0][:5] == ["untouched", "5.00", NONE, "10.0", "2.000"]
    assert slow.rows[2][5:] == ["1,048,576", "16,384", "1,049", "1.25", "every 64"]


def test_settings_that_seeds_disagree_on_stand_beside_each_other_and_a_failed_seed_leaves_no_mean():
    study = rival_study()
    one, other = study.bases["slow"]
    row = dataclasses.replace(
        other.rivals[1], settings={"rate": 0.25}, far=dataclasses.replace(one.rivals[1].far, value=math.inf)
    )
    other = dataclasses.replace(other, rivals=[other.rivals[0], row])
    shown, *_ = rival_study_tables(dataclasses.replace(study, bases={"slow": [one, other]}))
    assert shown.rows[1][-1] == "rate 0.5, every 64 or rate 0.25" and shown.rows[1][3] == NONE
