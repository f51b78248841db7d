"""Gated linear attention: fla's GLA, at shapes that use what sets layers apart."""

import pytest

from tests.models.fla_properties import *  # noqa: F403

CLASSES = {
    "GLA": {
        "four heads": {},
        "grouped heads, convolutions, feature map, limited decay, nothing fused": {
            "num_kv_heads": 2,
            "use_short_conv": True,
            "conv_size": 3,
            "feature_map": "relu",
            "clamp_min": -0.05,
            "expand_k": 1.0,
            "expand_v": 2.0,
            "fuse_norm": False,
            "fuse_swiglu": False,
            "tie_word_embeddings": True,
        },
        "no gate at the output, two heads": {"use_output_gate": False, "num_heads": 2},
    },
}


@pytest.fixture
def value_first():
    return True


@pytest.fixture
def recurrence_parameter():
    return "gk_proj.1.bias"
