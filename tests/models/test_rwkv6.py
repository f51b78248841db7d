"""RWKV-6: fla's class, whose layers shift tokens twice, in time mix and channel mix."""

import pytest

from lengthen import wrap
from lengthen.models.agreement import relative_error
from tests.models.family_properties import IDS, builder
from tests.models.fla_properties import *  # noqa: F403

CLASSES = {
    "RWKV6": {
        "half-width keys": {},
        "wide heads, biased norms, nothing fused, tied": {
            "num_heads": 2,
            "expand_k": 1.0,
            "norm_bias": True,
            "norm_first": False,
            "fuse_norm": False,
            "tie_word_embeddings": True,
        },
    },
}


@pytest.fixture
def recurrence_parameter():
    return "bonus"


def test_an_adapter_on_the_shares_projection_counts_as_it_does_merged():
    """fla reads that projection's weight, where an adapter is not seen."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules=["x_proj.2"], init_lora_weights=False)
    adapted = wrap(get_peft_model(builder("RWKV6", {})(), config))
    logits = adapted(input_ids=IDS).logits
    logits.square().mean().backward()
    assert all(p.grad.abs().sum() > 0 for n, p in adapted.named_parameters() if "lora_" in n)
    assert relative_error(logits, wrap(builder("RWKV6", {})())(IDS).logits) > 1e-2
    assert relative_error(adapted.merge_and_unload()(IDS).logits, logits) < 1e-5
