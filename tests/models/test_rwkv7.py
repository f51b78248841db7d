"""RWKV-7: fla's class, whose layers shift tokens twice, in time mix and channel mix."""

import pytest

from tests.models.family_properties import builder, every, first
from tests.models.fla_properties import *  # noqa: F403

SHAPES = {
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


@pytest.fixture(params=every(SHAPES))
def build(request):
    return builder(*request.param)


@pytest.fixture(params=first(SHAPES))
def build_first(request):
    return builder(*request.param)


@pytest.fixture
def recurrence_parameter():
    return "k_k"
