"""Lessons: each can be learnt and practised in every arm, goes on after an interruption, and is told in one table."""

import json
from dataclasses import replace

import numpy as np
import pytest

from lengthen.cli import main
from lengthen.interventions import intervention_named
from lengthen.reporting.terminal import show
from lengthen.results import TaskStudy
from lengthen.studies import LESSONS
from lengthen.studies.learning import _samples, run_lesson
from lengthen.training import Mamba2Recipe

SMALL = {
    "recipe": Mamba2Recipe(width=16, layers=1, head_dim=16, state_size=8),
    "steps": 1,
    "practice": 1,
    "rows": 4,
    "samples": 16,
    "n": 1,
}


def short(name, *arms):
    lesson = LESSONS[name]
    return replace(lesson, **SMALL, lengths=lesson.lengths[:2], arms={arm: lesson.arms[arm] for arm in arms})


@pytest.mark.parametrize("name", LESSONS)
def test_every_lesson_can_be_learnt_practised_and_judged(name, tmp_path):
    for intervention in LESSONS[name].arms.values():
        intervention_named(intervention)
    lesson = short(name, list(LESSONS[name].arms)[-1])
    found = run_lesson(lesson, [0], tmp_path, 1)
    assert list(found.arms) == ["before", *lesson.arms]
    for (evaluation,) in found.arms.values():
        assert {cell.length for cell in evaluation.cells} == set(lesson.lengths)
        assert {cell.task for cell in evaluation.cells} == {lesson.task}
        assert all(getattr(cell, lesson.measured) is not None for cell in evaluation.cells)


def test_a_lesson_goes_on_where_it_stopped(tmp_path):
    lesson = short("learn-copying", "control")
    found = run_lesson(lesson, [0], tmp_path, 1)
    next(tmp_path.glob("*-control-*.json")).unlink()
    done = []
    again = run_lesson(lesson, [0], tmp_path, 1, lambda *told: done.append(told))
    assert done == [("practise", 1, 1)]
    assert [[e.cells for e in arm] for arm in again.arms.values()] == [
        [e.cells for e in arm] for arm in found.arms.values()
    ]


def test_long_stories_are_one_to_four_windows_and_end_with_the_answer():
    lesson = short("learn-babilong")
    T = lesson.train_context
    corpus = _samples(lesson, 0, long_stories=True)
    assert sorted(set(corpus.lengths.tolist())) == [T, 2 * T, 3 * T, 4 * T]
    asked = np.split(corpus.targets, corpus.boundaries[1:-1])
    assert all((target[:-1] == -100).all() and target[-1] >= 0 for target in asked)
    plain = _samples(lesson, 0)
    assert set(plain.lengths.tolist()) == {T} and plain.documents == lesson.samples


def test_the_command_shows_and_keeps_the_lesson(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(LESSONS, "learn-copying", short("learn-copying", "control"))

    def run(*arguments):
        with pytest.raises(SystemExit) as exit_:
            main(["study", "learn-copying", "--seeds", "2", "--processes", "1", "--out", str(tmp_path), *arguments])
        return exit_.value.code, capsys.readouterr().out

    code, out = run("--json")
    found = TaskStudy.load(tmp_path / "results" / "learn-copying.json")
    assert code == 0 and json.loads(out) == found.to_json() and found.seeds == [0, 1]
    accuracies = [100 * e.cells[0].token_accuracy for e in found.arms["control"]]
    code, out = run("--markdown")
    assert code == 0 and out.startswith("## learn-copying") and "| arm | 18 | 34 |" in out
    assert f"| control | {sum(accuracies) / 2:.0f} [{min(accuracies):.0f}, {max(accuracies):.0f}] |" in out
    page = (tmp_path / "report.html").read_text()
    assert "Study: learn-copying" in page and "given, that are right, by tokens" in page
    show(found)
    assert "an answer's tokens" in capsys.readouterr().out
