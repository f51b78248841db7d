"""lengthen evaluate as a user types it: killed and resumed to the same result, refused in a sentence."""

import json
import signal
import subprocess
import sys
import time

import pytest

from lengthen.cli import main
from tests.conftest import tiny_mamba2

LENGTHS = (1500, 1600, 1700)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tiny_mamba2().save_pretrained(folder)
    return folder


def run(capsys, *arguments):
    """(exit code, standard output, standard error)"""
    with pytest.raises(SystemExit) as end:
        main([str(a) for a in arguments])
    captured = capsys.readouterr()
    return end.value.code, captured.out, captured.err


def test_killed_and_resumed_is_as_never_interrupted(capsys, model, tmp_path):
    """The process is killed when its first cells are written; those are not run again, and nothing shows in the result."""
    asked = ["evaluate", model, "--tasks", "passkey,copying", "--lengths", ",".join(map(str, LENGTHS)), "--n", 2]
    asked = [str(a) for a in [*asked, "--depths", "0,1", "--threads", 1, "--json"]]
    cells = tmp_path / "killed" / "cells.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "lengthen", *asked, "--out", str(cells.parent)], stdout=subprocess.DEVNULL
    )
    while process.poll() is None and not (cells.exists() and cells.read_text().count("\n") > 1):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    before = cells.read_text()
    assert 2 <= before.count("\n") < 1 + 2 * len(LENGTHS)
    code, out, err = run(capsys, *asked, "--out", cells.parent)
    assert code == 2 and "already holds a run; go on with --resume" in err and out == ""
    code, out, err = run(capsys, *asked, "--out", cells.parent, "--resume", "--seed", 1)
    assert code == 2 and "was of other settings (seed); give the same ones" in err and err.count("\n") == 1
    assert cells.read_text() == before, "a refusal leaves what was found"
    code, out, err = run(capsys, *asked, "--out", cells.parent, "--resume")
    assert code == 0 and err == ""
    whole = run(capsys, *asked)[1]
    assert json.loads(out) == json.loads(whole)
    assert not cells.exists() and (cells.parent / "report.html").exists()


@pytest.mark.parametrize(
    "options, sentence",
    [
        (["--tasks", "paskey"], "There is no task 'paskey'; did you mean passkey"),
        (["--tasks", "passkey", "--lengths", "20"], "passkey: A length of 20 tokens is too short for this task"),
        (["--tasks", "file:nowhere.jsonl"], "The task file nowhere.jsonl cannot be read (No such file or directory)"),
        (["--tasks", "passkey", "--lengths", "2kk"], "'2kk' is no number of tokens; write such as 512,4k,1M."),
        (["--tasks", "passkey", "--depths", "0,half"], "'0,half' are no shares; write such as 0,0.5,1."),
        (
            ["--tasks", "passkey", "--tokenizer", "WORDS"],
            "so that no answer could be right; use one that encodes digits",
        ),
    ],
    ids=["task", "length", "file", "lengths", "depths", "tokenizer"],
)
def test_bad_input_is_a_sentence_and_leaves_nothing(capsys, model, tmp_path, options, sentence):
    options = [without_digits(tmp_path / "words") if option == "WORDS" else option for option in options]
    code, out, err = run(capsys, "evaluate", model, *options, "--out", tmp_path / "run")
    assert code == 2 and out == "" and sentence in err
    assert err.startswith("lengthen: ") and err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def without_digits(folder):
    """Where a tokenizer lies that knows one word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<unk>": 0, "the": 1}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder)
    return folder
