"""Prompts from a file: JSON or JSON lines, scored as asked, refused in a sentence."""

import json

import pytest

from lengthen.errors import InputError
from lengthen.tasks.codec import Codec
from lengthen.tasks.files import FileTask
from lengthen.tasks.prompts import Wanted

ROWS = [
    {"input": "Mary is at home.", "question": "Where is Mary?", "target": "home"},
    {"input": "Ben is at sea.", "question": "Where is Ben?", "target": "sea"},
]


@pytest.mark.parametrize("as_lines", [True, False])
def test_lines_and_a_list_give_the_same_prompts(tmp_path, as_lines):
    file, codec = tmp_path / "task.json", Codec("bytes")
    file.write_text("\n".join(map(json.dumps, ROWS)) + "\n\n" if as_lines else json.dumps(ROWS))
    task = FileTask(f"file:{file}")
    assert task.count == 2 and task.scoring == "strict" and FileTask(f"file:{file}:substring").scoring == "substring"
    (prompt,) = task.group(Wanted(64, codec, index=1))[None]
    assert codec.decode(prompt.ids) == "Ben is at sea.\nQuestion: Where is Ben?\nAnswer:"
    assert codec.decode(prompt.answer) == " sea" and prompt.candidates == ("home", "sea")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps({"input": "a", "question": "b"}), r"^Entry 1 of .* lacks one of input, question, target as text"),
        (json.dumps([ROWS[0], {**ROWS[1], "target": 3}]), r"^Entry 2 of "),
        ("[]", r"^The task file .* holds no prompt"),
        ("", r"^The task file .* holds no prompt"),
        ("{", r"^The task file .* cannot be read \(.*\); give JSON lines\.$"),
    ],
)
def test_wrong_files_are_refused_in_a_sentence(tmp_path, content, message):
    (tmp_path / "task.json").write_text(content)
    with pytest.raises(InputError, match=message):
        FileTask(f"file:{tmp_path / 'task.json'}")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"^The task file .*gone\.json cannot be read \(No such file or directory\)"):
        FileTask(f"file:{tmp_path / 'gone.json'}")
