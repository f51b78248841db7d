"""Tasks as heat maps and as a table: every cell once, effective lengths marked, what is over depths told as that."""

from lengthen.reporting import write_report
from lengthen.reporting.figures import figures
from lengthen.reporting.palette import LIGHT
from lengthen.reporting.run_folder import Findings
from lengthen.reporting.task_figures import STEPS
from lengthen.reporting.task_points import LEAST, depth_points, step, task_points
from lengthen.reporting.task_tables import evaluation_table
from lengthen.reporting.terminal import show
from tests.reporting.example_results import DEPTHS, HOSTILE, LENGTHS, evaluation


def findings(*results):
    found = Findings()
    for i, result in enumerate(results):
        found.add(result, f"file-{i}")
    return found


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


def test_figures_and_their_captions(tmp_path):
    evaluation().save(tmp_path / "results" / "evaluation.json")
    tasks, depths = figures(findings(evaluation()))
    assert tasks.points == 3 * len(LENGTHS) + 1 + 2 and depths.points == 2 * len(LENGTHS) * len(DEPTHS)
    assert depths.title == "By depth and length: passkey, niah-single"
    assert all("50 haystacks a cell" in f.caption for f in (tasks, depths))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert 'id="figure-tasks"' in page and 'id="figure-task-depths"' in page
    svg = (tmp_path / "figures" / "tasks.svg").read_text()
    assert svg.count(f'stroke="{LIGHT.ink}"') == 2, "the effective lengths"
    assert svg.count(">95<") == 1 and HOSTILE not in svg and "&lt;script&gt;" in svg


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


def test_names_stay_whole_in_a_terminal(capsys, monkeypatch):
    """However narrow it is: it wraps lines, which can be read."""
    monkeypatch.setenv("COLUMNS", "60")
    show(evaluation())
    told = capsys.readouterr().out
    assert all(f" {task} " in told for task in ("passkey", "niah-single", "copying"))
    assert "95 (86 to 100)" in told and "Of 9,000,000 tokens" in " ".join(told.split())
