"""Named studies: what a cell's figures depend on, going on after an interruption, and what is put together of cells."""

import json
import math

import pytest

from lengthen.cli import main
from lengthen.errors import InputError
from lengthen.results import Study
from lengthen.studies import STUDIES, study
from lengthen.studies.cells import StudyCell
from lengthen.studies.settings import Base, Setting, StudyPlan
from lengthen.studies.studying import run_study
from lengthen.training import Mamba2Recipe

BASE = Base(Mamba2Recipe(width=16, layers=1, head_dim=16, state_size=8), train_context=16, rows=4, steps=4)
PLAN = StudyPlan(
    "tiny",
    "Does it run?",
    ("steps", "arm"),
    {
        ("0", "before"): Setting(BASE).before,
        ("3", "control"): Setting(BASE, "zero", 3),
        ("3", "state passing"): Setting(BASE, steps=3),
    },
)


class Interrupted(Exception):
    pass


@pytest.fixture(autouse=True)
def few_sequences(monkeypatch):
    monkeypatch.setattr("lengthen.studies.cells.JUDGED_TOKENS", 0)


def figures(result):
    return [[vars(arm) for arm in row.arms] for row in result.rows]


def test_an_interrupted_study_goes_on_to_the_same_figures(tmp_path, monkeypatch):
    whole = run_study(PLAN, [0, 1], tmp_path / "whole", 1)
    done = []

    def interrupt(stage, count, todo):
        done.append((stage, count, todo))
        if stage != "pre-train" and count == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        run_study(PLAN, [0, 1], tmp_path / "cut", 1, interrupt)
    assert done == [("pre-train", 1, 2), ("pre-train", 2, 2), ("post-train and judge", 1, 6), (*done[-1][:2], 6)]
    done.clear()
    found = run_study(PLAN, [0, 1], tmp_path / "cut", 1, lambda *told: done.append(told))
    assert done == [("post-train and judge", i, 4) for i in (1, 2, 3, 4)]
    assert figures(found) == figures(whole)
    again = run_study(PLAN, [0, 1, 2], tmp_path / "cut", 1, lambda *told: done.append(told))
    assert done[4:] == [("pre-train", 1, 1)] + [("post-train and judge", i, 3) for i in (1, 2, 3)]
    assert [row[:2] for row in figures(again)] == figures(whole)


def test_two_processes_find_what_one_does(tmp_path, monkeypatch):
    monkeypatch.undo()  # other processes see no patches
    one = run_study(PLAN, [0], tmp_path / "one", 1)
    two = run_study(PLAN, [0], tmp_path / "two", 2)
    assert figures(one) == figures(two)


def test_arms_are_held_against_the_base_and_the_control_of_their_seed(tmp_path):
    result = run_study(PLAN, [0, 1], tmp_path, 1)
    before, control, passing = result.rows
    for i in (0, 1):
        assert passing.arms[i].before_reset == before.arms[i].own_reset
        assert passing.arms[i].control_reset == control.arms[i].own_reset != before.arms[i].own_reset
        assert before.arms[i].control_reset == before.arms[i].own_reset
    ratios = [arm.far / arm.control_reset for arm in passing.arms]
    spread = passing.far_over_control_reset
    assert [spread.low, spread.high] == sorted(ratios) and spread.mean == pytest.approx(math.sqrt(math.prod(ratios)))
    in_context = [a.in_context / c.in_context for a, c in zip(passing.arms, control.arms)]
    assert passing.in_context_over_control.high == max(in_context)
    assert control.in_context_over_control.low == control.in_context_over_control.high == 1
    assert passing.arms[0].in_context != passing.arms[1].in_context


def test_a_run_that_fails_is_told_and_the_others_go_on(tmp_path):
    plan = StudyPlan("tiny", "?", ("rate", "arm"), {("1e6", "zero"): Setting(BASE, "zero", 9, 1e6)})
    (row,) = run_study(plan, [0], tmp_path, 1).rows
    assert "nan" in row.failed[0] and math.isnan(row.far.mean)
    cell = next(path for path in tmp_path.glob("zero-*.json"))
    assert json.loads(cell.read_text())["far"] is None and StudyCell.load(cell).failed == row.failed[0]


def test_the_command_shows_and_keeps_the_study(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(STUDIES, "tiny", PLAN)

    def run(*arguments):
        with pytest.raises(SystemExit) as exit_:
            main(["study", "tiny", "--seeds", "1", "--processes", "1", "--out", str(tmp_path / "run"), *arguments])
        return exit_.value.code, *capsys.readouterr()

    code, out, err = run("--json")
    found = json.loads(out)
    assert code == 0 and err == "" and [row["setting"] for row in found["rows"]] == [list(s) for s in PLAN.settings]
    assert Study.load(tmp_path / "run" / "results" / "tiny.json").to_json() == found
    assert {p.name for p in (tmp_path / "run" / "figures").iterdir()} == {
        f"tiny-{measured}.{kind}" for measured in ("in-context", "far") for kind in ("png", "svg")
    }
    assert "3, state passing" in (tmp_path / "run" / "report.html").read_text()
    cells = {p: p.stat().st_mtime_ns for p in (tmp_path / "run" / "cells").iterdir()}
    code, out, _ = run("--markdown")
    assert code == 0 and out.startswith("## tiny") and "`lengthen study tiny --seeds 1`" in out
    assert out.count("\n| 3, ") == 2 and {p: p.stat().st_mtime_ns for p in cells} == cells
    code, out, _ = run()
    assert code == 0 and "far / control reset" in out


def test_what_is_no_study_is_refused(capsys):
    for wrong, said in ((["none"], "no study 'none'"), (["families", "--seeds", "0"], "seeds is 0")):
        with pytest.raises(SystemExit) as exit_:
            main(["study", *wrong])
        assert exit_.value.code == 2 and said in capsys.readouterr().err
    with pytest.raises(InputError, match="processes is 0"):
        study("families", processes=0)
