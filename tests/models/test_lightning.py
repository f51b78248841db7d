"""MiniMax's lightning attention, and the fault of its library's own path."""

import pytest
import torch

from lengthen import wrap
from lengthen.models import sequence_start
from lengthen.models.agreement import relative_error
from lengthen.models.library_cache import LibraryPath
from tests.conftest import library_cache
from tests.models import family_properties
from tests.models.family_properties import *  # noqa: F403
from tests.models.family_properties import IDS, MASK, builder

CLASSES = {
    "MiniMax": {
        "lightning last": {},
        "lightning first, two heads, factors, tied, eager": {
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "num_attention_heads": 2,
            "head_dim": 12,
            "linear_attn_alpha_factor": 0.7,
            "linear_attn_beta_factor": 1.3,
            "hidden_act": "gelu",
            "tie_word_embeddings": True,
            "attn_implementation": "eager",
        },
        "blocks longer than the text": {"block_size": 128},
    },
}


@pytest.fixture
def library_states():
    return lambda _, output: [state for state in library_cache(output).linear_cache if len(state)]


@pytest.fixture
def adapted_layers():
    return ["qkv_proj"]


@pytest.fixture
def recurrence_parameter():
    """Its decay is fixed: what the recurrence learns is what it reads and writes."""
    return "qkv_proj.weight"


def test_in_float64_logits_and_states_equal_the_library_s(build, library_states):
    """The library's decays are kept as numbers rounded to float32: here they are computed anew from its slopes."""

    def exact():
        model = build().double()
        for layer in model.model.layers:
            if hasattr(attention := layer.self_attn, "slope_rate"):
                decays = attention.decay_factors(attention.slope_rate)
                attention.query_decay, attention.key_decay, attention.diagonal_decay = decays
        return model

    family_properties.test_in_float64_logits_and_states_equal_the_library_s(exact, library_states)


@torch.no_grad()
def test_segments_give_one_run_which_the_library_s_path_does_not():
    """Its cache counts no positions where the first layer is not attention."""
    model = builder("MiniMax", {"layer_types": ["linear_attention", "full_attention", "linear_attention"]})()
    path = LibraryPath(model)
    whole, _ = path.run(IDS)
    head, cache = path.run(IDS[:, :40])
    tail, _ = path.run(IDS[:, 40:], cache)
    assert relative_error(torch.cat([head, tail], 1), whole) > 1e-2

    wrap(model)
    first = model(IDS[:, :40], initial_state=sequence_start(model, 3))
    second = model(IDS[:, 40:], initial_state=first.final_state)
    assert relative_error(torch.cat([first.logits, second.logits], 1), whole) < 1e-5


def test_the_balancing_loss_of_experts_is_the_library_s():
    model = builder("MiniMax", {"router_aux_loss_coef": 0.5})()
    asked = {"labels": IDS, "attention_mask": MASK, "output_router_logits": True}
    expected, found = model(IDS, use_cache=False, **asked), wrap(model)(IDS, **asked)
    assert expected.aux_loss > 0
    torch.testing.assert_close(found.aux_loss, expected.aux_loss)
    plain = model(IDS, labels=IDS, attention_mask=MASK).loss
    torch.testing.assert_close(found.loss - 0.5 * found.aux_loss, plain)
