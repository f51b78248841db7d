"""What the heat maps of tasks draw: every cell once, effective lengths marked, what is over depths told as that."""

from lengthen.reporting.figures import figures
from lengthen.reporting.palette import LIGHT
from lengthen.reporting.task_figures import STEPS
from lengthen.reporting.task_points import LEAST, depth_points, step, task_points
from tests.reporting.example_results import HOSTILE, LENGTHS, evaluation, findings


def test_a_row_a_task_and_length_over_all_depths():
    rows = task_points(findings(evaluation()))
    told = {(r["task"], r["across"]): (r["percent"], r["interval"], r["reached"]) for r in rows}
    assert len(told) == len(rows) == 3 * len(LENGTHS) + 1
    assert told["passkey", "1k"] == ("95", "86 to 100 %", True) and told["passkey", "1M"] == ("4", "3 to 14 %", False)
    assert told["copying", "4k"] == ("86", "77 to 96 %", True) and told[HOSTILE, "as given"] == (
        "90",
        "81 to 100 %",
        False,
    )
    assert [r["task"] for r in rows if r["reached"]] == ["passkey", "copying"]
    assert {r["depth"] for r in rows} == {"any"} and {r["haystacks"] for r in rows} == {50}


def test_a_panel_a_task_at_several_depths():
    rows = depth_points(findings(evaluation()))
    assert [(r["panel"], r["across"], r["row"]) for r in rows] == [
        (task, across, depth)
        for task in ("passkey", "niah-single")
        for across in ("1k", "4k", "1M")
        for depth in ("0 %", "50 %", "100 %")
    ]
    assert {r["panel"] for r in depth_points(findings(evaluation("a"), evaluation("b")))} == {
        f"{task}, {model}" for task in ("passkey", "niah-single") for model in "ab"
    }


def test_one_depth_is_no_map_of_depths():
    single = evaluation()
    single = type(single)(**vars(single) | {"cells": [c for c in single.cells if c.depth in (None, 0.5)]})
    assert depth_points(findings(single)) == []
    assert [f.name for f in figures(findings(single))] == ["tasks"]


def test_the_best_step_is_that_of_the_effective_length():
    assert [step(a) for a in (1, 0.85, 0.849, 0.1, 0.099, 0)] == [*STEPS[:1] * 2, STEPS[1], STEPS[4], LEAST, LEAST]
    assert len(STEPS) == len(LIGHT.ramp) == len(LIGHT.on_ramp)
