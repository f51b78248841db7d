"""Tables: the numbers a reader sees are the results', in few digits."""

import dataclasses
import math

import pytest

from lengthen.reporting import bucket_table, certificate_markdown, positions_table, survey_table, table, terminal
from lengthen.reporting.numbers import NONE, change, number, ratio, short, with_error
from lengthen.reporting.state_tables import drift_table, patching_table, remembrance_table
from lengthen.results import Result
from tests.reporting.example_results import (
    HOSTILE,
    SEVERITY,
    T,
    certificate,
    check,
    comparison,
    demonstration,
    diagnosis,
    training,
)


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


def test_what_was_found_about_the_state():
    remembered = remembrance_table(diagnosis("a", 0))
    assert remembered.columns == ["last tokens kept", "of 1,024", "of 4,096"]
    assert [row[0] for row in remembered.rows] == ["1", "4", "16", "64", "256", "1,024"]
    assert remembered.rows[-1][1:] == [NONE, "0.075 ± 0.010"]
    outside = drift_table(diagnosis())
    assert outside.columns[:2] == ["layer", "at 64"] and [row[0] for row in outside.rows] == ["layer 0", "layer 1"]
    assert outside.rows[0][1] == "0 of 4" and outside.rows[0][-1] == "4 of 4"
    patched = patching_table(diagnosis())
    assert patched.rows[0] == ["layer 0", "+90.0 % ± 3.0"] and patched.rows[2][0] == "layer 0, head 3"
    bare = dataclasses.replace(diagnosis(), remembrance=None, drift=None, patching=None)
    assert [f(bare) for f in (remembrance_table, drift_table, patching_table)] == [None, None, None]


def test_a_certificate_as_table_and_markdown():
    shown = table(certificate())
    assert shown.rows[0] == ["far: 2,048 to 4,096", "before", "before reset", "+1,500 %", "+1,453 % to +1,549 %"]
    assert shown.rows[-1] == ["far: 2,048 to 4,096", "after", "control reset", "+0.0 %", "-3.0 % to +3.0 %"]
    assert table(dataclasses.replace(certificate(), loss="mean squared error")).note.startswith(
        "By how much the mean sq"
    )
    few = dataclasses.replace(certificate().differences[0], change_low=None, change_high=None)
    assert table(dataclasses.replace(certificate(), differences=[few])).rows[0][-1] == NONE
    card = certificate_markdown(dataclasses.replace(certificate(), after="a `b`\n# c | d"))
    lines = [line for line in card.splitlines() if line.startswith("|")]
    assert [line.count("|") for line in lines] == [6] * (2 + len(shown.rows)) and certificate().verdict in card
    assert "after: `` a `b` # c | d ``" in card and "\n# " not in card, "a name cannot become markup"


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
    for result in (demonstration(), diagnosis("[red]model"), training(), check(), comparison()):
        terminal.show(result)
    shown = capsys.readouterr().out
    assert "[red]model" in shown, "a name is not markup"
    assert demonstration().caveat in shown and diagnosis().verdict in shown
    assert certificate().verdict in shown and f"No certificate: {comparison().unpaired[HOSTILE]}" in shown
    for name in SEVERITY:
        assert ("TBPTT" if name == "tbptt" else name.replace("_", " ")) in shown
    assert all(cell in shown for row in table(demonstration()).rows for cell in row)


def test_a_narrow_terminal_cuts_no_number_and_no_word(capsys, monkeypatch):
    """Words stand on both sides of the numbers; they wrap between words."""
    monkeypatch.setenv("COLUMNS", "24")
    terminal.checks(dataclasses.replace(check(), passed=False))
    shown = capsys.readouterr().out
    assert {word for row in table(check()).rows for cell in row for word in cell.split()} <= set(shown.split())


@pytest.mark.parametrize("width", [20, 60, 66, 70, 74, 78, 80, 82, 90])
def test_no_width_cuts_a_certificate(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    found = table(certificate())
    terminal.show(certificate())
    shown = capsys.readouterr().out
    for text in (*found.columns, *(cell for row in found.rows for cell in row), found.note):
        assert set(text.split()) <= set(shown.split())


def test_sequences_that_overlap_are_told_beside_their_errors():
    found = diagnosis("model")
    assert found.sequences is not None and "share" not in bucket_table(found).note
    shared = dataclasses.replace(found, sequences=dataclasses.replace(found.sequences, overlap=1234))
    assert f"share up to 1,234 of {found.max_length:,} positions" in bucket_table(shared).note
