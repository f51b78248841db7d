"""Output classes with a final state: the library's fields, one more, and found again by pickle."""

import pickle

import pytest
import torch
from transformers import Mamba2ForCausalLM
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutput,
    CausalLMOutputWithPast,
    MoeCausalLMOutputWithPast,
    MoeModelOutputWithPast,
)

from lengthen.models.outputs import output_class, with_final_state
from lengthen.state import RecurrentState, TensorSpec

STATE = RecurrentState({"mix": {"h": torch.ones(2, 3)}}, {"mix": {"h": TensorSpec("recurrent")}}, "toy")


def test_a_class_is_made_once_and_keeps_the_library_s_fields_and_name():
    made = with_final_state(CausalLMOutput)
    assert made is with_final_state(CausalLMOutput) and issubclass(made, CausalLMOutput)
    assert made.__name__ == "CausalLMOutput"
    output = made(logits=torch.zeros(1), final_state=STATE)
    assert output.final_state is STATE and output["logits"] is output.logits
    assert list(output) == ["logits", "final_state"] and output.to_tuple()[-1] is STATE
    assert made(logits=torch.zeros(1)).final_state is None


def test_an_output_comes_back_from_a_pickle():
    output = with_final_state(CausalLMOutput)(logits=torch.arange(3.0), final_state=STATE)
    found = pickle.loads(pickle.dumps(output))
    assert type(found) is type(output) and torch.equal(found.logits, output.logits)
    assert torch.equal(found.final_state.tensors["mix"]["h"], STATE.tensors["mix"]["h"])


class Named:
    def forward(self) -> "CausalLMOutputWithPast | tuple":
        raise NotImplementedError


class Meant:
    def forward(self) -> tuple | CausalLMOutputWithPast:
        raise NotImplementedError


class Silent:
    def forward(self):
        raise NotImplementedError


@pytest.mark.parametrize(
    ("model", "expected"),
    [(Named, CausalLMOutputWithPast), (Meant, CausalLMOutputWithPast), (Silent, CausalLMOutput)],
)
def test_the_class_is_the_one_that_forward_says_it_returns(model, expected):
    assert output_class(model, BaseModelOutput) is expected


def test_mixtures_have_the_mixtures_output_and_the_library_s_own_class_is_found():
    assert output_class(Silent, MoeModelOutputWithPast) is MoeCausalLMOutputWithPast
    assert output_class(Mamba2ForCausalLM, BaseModelOutput).__name__ == "Mamba2CausalLMOutput"
