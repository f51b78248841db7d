"""The delta rule: every class of transformers, at shapes that use what sets it apart."""

import dataclasses

import pytest
import torch
from transformers.models.qwen3_next import modeling_qwen3_next

from lengthen import check, wrap
from lengthen.errors import InputError
from lengthen.models import families, sequence_start
from lengthen.models.agreement import relative_error
from lengthen.models.library_cache import LibraryPath
from tests.conftest import library_cache
from tests.models.family_properties import *  # noqa: F403
from tests.models.family_properties import IDS, MASK, builder

_LARA = ["linear_attention", "sliding_attention", "full_attention", "linear_attention"]
CLASSES = {
    "Qwen3Next": {
        "grouped heads": {},
        "attention first, wide values, gelu, narrow convolution, dense, tied, eager": {
            "layer_types": ["full_attention", "linear_attention", "linear_attention"],
            "linear_value_head_dim": 12,
            "linear_num_key_heads": 1,
            "linear_conv_kernel_dim": 2,
            "hidden_act": "gelu",
            "num_experts": 0,
            "tie_word_embeddings": True,
            "attn_implementation": "eager",
        },
    },
    "Qwen3_5": {
        "grouped heads": {},
        "no groups, wide keys": {"linear_num_key_heads": 4, "linear_key_head_dim": 12},
    },
    "Qwen3_5Moe": {
        "grouped heads": {},
        "one key head, two experts of five": {"linear_num_key_heads": 1, "num_experts": 5},
    },
    "OlmoHybrid": {
        "negative eigenvalues": {"linear_allow_neg_eigval": True},
        "positive eigenvalues, wide values": {"linear_allow_neg_eigval": False, "linear_value_head_dim": 12},
    },
    "LaraMini": {
        "a window of five positions": {"num_hidden_layers": 4, "layer_types": _LARA, "sliding_window": 5},
        "a window of ninety, in front, eager": {
            "num_hidden_layers": 4,
            "layer_types": [_LARA[1], _LARA[2], _LARA[0], _LARA[3]],
            "sliding_window": 90,
            "attn_implementation": "eager",
        },
    },
    "KimiLinear": {
        "latent attention": {},
        "queries by rank, dense, two heads": {
            "q_lora_rank": 6,
            "linear_num_heads": 2,
            "mlp_layer_types": ["dense"] * 3,
            "linear_conv_kernel_dim": 3,
        },
    },
    "BailingHybrid": {
        "bounded decay": {},
        "unbounded decay, queries by rank": {"kda_safe_gate": False, "q_lora_rank": 6, "attn_implementation": "eager"},
    },
}


@pytest.fixture
def library_states():
    """The library keeps [key, value] as lengthen does."""
    return lambda _, output: [
        x.recurrent_states[0] for x in library_cache(output).layers if hasattr(x, "recurrent_states")
    ]


@pytest.fixture
def adapted_layers():
    return ["in_proj_qkvz", "in_proj_qkv", "in_proj_a", "q_proj", "f_proj", "f_b_proj"]


def second_half_s_gradient(run):
    """Of the loss of a text's second half, into its embeddings, where run(cache or state, embeddings) reads each half."""
    texts = torch.randn(2, 2, 20, 32, generator=torch.Generator().manual_seed(0)).unbind(0)
    leaves = [text.requires_grad_() for text in texts]
    _, carried = run(None, leaves[0])
    logits, _ = run(carried, leaves[1])
    logits.square().mean().backward()
    return leaves[0].grad


@pytest.mark.parametrize("name", ["Qwen3Next", "KimiLinear"])
def test_gradients_reach_the_segment_before_which_the_library_s_cache_forbids(name):
    model = builder(name, {})()
    keyword = LibraryPath(model).keyword

    def by_the_library(cache, embeddings):
        output = model(inputs_embeds=embeddings, **{keyword: cache}, use_cache=True)
        return output.logits, library_cache(output)

    def by_lengthen(state, embeddings):
        state = sequence_start(model, 2) if state is None else state
        output = model(inputs_embeds=embeddings, initial_state=state)
        return output.logits, output.final_state

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        second_half_s_gradient(by_the_library)
    wrap(model)
    found = second_half_s_gradient(by_lengthen)
    both = torch.randn(2, 2, 20, 32, generator=torch.Generator().manual_seed(0)).transpose(0, 1).flatten(1, 2)
    whole = both.clone().requires_grad_()
    model(inputs_embeds=whole).logits[:, 20:].square().mean().backward()
    assert found.abs().max() > 0
    assert relative_error(found, whole.grad[:, :20]) < 1e-4


@torch.no_grad()
def test_indexed_attention_is_left_to_the_library_and_not_carried():
    model = builder("Qwen4Exp", {})()
    expected = model(IDS, use_cache=False).logits
    wrap(model)
    assert relative_error(model(IDS).logits, expected) < 1e-5
    state = model(IDS[:, :40]).final_state
    assert relative_error(model(IDS[:, 40:], initial_state=state).logits, model(IDS[:, 40:]).logits) > 1e-2
    with pytest.raises(InputError, match="indexed_attention layers"):
        check(model)


def test_generate_needs_none_of_the_kernels_that_need_a_gpu(monkeypatch):
    """Where fla is installed and no GPU is there, every one of the library's own steps would crash."""
    kind = families.KINDS["gated_delta_net"]
    monkeypatch.setitem(families.KINDS, kind.name, dataclasses.replace(kind, own_cache=False))
    model = builder("Qwen3Next", {})()
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": None}
    expected = model.generate(IDS, **options)

    def crash(*_, **__):
        raise RuntimeError("0 active drivers")

    for name in ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"):
        monkeypatch.setattr(modeling_qwen3_next, name, crash)
    with pytest.raises(RuntimeError, match="active drivers"):
        model.generate(IDS, **options)
    assert torch.equal(wrap(model).generate(IDS, **options), expected)


def test_a_stack_without_attention_runs_where_the_library_s_cache_crashes():
    model = builder("Qwen3Next", {"layer_types": ["linear_attention"] * 3})()
    with pytest.raises(ValueError, match=r"get_seq_length|get_mask_sizes"):
        model(IDS, use_cache=True)
    assert check(model).passed


@pytest.mark.parametrize("name", ["Qwen3Next", "Qwen3_5Moe"])
def test_the_balancing_loss_of_experts_is_the_library_s(name):
    model = builder(name, {"router_aux_loss_coef": 0.5})()
    asked = {"labels": IDS, "attention_mask": MASK, "output_router_logits": True}
    expected, found = model(IDS, use_cache=False, **asked), wrap(model)(IDS, **asked)
    assert expected.aux_loss > 0
    torch.testing.assert_close(found.aux_loss, expected.aux_loss)
    torch.testing.assert_close(
        found.loss - 0.5 * found.aux_loss, wrap(model)(IDS, labels=IDS, attention_mask=MASK).loss
    )
