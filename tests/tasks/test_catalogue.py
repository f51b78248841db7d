"""The tasks by name: each is found, and a name that is none is answered with the nearest."""

import json

import pytest

from lengthen.errors import InputError
from lengthen.tasks import TASKS, task_named
from lengthen.tasks.prompts import Wanted


def test_a_task_of_another_name_is_refused():
    with pytest.raises(InputError, match="'pass-key'; did you mean passkey"):
        task_named("pass-key")
    with pytest.raises(InputError, match="choose one of passkey, "):
        task_named("zzzz")
    with pytest.raises(InputError, match=r"cannot be read .No such file"):
        task_named("file:nowhere.jsonl")


def test_every_task_is_found_by_its_name():
    assert all(task_named(name) is task and task.name == name for name, task in TASKS.items())
    assert {name for name, task in TASKS.items() if task.by_depth} == {"passkey", "niah-single"}


def test_facts_lie_at_the_depths_asked_for_or_anywhere_and_symbols_nowhere(by_bytes):
    asked = Wanted(1500, by_bytes, depths=(0.1, 0.9))
    assert list(task_named("passkey").group(asked)) == [0.1, 0.9]
    assert list(task_named("babilong-qa1").group(asked)) == list(task_named("copying").group(asked)) == [None]


def test_all_depths_are_of_one_haystack_and_one_question(by_bytes):
    group = task_named("niah-single").group(Wanted(1500, by_bytes, depths=(0.0, 0.5, 1.0)))
    assert len({prompt.targets for (prompt,) in group.values()}) == 1
    assert (
        len({bytes(sorted(prompt.ids.tolist())) for (prompt,) in group.values()}) == 1
    )  # the same ids, in another order


def test_a_file_of_prompts_is_a_task_of_as_many_as_it_holds(tmp_path):
    path = tmp_path / "own.jsonl"
    lines = [{"input": "Anna went home.", "question": q, "target": "home"} for q in ("Where is Anna?", "Where?")]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert task_named(f"file:{path}").count == 2
