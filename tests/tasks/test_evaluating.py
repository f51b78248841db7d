"""Evaluation: cells with their intervals, resumed at the next, in flat memory, refused in a sentence."""

import json
import subprocess
import sys

import pytest

from lengthen.errors import InputError
from lengthen.reporting.run_folder import read_run
from lengthen.tasks import TASKS, evaluate, evaluating, shared_prefixes
from tests.conftest import tiny_mamba2


@pytest.fixture(scope="module")
def model():
    return tiny_mamba2()


def test_cells_say_task_length_depth_and_interval(model, tmp_path):
    found = evaluate(model, ["passkey", "niah-multikey"], lengths=[700, 600], depths=[0, 1], n=3)
    assert [(c.task, c.length, c.depth) for c in found.cells] == [
        ("passkey", 600, 0),
        ("passkey", 600, 1),
        ("passkey", 700, 0),
        ("passkey", 700, 1),
        ("niah-multikey", 600, None),
        ("niah-multikey", 700, None),
    ]
    assert {c.n for c in found.cells} == {3} and all(c.tokens == c.length for c in found.cells)
    assert all(low <= c.accuracy <= high for c in found.cells for low, high in [c.interval])
    assert found.effective_lengths == {"passkey": None, "niah-multikey": None}
    found.save(tmp_path / "results" / "evaluation.json")
    assert read_run(tmp_path).evaluations == {found.model: found}


def test_haystacks_side_by_side_or_one_by_one_give_the_same(model, monkeypatch):
    """A random model gets tokens of copied text right now and then, so that the numbers are not all 0."""
    together = evaluate(model, ["copying", "babilong-qa2"], lengths=[2000], n=5)
    monkeypatch.setattr(shared_prefixes, "ROWS_TOGETHER", 1)
    alone = evaluate(model, ["copying", "babilong-qa2"], lengths=[2000], n=5)
    assert together.cells == alone.cells
    assert together.cells[0].token_accuracy > 0


def test_a_length_of_nothing_but_the_facts(model):
    (cell,) = evaluate(model, ["babilong-qa1"], lengths=[0], n=2).cells
    assert cell.length == 0 and 300 < cell.tokens < 800


def test_goes_on_at_the_next_cell(model, tmp_path, monkeypatch):
    """Interrupted in the second cell, and the line of the first one's successor half written."""
    options = {"lengths": [600, 700], "depths": [0.5], "n": 2, "cells": tmp_path / "cells.jsonl"}
    whole = evaluate(model, ["passkey", "copying"], **{**options, "cells": None})
    made, cells_of = [], evaluating._cells

    def until_the_second(model, task, length, *rest):
        made.append((task.name, length))
        if len(made) == 2:
            raise KeyboardInterrupt
        return cells_of(model, task, length, *rest)

    monkeypatch.setattr(evaluating, "_cells", until_the_second)
    with pytest.raises(KeyboardInterrupt):
        evaluate(model, ["passkey", "copying"], **options)
    with (tmp_path / "cells.jsonl").open("a") as file:
        file.write('{"task": "pass')
    made.append(None)
    found = evaluate(model, ["passkey", "copying"], **options, resume=True)
    assert made[3:] == [("passkey", 700), ("copying", 600), ("copying", 700)]
    assert found.cells == whole.cells and found.effective_lengths == whole.effective_lengths
    assert len((tmp_path / "cells.jsonl").read_text().splitlines()) == 5
    for other in ({"n": 3}, {"name": "the model under a method"}):
        with pytest.raises(InputError, match=f"was of other settings .{next(iter(other)).replace('name', 'model')}.;"):
            evaluate(model, ["passkey"], **{**options, **other}, resume=True)


def test_a_file_of_prompts(model, tmp_path):
    rows = [{"input": "Ann is at home.", "question": "Where is Ann?", "target": place} for place in ("home", "work")]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    strict, loose = evaluate(model, [f"file:{tmp_path}/own.jsonl", f"file:{tmp_path}/own.jsonl:substring"], n=100).cells
    assert strict.n == 2 and strict.length == 0 and strict.scoring == "strict" and loose.scoring == "substring"
    (tmp_path / "own.jsonl").write_text('{"input": "a", "question": 3, "target": "b"}\n')
    with pytest.raises(InputError, match=r"Entry 1 of .* lacks one of input, question, target"):
        evaluate(model, [f"file:{tmp_path}/own.jsonl"])


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"tasks": ["nih-single"]}, "no task 'nih-single'; did you mean niah-single"),
        ({"lengths": [20]}, "20 tokens is too short"),
        ({"depths": [1.5]}, r"depths are \[1.5\]; give shares"),
        ({"n": 0}, "number of haystacks is 0"),
        ({"tasks": []}, "No task was given"),
        ({"lengths": []}, r"lengths are \[\]"),
        ({"haystack": "nowhere"}, "neither noise nor plays"),
    ],
)
def test_bad_input_is_a_sentence(model, options, sentence):
    with pytest.raises(InputError, match=sentence):
        evaluate(model, **{"tasks": ["passkey"], "n": 1, "lengths": [400], **options})


def test_a_model_without_a_vocabulary_is_refused():
    import torch

    with pytest.raises(InputError, match="predicts no vocabulary"):
        evaluate(torch.nn.Sequential(torch.nn.LSTM(4, 4, batch_first=True)), ["passkey"])


MEMORY = """
import sys
import torch; torch.set_num_threads(1)
from tests.conftest import tiny_mamba2
from lengthen.tasks import evaluate
evaluate(tiny_mamba2(), [sys.argv[1]], lengths=[int(sys.argv[2])], depths=[0, 0.5, 1], n=1, max_new_tokens=1)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))  # of this process alone
"""


@pytest.mark.acceptance
@pytest.mark.parametrize("name", TASKS)
def test_memory_does_not_grow_with_the_length(name):
    """Sixteen times the length in at most a tenth more memory, process and all."""
    peaks = [
        int(subprocess.run([sys.executable, "-c", MEMORY, name, length], check=True, capture_output=True).stdout)
        for length in ("4096", "65536")
    ]
    print(f"{name}: {peaks[0] / 1024:.0f} MiB at 4,096 tokens, {peaks[1] / 1024:.0f} MiB at 65,536")
    assert peaks[1] <= 1.1 * peaks[0], peaks
