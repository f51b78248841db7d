"""Mamba-1 and Mamba-2: fla's classes, whose own path takes one token at a time once it has a cache."""

import pytest
import torch
from transformers.models.mamba2 import Mamba2Config, Mamba2ForCausalLM

from lengthen import wrap
from lengthen.models.agreement import relative_error
from tests.models.family_properties import IDS, builder
from tests.models.fla_properties import *  # noqa: F403

CLASSES = {
    "fla.models.Mamba": {
        "eight states": {},
        "biases, tied": {
            "use_bias": True,
            "use_conv_bias": False,
            "dt_rank": 5,
            "residual_in_fp32": True,
            "tie_word_embeddings": True,
        },
    },
    "fla.models.Mamba2": {
        "a group a head": {"n_groups": 4},
        "a skip a channel, norm before the gate, limits of the step, biases, tied": {
            "D_has_hdim": True,
            "norm_before_gate": True,
            "dt_limit": (0.04, 0.06),
            "use_bias": True,
            "n_groups": 1,
            "tie_word_embeddings": True,
        },
        "one group, no norm": {"n_groups": 1, "rmsnorm": False, "residual_in_fp32": False},
    },
}


@pytest.fixture
def value_first(build):
    return type(build()).__name__.startswith("Mamba2")


@pytest.fixture
def adapted_layers():
    return ["in_proj"]


@pytest.fixture
def recurrence_parameter():
    return "A_log"


@torch.no_grad()
def test_heads_share_groups_as_they_do_on_a_gpu():
    """fla's path without a GPU deals groups out in turn (0, 1, 0, 1); its kernels, and transformers, in runs (0, 0, 1, 1)."""
    model = builder("fla.models.Mamba2", {"n_groups": 2, "norm_eps": 1e-5})()
    same = Mamba2ForCausalLM(
        Mamba2Config(
            vocab_size=64,
            hidden_size=32,
            num_hidden_layers=2,
            num_heads=4,
            head_dim=16,
            n_groups=2,
            state_size=8,
            chunk_size=8,
            layer_norm_epsilon=1e-5,
            use_bias=False,
            residual_in_fp32=True,
        )
    ).eval()
    same.load_state_dict(model.state_dict())
    expected = wrap(same)(IDS).logits
    assert relative_error(model(IDS, use_cache=False).logits, expected) > 1e-2
    assert relative_error(wrap(model)(IDS).logits, expected) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize("name", CLASSES)
def test_the_library_s_cache_takes_one_token_at_a_time(name):
    model = builder(name, {})()
    cache = model(IDS[:, :40], use_cache=True).past_key_values
    with pytest.raises(ValueError, match="single new token"):
        model(IDS[:, 40:42], past_key_values=cache, use_cache=True)
