"""Tables: the numbers a reader sees are the results', in few digits."""

import dataclasses

import pytest

from lengthen.reporting import bucket_table, positions_table, survey_table, table
from lengthen.reporting.numbers import NONE, with_error
from lengthen.results import Result
from tests.reporting.example_results import T, certificate, check, demonstration, diagnosis, study, training


def test_arms():
    shown = table(demonstration())
    assert shown.columns == ["arm", "in context", "far", "own reset", "far / before reset", "far / control reset"]
    assert [row[0] for row in shown.rows] == [
        "before",
        "control",
        "random noise",
        "fitted noise",
        "state passing",
        "TBPTT",
    ]
    assert shown.rows[4] == ["state passing", "5.20", "5.42 ± 0.60", "5.42", "1.000", "1.000"]
    assert shown.caveat == demonstration().caveat and "2,048 to 4,096" in shown.note


def test_positions_of_several_diagnoses_share_their_columns():
    one, other = diagnosis("one"), diagnosis("other", 0)
    other = dataclasses.replace(
        other, positions=other.positions[:2], far_over_own_reset=None, generalisation_length=None, break_point=None
    )
    shown = positions_table({"one": one, "other": other})
    assert shown.columns == [
        "model",
        "in context",
        "at 64",
        "at 256",
        "at 1,024",
        "at 4,096",
        "far / own reset",
        "holds up to",
        "break point",
    ]
    assert shown.rows[0][-3:] == ["24.5 ± 1.2", "192", "256"]
    assert shown.rows[1][2:] == ["5.08 ± 0.20", "5.34 ± 0.20", NONE, NONE, NONE, NONE, "none"]
    undecided = dataclasses.replace(one, break_point=None, fails=None)
    assert table(undecided).rows[0][-1] == NONE, "no verdict is not the same as no break point"


def test_buckets():
    shown = bucket_table(diagnosis())
    assert len(shown.rows) == len(diagnosis().buckets)
    assert shown.rows[-1] == ["3,072 to 4,096", "109 ± 38", "5.42 ± 0.11", "+1,904 ± 668 %"]


def test_losses_that_are_not_cross_entropy_are_told_as_they_are():
    frames = dataclasses.replace(diagnosis(), loss="mean squared error")
    last = frames.buckets[-1]
    assert bucket_table(frames).rows[-1][1:] == [
        with_error(last.loss, last.stderr),
        with_error(last.own_reset_loss, last.own_reset_stderr),
        with_error(last.excess, last.excess_stderr),
    ]
    assert table(frames).title == "Mean squared error at chosen positions"
    mixed = positions_table({"a": frames, "b": diagnosis()})
    assert mixed.title == "Mean squared error or perplexity at chosen positions"


def test_a_certificate_as_table():
    shown = table(certificate())
    assert shown.rows[0] == ["far: 2,048 to 4,096", "before", "before reset", "+1,500 %", "+1,453 % to +1,549 %"]
    assert shown.rows[-1] == ["far: 2,048 to 4,096", "after", "control reset", "+0.0 %", "-3.0 % to +3.0 %"]
    assert table(dataclasses.replace(certificate(), loss="mean squared error")).note.startswith(
        "By how much the mean sq"
    )
    few = dataclasses.replace(certificate().differences[0], change_low=None, change_high=None)
    assert table(dataclasses.replace(certificate(), differences=[few])).rows[0][-1] == NONE


def test_the_table_has_a_row_a_setting_with_ranges():
    found = table(study())
    assert found.title == "rates: Which rate?" and found.columns[0] == "rate, arm"
    assert found.rows[0] == ["1e-3, control", "5.00 [4.50, 6.00]", "1.020 [0.918, 1.224]", *found.rows[0][3:]]
    assert found.rows[0][3:] == ["54.0 [48.6, 64.8]", "10.0 [9.000, 12.0]", "10.0 [9.000, 12.0]"]
    assert found.rows[2][3:] == ["–"] * 3 and "seeds 3, 4" in found.note


def test_training_and_checks():
    assert table(training()).rows[0][:6] == [
        "state-passing",
        "state-passing",
        "500",
        f"16 × {T}",
        "0.73 times",
        "0.003",
    ]
    assert table(dataclasses.replace(training(), losses=[])).rows[0][6] == NONE
    failed = check("a", passed=False)
    assert table(failed).rows[0][:4] == ["segments", "FAILED", "0.41", "2e-5"]
    assert [row[2:] for row in survey_table([failed, check("b")]).rows] == [
        ["FAILED", "no", "segments"],
        ["passed", "yes", "none"],
    ]


def test_a_result_without_a_table_is_a_type_error():
    with pytest.raises(TypeError, match="Result"):
        table(Result())


def test_sequences_that_overlap_are_told_beside_their_errors():
    found = diagnosis("model")
    assert found.sequences is not None and "share" not in bucket_table(found).note
    shared = dataclasses.replace(found, sequences=dataclasses.replace(found.sequences, overlap=1234))
    assert f"share up to 1,234 of {found.max_length:,} positions" in bucket_table(shared).note
