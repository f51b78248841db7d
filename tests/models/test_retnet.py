"""RetNet and plain linear attention: fla's classes."""

import pytest
import torch

from lengthen.models.retnet import _turned
from tests.models.family_properties import IDS, builder, every, first
from tests.models.fla_properties import *  # noqa: F403

SHAPES = {
    "RetNet": {
        "four heads": {},
        "grouped heads, convolutions, feature map, nothing fused": {
            "num_kv_heads": 2,
            "use_short_conv": True,
            "feature_map": "swish",
            "expand_v": 1.0,
            "fuse_norm": False,
            "fuse_swiglu": False,
            "tie_word_embeddings": True,
        },
    },
    "LinearAttention": {
        "products of two projections": {},
        "grouped heads, positive features, normed": {
            "num_kv_heads": 2,
            "feature_map": "elu",
            "norm_feature_map": True,
            "norm_q": True,
            "norm_k": True,
            "expand_v": 2.0,
        },
        "wider features, nothing fused": {"feature_map": "hedgehog", "fuse_norm": False, "tie_word_embeddings": True},
    },
}


@pytest.fixture(params=every(SHAPES))
def build(request):
    return builder(*request.param)


@pytest.fixture(params=first(SHAPES))
def build_first(request):
    return builder(*request.param)


@pytest.fixture
def library_states():
    """RetNet's library keeps keys as seen from position 0, lengthen from the one that comes next."""

    def states(model, output):
        found = [layer["recurrent_state"] for layer in output.past_key_values]
        if type(model).__name__.startswith("RetNet"):
            return [_turned(model.model.layers[0].attn.rotary, h.mT, torch.tensor(-IDS.shape[1])).mT for h in found]
        return [h[0] if isinstance(h, tuple) else h for h in found]

    return states


@pytest.fixture
def recurrence_parameter():
    return "k_proj.weight"
