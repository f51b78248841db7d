"""HGRN and HGRN-2: fla's classes, whose forget gates have lower bounds that the model learns over its layers."""

import pytest

from tests.models.fla_properties import *  # noqa: F403

CLASSES = {
    "HGRN": {
        "lower bounds": {},
        "convolutions, wide, no bounds, nothing fused": {
            "use_short_conv": True,
            "expand_ratio": 2,
            "use_lower_bound": False,
            "fuse_norm": False,
            "fuse_swiglu": False,
            "tie_word_embeddings": True,
        },
    },
    "HGRN2": {
        "four heads": {},
        "convolutions, two heads, no bounds, nothing fused": {
            "use_short_conv": True,
            "expand_ratio": 16,
            "num_heads": 2,
            "use_lower_bound": False,
            "fuse_norm": False,
            "tie_word_embeddings": True,
        },
    },
}


@pytest.fixture
def value_first(build):
    return type(build()).__name__.startswith("HGRN2")


@pytest.fixture
def recurrence_parameter():
    return "f_proj.weight"
