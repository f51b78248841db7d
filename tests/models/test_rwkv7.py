"""RWKV-7: fla's class, whose layers shift tokens twice, in time mix and channel mix."""

import pytest

from tests.models.fla_properties import *  # noqa: F403

CLASSES = {
    "RWKV7": {
        "four heads": {},
        "two heads, nothing fused, tied": {
            "head_dim": 16,
            "norm_first": False,
            "fuse_norm": False,
            "tie_word_embeddings": True,
        },
    },
}


@pytest.fixture
def recurrence_parameter():
    return "k_k"
