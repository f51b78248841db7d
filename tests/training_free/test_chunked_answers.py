"""Answers from chunks: one chunk is the prompt itself, and nothing without a question runs under it."""

import pytest
import torch

from lengthen import stream, wrap
from lengthen.errors import InputError
from lengthen.streaming import generate
from lengthen.tasks.answering import scores
from lengthen.tasks.chunks import states_to_answer_from
from lengthen.tasks.codec import Codec
from lengthen.tasks.shared_prefixes import final_states
from lengthen.training_free import Calibration, method_of
from tests.conftest import tiny_mamba2
from tests.tasks.test_chunks import prompts
from tests.training_free.small_models import IDS


@pytest.fixture(scope="module")
def model():
    return wrap(tiny_mamba2())


@torch.no_grad()
def test_one_chunk_is_the_prompt_itself(model):
    asked = prompts()
    expected = scores(model, asked, Codec("bytes"), "exact")
    whole = {m: s.index([i]) for ms, s in final_states(model, [p.ids[:-1] for p in asked]) for i, m in enumerate(ms)}
    with method_of("oprm").fit(model, Calibration(train_context=500)).apply(model):
        assert scores(model, asked, Codec("bytes"), "exact") == expected
        for members, state in states_to_answer_from(model, asked):
            for layer, named in state.tensors.items():
                assert all(torch.equal(t, whole[members[0]].tensors[layer][name]) for name, t in named.items())


def test_refusals(model):
    with pytest.raises(InputError, match="oprm needs the training context"):
        method_of("oprm").fit(model)
    with pytest.raises(InputError, match="The setting chunk of oprm is 0; give a whole number"):
        method_of("oprm:chunk=0")
    assert {"query", "lanes"} <= method_of("oprm").needs
    with method_of("oprm:chunk=260").fit(model).apply(model):
        for run in (
            lambda: next(stream(model, IDS)),
            lambda: generate(model, IDS, 2),
            lambda: model.generate(IDS, max_new_tokens=2),
            lambda: next(final_states(model, [IDS[0].numpy()])),
        ):
            with pytest.raises(InputError, match="oprm needs a question apart from the text that it is about"):
                run()
