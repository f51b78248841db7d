"""What prompts share is run once: fewer tokens, the same states and scores."""

import numpy as np
import pytest
import torch

from lengthen.models import sequence_start, wrap
from lengthen.streaming import evaluating
from lengthen.tasks import TASKS, evaluate
from lengthen.tasks.answering import scores
from lengthen.tasks.evaluating import DEPTHS
from lengthen.tasks.prompts import Prompt, Wanted
from lengthen.tasks.shared_prefixes import Cost, final_states
from tests.conftest import tiny_mamba2
from tests.models.family_properties import builder


def _rows():
    """Two lots of rows that part at the same places, several; in each one is the beginning of another, two are equal."""
    random, rows = np.random.default_rng(0), []
    for _ in range(2):
        trunk = random.integers(0, 256, 90)
        own = [np.concatenate([trunk[:cut], random.integers(0, 256, 50)]) for cut in (90, 90, 30, 30, 0)]
        rows += [*own, trunk[:60], own[0].copy(), own[2][:1]]
    return rows


@pytest.mark.parametrize(
    "make",
    [tiny_mamba2, builder("Bamba", {}), builder("RecurrentGemma", {})],
    ids=["mamba2", "bamba", "recurrent gemma"],
)
def test_states_are_those_of_each_row_by_itself(make):
    """Also where attention carries a cache, and where segments end elsewhere."""
    model = wrap(make())
    rows, found = [r % 64 for r in _rows()], {}
    cost = Cost()
    for members, states in final_states(model, rows, cost, segment=32):
        assert states.rows == len(members)
        found |= {m: states.index([i]) for i, m in enumerate(members)}
    assert sorted(found) == list(range(len(rows)))
    assert cost.tokens == sum(map(len, rows)) and cost.processed == 2 * (90 + 5 * 50)
    for i, row in enumerate(rows):
        with evaluating(model):
            ids = torch.from_numpy(row)[None]
            alone = model(input_ids=ids, initial_state=sequence_start(model, 1)).final_state
        for layer, named in alone.tensors.items():
            for name, expected in named.items():  # float32 sums in another order
                assert torch.allclose(found[i].tensors[layer][name], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "name, scoring", [("passkey", "exact"), ("niah-multikey", "substring"), ("babilong-qa1", "strict")]
)
def test_scores_are_those_without_sharing(by_bytes, name, scoring, monkeypatch):
    """The model's own greedy words are made the targets of every other prompt, so that some answers are right."""
    model = wrap(tiny_mamba2())
    group = TASKS[name].group(Wanted(1200, by_bytes, depths=DEPTHS))
    prompts = [p for asked in group.values() for p in asked]
    prompts = [_answered_by(model, p, by_bytes) if i % 2 else p for i, p in enumerate(prompts)]
    together, _ = scores(model, prompts, by_bytes, scoring)
    alone = [scores(model, [p], by_bytes, scoring)[0][0] for p in prompts]
    assert together == alone
    assert all(together[1::2]) and not any(together[::2])


def _answered_by(model, prompt, codec):
    """The prompt with what the library's own generate() says as its answer."""
    ids = torch.from_numpy(prompt.ids)[None]
    said = model.generate(ids, max_new_tokens=len(prompt.answer), do_sample=False, min_new_tokens=len(prompt.answer))
    answer = said[0, ids.shape[1] :].numpy()
    text = codec.decode(answer).lower().split(".")[0]
    return Prompt(prompt.ids, answer, (text,), (text, "nowhere"), "")


def test_nine_depths_take_at_most_five_eighths_of_the_tokens():
    """Trunk and branches: 1 + 4.5 of 9 haystacks, the needle and the question apart."""
    found = evaluate(tiny_mamba2(), ["passkey"], lengths=[6000], depths=DEPTHS, n=1)
    assert len(found.cells) == 9
    assert found.tokens / found.tokens_processed >= 1.6


@pytest.mark.parametrize("name", ["niah-multikey", "babilong-qa1", "babilong-qa4", "associative-recall"])
def test_four_questions_take_at_most_a_third_of_the_tokens(name):
    found = evaluate(tiny_mamba2(), [name], lengths=[2500], n=1)
    assert found.tokens / found.tokens_processed >= 3
