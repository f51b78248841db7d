"""Mamba-1: every class of transformers, at shapes that use what sets it apart."""

import copy

import torch

from lengthen import wrap
from lengthen.models.agreement import relative_error
from tests.models.family_properties import *  # noqa: F403
from tests.models.family_properties import IDS, builder

CLASSES = {
    "Mamba": {
        "eight states": {},
        "biases, gelu, narrow convolution, tied, one state": {
            "use_bias": True,
            "use_conv_bias": False,
            "hidden_act": "gelu",
            "conv_kernel": 2,
            "tie_word_embeddings": True,
            "state_size": 1,
            "time_step_rank": 5,
        },
    },
    "FalconMamba": {
        "eight states": {},
        "biases, three channels a width, sixteen states": {
            "use_bias": True,
            "expand": 3,
            "state_size": 16,
            "mixer_rms_eps": 1e-3,
            "tie_word_embeddings": True,
        },
    },
    "Jamba": {
        "attention in the middle": {},
        "attention first, biases, all experts, eager": {
            "attn_layer_offset": 0,
            "expert_layer_period": 1,
            "expert_layer_offset": 0,
            "mamba_proj_bias": True,
            "mamba_conv_bias": False,
            "mamba_d_state": 5,
            "mamba_dt_rank": 3,
            "attn_implementation": "eager",
        },
    },
    "Zamba": {
        "two heads": {},
        "four heads, attention first, biases, gelu, narrow convolution, tied, eager": {
            "n_mamba_heads": 4,
            "layers_block_type": ["hybrid", "linear_attention", "hybrid", "linear_attention"],
            "num_key_value_heads": 2,
            "mamba_proj_bias": True,
            "hidden_mamba_act": "gelu",
            "mamba_d_conv": 2,
            "mamba_d_state": 5,
            "mamba_dt_rank": 3,
            "tie_word_embeddings": True,
            "attn_implementation": "eager",
        },
    },
}


@torch.no_grad()
def test_in_half_precision_the_step_is_summed_in_float32():
    """A bias of -8 and 2**-10 of something more: bfloat16 cannot tell the sum from -8, float32 can."""
    model = wrap(builder("Mamba", {})().bfloat16())
    for layer in model.backbone.layers:
        layer.mixer.dt_proj.bias.fill_(-8)
        layer.mixer.dt_proj.weight.fill_(0)
    before = model(IDS).final_state.tensors["backbone.layers.0.mixer"]["recurrent"]
    model.backbone.layers[0].mixer.dt_proj.weight.fill_(2.0**-10)
    after = model(IDS).final_state.tensors["backbone.layers.0.mixer"]["recurrent"]
    assert relative_error(after, before) > 1e-4


def test_an_adapter_on_the_step_s_projection_is_called():
    from peft import LoraConfig, get_peft_model

    model = builder("Mamba", {})()
    plain = wrap(copy.deepcopy(model))(IDS).logits
    adapted = wrap(get_peft_model(model, LoraConfig(r=2, target_modules=["dt_proj"], init_lora_weights=False)))
    logits = adapted(input_ids=IDS).logits
    logits.square().mean().backward()
    assert relative_error(logits, plain) > 1e-3
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for n, p in adapted.named_parameters() if "lora" in n)
