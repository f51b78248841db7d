"""Tasks in tables: every cell with its interval, what is over depths told as that, studies over seeds."""

import dataclasses

from lengthen.reporting.task_tables import evaluation_table, task_study_table
from tests.reporting.example_results import HOSTILE, evaluation, task_study


def test_the_table_tells_depths_and_all_of_them():
    found = evaluation_table(evaluation())
    assert found.columns == ["task", "depth", "scoring", "n", "as given", "1,024", "4,096", "1,048,576"] + [
        "effective length"
    ]
    rows = {(r[0], r[1]): r[2:] for r in found.rows}
    assert list(rows) == [
        *((task, depth) for task in ("passkey", "niah-single") for depth in ("0", "0.5", "1", "all")),
        ("copying", "any"),
        (HOSTILE, "any"),
    ]
    assert rows["passkey", "all"] == ["exact", "50", "–", "95 (86 to 100)", "82 (74 to 92)", "4 (3 to 14)", "1,024"]
    assert rows["passkey", "0"][-1] == "" and rows["niah-single", "all"][-1] == rows[HOSTILE, "any"][-1] == "–"


def test_a_cell_that_was_not_run_is_a_dash_and_several_counts_are_a_range():
    found = evaluation()
    cells = [dataclasses.replace(c, n=10) if c.length == 1024 else c for c in found.cells if c.length != 4096]
    rows = {(r[0], r[1]): r[2:] for r in evaluation_table(dataclasses.replace(found, cells=cells)).rows}
    assert rows["copying", "any"] == ["exact", "10 to 50", "–", "100 (90 to 100)", "4 (4 to 14)", "4,096"]


def test_each_scoring_is_explained_once():
    found = evaluation()
    note = evaluation_table(found).note
    assert note.count("exact: the answer token by token") == 1 and "RULER" not in note
    cells = [dataclasses.replace(c, scoring="substring" if c.task == "copying" else "own") for c in found.cells]
    note = evaluation_table(dataclasses.replace(found, cells=cells)).note
    assert note.count("(RULER's rule)") == 1 and "exact" not in note and "own; substring" in note


def test_a_study_of_tasks_is_told_in_percent_over_seeds_by_multiples_of_the_training_context():
    found = task_study_table(task_study((0.2, 0.5)))
    assert found.title == "learn: What is learnt?" and found.columns == ["arm", "100 (T)", "250", "400 (4 T)"]
    assert found.rows == [
        ["before", "95 [95, 95]", "35 [20, 50]", "35 [20, 50]"],
        ["TBPTT", "95 [95, 95]", "95 [95, 95]", "95 [95, 95]"],
    ]
    assert "over facts at depths 0, 1," in found.note and "seeds 0, 1 [the least" in found.note
    assert "49 haystacks a seed" in found.note and "± 14 points" in found.note, "1.96 / 2 / sqrt(49)"


def test_a_study_may_tell_tokens_instead_of_answers():
    found = task_study_table(dataclasses.replace(task_study((0.2, 0.5)), measured="token_accuracy"))
    assert found.rows[0][1:] == ["48 [48, 48]", "18 [10, 25]", "18 [10, 25]"]
    assert "an answer's tokens, those before given, that are right" in found.note
