"""Samples to train on: a window each, loss on the answer alone, nothing of the tests among them, and they are learnt."""

import json

import numpy as np
import pytest

from lengthen import pretrain
from lengthen.cli import main
from lengthen.errors import InputError
from lengthen.tasks import TASKS, evaluate, training_samples, unfit
from lengthen.training import Mamba2Recipe, post_train
from tests.conftest import tiny_mamba2


@pytest.mark.parametrize("name", TASKS)
def test_a_sample_is_a_window_with_its_answer_as_targets(name, codecs):
    """Also with a tokenizer whose answers differ in length, and where a token goes before a text."""
    for tokenizer in ("bytes", *([codecs["bpe"]._tokenizer] if name in ("passkey", "copying") else [])):
        corpus = training_samples(name, train_context=1400, count=4, tokenizer=tokenizer, seed=3)
        assert corpus.documents == 4 and corpus.inputs.tolist() == [1400] * 4
        for i in range(4):
            targets = corpus.targets[corpus.boundaries[i] : corpus.boundaries[i + 1]]
            counted = np.flatnonzero(targets != -100)
            assert counted.tolist() == list(range(1400 - len(counted), 1400)) and len(counted)
            ids = corpus.document(i)
            assert np.array_equal(ids[counted[1:]], targets[counted[:-1]])  # each target is the next input


def test_the_prompt_and_its_answer_are_the_task_own():
    corpus = training_samples("copying", train_context=41, count=1)
    text = bytes(corpus.document(0)).decode()
    asked, _, answered = text.partition("|")
    assert (asked + "|").endswith("|") and asked.lstrip(".").startswith(answered)
    assert bytes(corpus.targets[corpus.targets >= 0].astype(np.uint8)).decode() == asked.lstrip(".")


def test_a_model_learns_from_samples_alone():
    """One symbol's place among filler is learnt within a few seconds: the loss falls on answers, and tests it never saw."""
    data = training_samples("associative-recall", train_context=40, count=16 * 40)
    small = Mamba2Recipe(width=32, layers=1)
    _, record = pretrain(data, train_context=40, steps=40, recipe=small, warmup=4, learning_rate=2e-2)
    assert record.losses[0] > 5 and np.mean(record.losses[-5:]) < 3.5  # log 256 = 5.5 of bytes, log 26 = 3.3 of letters


def test_any_intervention_trains_on_samples(tmp_path):
    data = training_samples("passkey", train_context=300, count=8)
    for intervention in ("fitted-noise", "state-passing", "tbptt", "zero"):
        record = post_train(tiny_mamba2(), data, train_context=300, steps=2, rows=4, intervention=intervention)
        assert all(np.isfinite(record.losses))


def test_post_train_takes_a_task(tmp_path, capsys):
    """State passing on pass keys is warned of in a sentence; what was trained can be evaluated."""
    tiny_mamba2().save_pretrained(tmp_path / "model")
    arguments = [
        "post-train",
        str(tmp_path / "model"),
        "--train-context",
        "300",
        "--steps",
        "2",
        "--rows",
        "4",
        "--json",
    ]
    with pytest.raises(SystemExit) as end:
        main([*arguments, "--task", "passkey", "--intervention", "state-passing", "--out", str(tmp_path / "run")])
    captured = capsys.readouterr()
    assert end.value.code == 0, captured.err
    assert json.loads(captured.out)["steps"] == 2
    assert "State passing starts a sample of passkey from what another one left" in captured.err
    assert evaluate(tmp_path / "run" / "model", ["passkey"], lengths=[300], depths=[0.5], n=1).cells
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2 and "either --data" in capsys.readouterr().err


def test_unfit_names_the_interventions_that_pass_states_on():
    assert "another one left" in unfit("passkey", "state-passing:zero_fraction=0.5")
    assert "same as zero" in unfit("passkey", "tbptt")
    assert unfit("passkey", "fitted-noise") is None and unfit("copying", "zero") is None


def test_what_cannot_be_trained_on_is_a_sentence(tmp_path):
    (tmp_path / "own.jsonl").write_text('{"input": "a", "question": "b", "target": "c"}\n')
    with pytest.raises(InputError, match="not to be trained on"):
        training_samples(f"file:{tmp_path}/own.jsonl", train_context=64, count=1)
    with pytest.raises(InputError, match="65 tokens is too short"):
        training_samples("passkey", train_context=64, count=1)
    with pytest.raises(InputError, match="number of samples is 0"):
        training_samples("passkey", train_context=640, count=0)
