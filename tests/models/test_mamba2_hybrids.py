"""Mamba-2 in hybrids: every class of transformers, at shapes that use what sets it apart."""

import pytest
import torch

from lengthen import wrap
from tests.models.family_properties import *  # noqa: F403
from tests.models.family_properties import IDS, MASK, builder

CLASSES = {
    "Bamba": {
        "two groups": {},
        "attention first, one group, limits of the step, biases, tied, z-loss, eager": {
            "attn_layer_indices": [0],
            "mamba_n_groups": 1,
            "time_step_limit": (0.04, 0.06),
            "mamba_proj_bias": True,
            "mamba_conv_bias": False,
            "tie_word_embeddings": True,
            "z_loss_coefficient": 0.01,
            "attn_implementation": "eager",
        },
    },
    "Zamba2": {
        "two groups": {},
        "two shared blocks with adapters, no positions, a least step": {
            "num_hidden_layers": 4,
            "layers_block_type": ["hybrid", "linear_attention", "hybrid", "hybrid"],
            "num_mem_blocks": 2,
            "use_shared_attention_adapter": True,
            "use_mem_rope": False,
            "mamba_ngroups": 4,
            "time_step_min": 0.05,
            "add_bias_linear": True,
        },
    },
    "FalconH1": {
        "gate alone": {},
        "norm before the gate, multipliers": {
            "mamba_rms_norm": True,
            "mamba_d_ssm": 32,
            "mamba_n_heads": 2,
            "mamba_n_groups": 1,
            "lm_head_multiplier": 0.3,
            "embedding_multiplier": 2.0,
            "key_multiplier": 0.5,
            "ssm_multipliers": [0.7, 1.3, 0.9, 1.1, 0.8],
            "ssm_in_multiplier": 1.2,
            "ssm_out_multiplier": 0.6,
            "attention_in_multiplier": 1.1,
            "attention_out_multiplier": 0.9,
        },
        "norm after the gate": {"mamba_rms_norm": True, "mamba_norm_before_gate": False, "mamba_d_conv": 2},
    },
    "GraniteMoeHybrid": {
        "experts": {},
        "dense, no positions, multipliers": {
            "num_local_experts": 0,
            "position_embedding_type": "nope",
            "logits_scaling": 3.0,
            "embedding_multiplier": 2.0,
            "residual_multiplier": 0.5,
            "mamba_n_groups": 1,
        },
    },
    "NemotronH": {
        "two groups": {},
        "experts, a least step, biases": {
            "layers_block_type": ["full_attention", "linear_attention", "moe", "linear_attention"],
            "n_groups": 1,
            "n_routed_experts": 4,
            "moe_intermediate_size": 16,
            "moe_shared_expert_intermediate_size": 16,
            "time_step_min": 0.05,
            "use_bias": True,
            "mamba_num_heads": 2,
        },
    },
}


@pytest.mark.parametrize("asked", [{}, {"output_router_logits": True}], ids=["by the configuration", "by the call"])
def test_the_balancing_loss_of_experts_is_the_library_s(asked):
    model = builder("GraniteMoeHybrid", {"router_aux_loss_coef": 0.5, "output_router_logits": not asked})()
    expected = model(IDS, labels=IDS, attention_mask=MASK, use_cache=False, **asked)
    found = wrap(model)(IDS, labels=IDS, attention_mask=MASK, **asked)
    assert float(expected.aux_loss) > 0
    torch.testing.assert_close(found.aux_loss, expected.aux_loss)
    torch.testing.assert_close(
        found.loss - 0.5 * found.aux_loss, model(IDS, labels=IDS, attention_mask=MASK, output_router_logits=False).loss
    )
    assert len(found.router_logits) == len(expected.router_logits)


def test_padding_takes_no_part_in_the_z_loss():
    model = wrap(builder("Bamba", {"z_loss_coefficient": 1.0})())
    alone = model(IDS[:1, 9:], labels=IDS[:1, 9:]).loss
    torch.testing.assert_close(model(IDS[:1], labels=IDS[:1], attention_mask=MASK[:1]).loss, alone)
