"""The delta rule: fla's Gated DeltaNet, Kimi's delta attention and DeltaNet."""

import pytest

from tests.models.fla_properties import *  # noqa: F403

CLASSES = {
    "GatedDeltaNet": {
        "wide values": {},
        "grouped values, negative eigenvalues, sigmoid gate": {
            "num_v_heads": 4,
            "expand_v": 1,
            "allow_neg_eigval": True,
            "output_gate_activation": "sigmoid",
            "conv_size": 2,
            "fuse_norm": False,
            "fuse_swiglu": False,
            "tie_word_embeddings": True,
        },
        "no gate, no convolutions": {"use_gate": False, "use_short_conv": False},
    },
    "KDA": {
        "two heads": {},
        "grouped values, bounded decay, negative eigenvalues": {
            "num_v_heads": 4,
            "expand_v": 2,
            "safe_gate": True,
            "lower_bound": -5.0,
            "allow_neg_eigval": True,
            "tie_word_embeddings": True,
        },
        "no convolutions": {"use_short_conv": False},
    },
    "DeltaNet": {
        "unit keys": {},
        "gate, sums to one, positive features, negative eigenvalues, half-width keys": {
            "use_gate": True,
            "qk_norm": "sum",
            "qk_activation": "elu",
            "expand_k": 0.5,
            "allow_neg_eigval": True,
            "fuse_norm": False,
        },
        "no convolutions, no rates": {"use_short_conv": False, "use_beta": False, "tie_word_embeddings": True},
        "no convolutions, rectified": {"use_short_conv": False, "qk_activation": "relu"},
    },
}


@pytest.fixture
def value_first(build):
    return not type(build()).__name__.startswith("DeltaNet")


@pytest.fixture
def recurrence_parameter():
    return "k_proj.weight"
