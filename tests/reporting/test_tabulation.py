"""Tables: the numbers a reader sees are the results', in few digits."""

import dataclasses
import math

import pytest
from example_results import SEVERITY, T, check, demonstration, diagnosis, training

from lengthen.reporting import bucket_table, positions_table, survey_table, table, terminal
from lengthen.reporting.numbers import NONE, change, number, ratio, short, with_error
from lengthen.results import Result


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
    assert change(math.inf, 1.0) != "" and change(math.nan, 0.1) == NONE
    assert short(2e-5) == "2e-5" and short(0.0) == "0" and short(None) == NONE


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
    other = dataclasses.replace(other, positions=other.positions[:2], far=None, break_point=None)
    shown = positions_table({"one": one, "other": other})
    assert shown.columns == [
        "model",
        "in context",
        "at 64",
        "at 256",
        "at 1,024",
        "at 4,096",
        "far / own reset",
        "break point",
    ]
    assert shown.rows[0][-2:] == ["24.5", "256"]
    assert shown.rows[1][2:] == ["5.08 ± 0.20", "5.34 ± 0.20", NONE, NONE, NONE, "none"]
    undecided = dataclasses.replace(one, break_point=None, fails=None)
    assert table(undecided).rows[0][-1] == NONE, "no verdict is not the same as no break point"


def test_buckets():
    shown = bucket_table(diagnosis())
    assert len(shown.rows) == len(diagnosis().buckets)
    assert shown.rows[-1] == ["3,072 to 4,096", "109 ± 38", "5.42 ± 0.11", "+1,904 ± 668 %"]


def test_training_and_checks():
    assert table(training()).rows[0][:5] == ["state-passing", "state-passing", "500", f"16 × {T}", "0.003"]
    assert table(dataclasses.replace(training(), losses=[])).rows[0][5] == NONE
    failed = check("a", passed=False)
    assert table(failed).rows[0][:4] == ["segments", "FAILED", "0.41", "2e-5"]
    assert [row[2:] for row in survey_table([failed, check("b")]).rows] == [
        ["FAILED", "no", "segments"],
        ["passed", "yes", "none"],
    ]


def test_a_result_without_a_table_is_a_type_error():
    with pytest.raises(TypeError, match="Result"):
        table(Result())


def test_terminal_shows_the_same_strings(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    for result in (demonstration(), diagnosis("[red]model"), training(), check()):
        terminal.show(result)
    shown = capsys.readouterr().out
    assert "[red]model" in shown, "a name is not markup"
    assert demonstration().caveat in shown and diagnosis().verdict in shown
    for name in SEVERITY:
        assert ("TBPTT" if name == "tbptt" else name.replace("_", " ")) in shown
    assert all(cell in shown for row in table(demonstration()).rows for cell in row)
