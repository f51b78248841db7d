"""Lessons: each can be learnt and practised in every arm, goes on after an interruption, and is told in one table."""

import json
from dataclasses import replace

import numpy as np
import pytest

from lengthen.cli import main
from lengthen.results import TaskStudy
from lengthen.studies import LESSONS
from lengthen.studies.learning import _samples, run_lesson
from lengthen.studies.own_words import own_tokenizer
from lengthen.tasks.codec import Codec
from lengthen.training import Mamba2Recipe

SMALL = {
    "recipe": Mamba2Recipe(width=16, layers=1, head_dim=16, state_size=8),
    "steps": 2,
    "practice": 2,
    "rows": 4,
    "samples": 32,
    "n": 2,
}


def short(name):
    lesson = LESSONS[name]
    return replace(lesson, **SMALL, lengths=lesson.lengths[:3])


@pytest.mark.parametrize("name", LESSONS)
def test_every_lesson_runs_and_goes_on_where_it_stopped(name, tmp_path):
    lesson = short(name)
    found = run_lesson(lesson, [0], tmp_path, 1)
    assert list(found.arms) == ["before", *lesson.arms]
    for (evaluation,) in found.arms.values():
        assert {cell.length for cell in evaluation.cells} == set(lesson.lengths)
        assert {cell.task for cell in evaluation.cells} == {lesson.task}
        assert all(getattr(cell, lesson.measured) is not None for cell in evaluation.cells)
    for path in tmp_path.glob("*.json"):
        if "-before-" not in path.name and "-control-" not in path.name:
            path.unlink()
    done = []
    again = run_lesson(lesson, [0], tmp_path, 1, lambda *told: done.append(told))
    assert done == [("practise", i + 1, len(lesson.arms) - 1) for i in range(len(lesson.arms) - 1)]
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


def test_a_prompt_and_its_answer_fit_the_training_context_in_the_tasks_own_tokens():
    codec = Codec(own_tokenizer("babilong-qa1"))
    assert len(codec.encode(" library")) == len(codec.encode(" Anna")) == 1
    assert len(codec.encode("97")) == 2 and codec.decode(codec.encode("A key: 97.")) == "A key: 97."


def test_the_command_shows_and_keeps_the_lesson(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(LESSONS, "learn-copying", short("learn-copying"))

    def run(*arguments):
        with pytest.raises(SystemExit) as exit_:
            main(["study", "learn-copying", "--seeds", "2", "--processes", "1", "--out", str(tmp_path), *arguments])
        return exit_.value.code, capsys.readouterr().out

    code, out = run("--json")
    found = TaskStudy.load(tmp_path / "results" / "learn-copying.json")
    assert code == 0 and json.loads(out) == found.to_json() and found.seeds == [0, 1]
    accuracies = [100 * e.cells[0].token_accuracy for e in found.arms["control"]]
    code, out = run("--markdown")
    assert code == 0 and out.startswith("## learn-copying") and "| arm | 18 | 34 | 50 |" in out
    assert f"| control | {sum(accuracies) / 2:.0f} [{min(accuracies):.0f}, {max(accuracies):.0f}] |" in out
    page = (tmp_path / "report.html").read_text()
    assert "Study: learn-copying" in page and "state passing" in page
    assert "an answer's tokens" in run()[1]
