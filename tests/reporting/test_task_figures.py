"""Heat maps of tasks as drawn: every cell once, in the colour of its step, with its percent and in its place."""

import pytest

from lengthen.reporting.figures import figures
from lengthen.reporting.palette import DARK, LIGHT
from lengthen.reporting.task_figures import STEPS, depths_figure, tasks_figure
from lengthen.reporting.task_points import task_points
from lengthen.reporting.writing import draw
from tests.reporting.drawing import drawn, places, words
from tests.reporting.example_results import DEPTHS, HOSTILE, LENGTHS, diagnosis, evaluation, findings


def test_figures_and_their_captions(tmp_path):
    tasks, depths = figures(findings(evaluation()))
    assert tasks.points == 3 * len(LENGTHS) + 1 + 2 and depths.points == 2 * len(LENGTHS) * len(DEPTHS)
    assert depths.title == "By depth and length: passkey, niah-single"
    assert all("50 haystacks a cell" in f.caption for f in (tasks, depths))
    draw(tasks, tmp_path)
    svg = (tmp_path / "tasks.svg").read_text()
    assert svg.count(f'stroke="{LIGHT.ink}"') == 2, "the effective lengths"
    assert svg.count(">95<") == 1 and HOSTILE not in svg and "&lt;script&gt;" in svg


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda t: t.name)
def test_a_cell_has_the_colour_of_its_step_and_its_percent_is_written_to_be_read_on_it(theme):
    found = findings(evaluation())
    shown = drawn(tasks_figure(found), theme)
    cells = [c for c in shown["rect", "mark"] if "fill" in c]
    percents = {round(t["x"]): {} for t in shown["text", "mark"]}
    for text in shown["text", "mark"]:
        percents[round(text["x"])][round(text["y"])] = text["text"], text["fill"]
    for row, cell in zip(task_points(found), cells, strict=True):
        step = STEPS.index(row["step"])
        written = percents[round(cell.get("x", 0) + cell["width"] / 2)][round(cell.get("y", 0) + cell["height"] / 2)]
        assert cell["fill"] == theme.ramp[step] and written == (row["percent"], theme.on_ramp[step])
    assert words(shown, "legend-label") == STEPS


def test_lengths_stand_in_their_order_and_the_effective_ones_are_outlined():
    found = findings(evaluation())
    shown, rows = drawn(tasks_figure(found)), task_points(found)
    assert words(shown, "axis-label")[-4:] == ["as given", "1k", "4k", "1M"]
    outlined = [c for c in shown["rect", "mark"] if "fill" not in c]
    cells = dict(zip([(r["task"], r["across"]) for r in rows], [c for c in shown["rect", "mark"] if "fill" in c]))
    for axis in "xy":
        assert places(outlined, axis) == places([cells["passkey", "1k"], cells["copying", "4k"]], axis)


def test_depths_go_down_the_panel_of_their_task():
    shown = drawn(depths_figure(findings(evaluation())))
    assert words(shown, "title-text") == ["passkey", "niah-single"]
    assert words(shown, "axis-label")[:3] == ["0 %", "50 %", "100 %"]
    assert len(shown["rect", "mark"]) == 2 * len(LENGTHS) * len(DEPTHS)


def test_without_tasks_there_is_no_figure():
    assert tasks_figure(findings(diagnosis())) is depths_figure(findings(diagnosis())) is None
