"""Prompts in chunks: what the rows are, and which of them is answered from."""

import numpy as np
import pytest
import torch

from lengthen import wrap
from lengthen.errors import InputError
from lengthen.models.agreement import relative_error
from lengthen.tasks.catalogue import TASKS
from lengthen.tasks.chunks import chunks_of, states_to_answer_from
from lengthen.tasks.codec import Codec
from lengthen.tasks.prompts import Prompt, Wanted
from lengthen.tasks.shared_prefixes import Cost
from lengthen.training_free import method_of
from tests.conftest import tiny_mamba2


@pytest.fixture(scope="module")
def model():
    return wrap(tiny_mamba2())


def prompts(task="passkey", length=500):
    group = TASKS[task].group(Wanted(length, Codec("bytes"), depths=(0.2, 0.9)))
    return [prompt for asked in group.values() for prompt in asked]


def hook(chunk):
    return method_of(f"oprm:chunk={chunk}").hook({"chunk": torch.tensor(chunk)})


def test_chunks_by_hand():
    """Two ids of introduction, seven of text, one that asks: rows of at most six hold three of the text."""
    prompt = Prompt(np.arange(10), np.array([0]), (), introduced=2, asked=1)
    rows = [row.tolist() for row in chunks_of(prompt, hook(6))]
    assert rows == [[0, 1, 2, 3, 4, 9], [0, 1, 5, 6, 7, 9], [0, 1, 8, 9]]
    assert [row.tolist() for row in chunks_of(prompt, hook(10))] == [list(range(10))]
    with pytest.raises(InputError, match="The chunk of oprm is 3 tokens, but introduction and question alone have 3"):
        chunks_of(prompt, hook(3))
    with pytest.raises(InputError, match=r"a question apart from the text .* this task's prompts have not"):
        chunks_of(Prompt(np.arange(10), np.array([0]), ()), hook(6))


@pytest.mark.parametrize("task", ["passkey", "babilong-qa1", "associative-recall"])
def test_tasks_know_their_question(task):
    codec = Codec("bytes")
    for prompt in prompts(task):
        asked = codec.decode(prompt.ids[len(prompt.ids) - prompt.asked :])
        assert asked.startswith("?") if task == "associative-recall" else asked == prompt.question
        begins = codec.decode(prompt.ids[: prompt.introduced])
        assert begins.endswith("asked for it.\n") if task == "passkey" else task != "associative-recall" or not begins


@torch.no_grad()
def test_the_chunk_of_least_entropy_is_answered_from(model):
    asked, cost = prompts(), Cost()
    with method_of("oprm:chunk=260").fit(model).apply(model):
        found = {m: state for members, state in states_to_answer_from(model, asked, cost) for m in members}
    assert cost.tokens == 2 * 499 and cost.processed < 2 * 3 * 260
    for i, prompt in enumerate(asked):
        rows = [torch.from_numpy(row)[None] for row in chunks_of(prompt, hook(260))]
        logits = [model(row).logits[0, -1].double() for row in rows]
        entropies = [torch.distributions.Categorical(logits=each).entropy() for each in logits]
        best = rows[int(torch.stack(entropies).argmin())]
        expected = model(best[:, :-1]).final_state
        assert len(rows) > 2
        for layer, named in expected.tensors.items():
            for name, t in named.items():
                assert relative_error(found[i].tensors[layer][name], t) < 1e-5


@torch.no_grad()
def test_a_chunk_after_which_nothing_is_a_number_is_not_answered_from():
    model, ids = wrap(tiny_mamba2()), np.arange(20)
    model.backbone.embeddings.weight[3] = torch.nan
    prompt = Prompt(ids, np.array([0]), (), introduced=2, asked=2)
    rows = chunks_of(prompt, hook(12))
    assert len(rows) == 2 and 3 in rows[0]
    with method_of("oprm:chunk=12").fit(model).apply(model):
        ((members, state),) = states_to_answer_from(model, [prompt])
    expected = model(torch.from_numpy(rows[1])[None, :-1]).final_state
    assert members == [0]
    for layer, named in expected.tensors.items():
        assert all(relative_error(state.tensors[layer][name], t) < 1e-5 for name, t in named.items())
