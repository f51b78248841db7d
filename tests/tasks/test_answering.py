"""Answers: judged token by token where they are known, and said greedily up to an end of text where not."""

import types

import numpy as np
import pytest
import torch

from lengthen.models import wrap
from lengthen.streaming import generate
from lengthen.tasks import answering
from lengthen.tasks.answering import alike, before_end, judged, known_answers, scores
from lengthen.tasks.prompts import Prompt
from tests.conftest import tiny_mamba2

IDS = np.random.default_rng(0).integers(256, size=(3, 40))


@pytest.fixture(scope="module")
def model():
    return wrap(tiny_mamba2())


@pytest.mark.parametrize("together", [1, 5, 256])
@torch.no_grad()
def test_known_answers_are_those_of_one_run_however_few_at_once(model, monkeypatch, together):
    monkeypatch.setattr(answering, "LOGITS_TOGETHER", together)
    state = model(torch.from_numpy(IDS[:, :29])).final_state
    right, chances = known_answers(model, torch.from_numpy(IDS[:, 29:30]), IDS[:, 30:], state)
    logits = model(torch.from_numpy(IDS[:, :-1])).logits[:, 29:].double()
    answers = torch.from_numpy(IDS[:, 30:])
    expected = logits.log_softmax(-1).gather(-1, answers[..., None])[..., 0]
    assert np.array_equal(right, (logits.argmax(-1) == answers).numpy()) and right.shape == (3, 10)
    np.testing.assert_allclose(chances, expected.numpy(), rtol=1e-4)


@torch.no_grad()
def test_an_exact_answer_is_the_greedy_one_and_a_share_counts_its_tokens(model, by_bytes):
    before = model(torch.from_numpy(IDS[:1, :-1])).final_state
    said = generate(model, torch.from_numpy(IDS[:1, -1:]), 6, initial_state=before)[0][0].numpy()
    wrong = said.copy()
    wrong[-1] = (wrong[-1] + 1) % 256
    asked = [Prompt(IDS[0], answer, ()) for answer in (said, wrong, said[:2])]
    found, shares = scores(model, asked, by_bytes, "exact")
    assert found == [1, 0, 1] and shares == pytest.approx([1, 5 / 6, 1])


def test_in_text_the_model_says_sixteen_tokens_more_than_the_answer(model, by_bytes, monkeypatch):
    counts = []

    def counting(model, ids, count, **options):
        counts.append(count)
        return generate(model, ids, count, **options)

    monkeypatch.setattr(answering, "generate", counting)
    asked = [Prompt(IDS[0], np.zeros(size, np.int64), ("x",)) for size in (3, 5)]
    found, shares = scores(model, asked, by_bytes, "substring")
    assert counts == [19, 21] and shares is None and len(found) == 2
    scores(model, asked, by_bytes, "substring", max_new_tokens=4)
    assert counts[2:] == [4, 4]


def test_what_is_said_after_the_end_of_text_does_not_count():
    codec = types.SimpleNamespace(end=7)
    assert before_end(np.array([1, 2, 7, 3, 7]), codec).tolist() == [1, 2]
    assert before_end(np.array([7]), codec).tolist() == [] and before_end(np.array([1]), codec).tolist() == [1]
    assert before_end(np.array([1, 7]), types.SimpleNamespace(end=None)).tolist() == [1, 7]


def test_the_rule_decides():
    prompt = Prompt(IDS[0], IDS[0], ("garden",), ("garden", "kitchen"), "Where is Anna?")
    assert judged("in the garden, or the kitchen", prompt, "substring") == 1
    assert (
        judged("in the garden, or the kitchen", prompt, "strict") == 0 and judged("the garden.", prompt, "strict") == 1
    )


def test_rows_of_one_size_go_together():
    assert list(alike([3, 1, 3, 2])) == [[1], [3], [0, 2]] and list(alike([])) == []
