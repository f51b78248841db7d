"""fla's config.json of Mamba and Mamba2 and transformers' configuration: told apart, and the same model in both."""

from pathlib import Path

import pytest
from transformers import Mamba2Config, MambaConfig

from lengthen.errors import InputError
from lengthen.models.fla_format import KINDS, from_library, recognises, to_library

WHERE = Path("somewhere")
FIRST = MambaConfig(hidden_size=24, num_hidden_layers=3, vocab_size=50, time_step_rank=5, use_conv_bias=False)
SECOND = Mamba2Config(
    hidden_size=24,
    num_hidden_layers=1,
    vocab_size=50,
    head_dim=8,
    num_heads=6,
    n_groups=3,
    state_size=4,
    time_step_limit=(0.01, 0.5),
    layer_norm_epsilon=1e-6,
    tie_word_embeddings=True,
)
CONFIGS = {"mamba": FIRST, "mamba2": SECOND}


def test_only_the_norm_s_name_tells_fla_s_file_from_transformers():
    assert recognises({"model_type": "mamba2", "norm_eps": 1e-5}) and recognises({"model_type": "mamba", "norm_eps": 0})
    assert not recognises({"model_type": "mamba2", "layer_norm_epsilon": 1e-5})
    assert not recognises({"model_type": "gla", "norm_eps": 1e-5}) and not recognises({"norm_eps": 1e-5})


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_recognised_and_read_as_the_same_model(kind):
    config = CONFIGS[kind]
    settings = from_library(config, WHERE)
    found = to_library(settings, WHERE)
    assert recognises(settings) and type(found) is type(config)
    for field in KINDS[kind][1]:
        assert field.of(found) == field.of(config), field.ours
    assert from_library(found, WHERE) == settings


def test_settings_have_fla_s_names():
    settings = from_library(SECOND, WHERE)
    assert settings["architectures"] == ["Mamba2ForCausalLM"] and settings["model_type"] == "mamba2"
    assert (settings["norm_eps"], settings["dt_limit"], settings["n_groups"]) == (1e-6, (0.01, 0.5), 3)
    assert not {"layer_norm_epsilon", "time_step_limit", "num_heads"} & settings.keys()
    first = from_library(FIRST, WHERE)
    assert (first["architectures"], first["dt_rank"], first["use_conv_bias"]) == (["MambaForCausalLM"], 5, False)


def test_what_a_file_does_not_say_is_fla_s_default():
    """Where these differ from transformers' defaults, fla's count."""
    second = to_library({"model_type": "mamba2", "norm_eps": 1e-5, "hidden_size": 256}, WHERE)
    assert (second.n_groups, second.vocab_size, second.num_hidden_layers) == (1, 32000, 48)
    assert (second.num_heads, second.time_step_limit) == (8, (0.0, float("inf")))  # 2 * 256 / 64
    first = to_library({"model_type": "mamba", "norm_eps": 1e-5, "hidden_size": 250}, WHERE)
    assert not first.residual_in_fp32 and first.time_step_rank == 16  # 250 / 16, rounded up


@pytest.mark.parametrize("name, value", [("D_has_hdim", True), ("rmsnorm", False), ("norm_before_gate", True)])
def test_a_part_that_transformers_lacks_is_refused_where_it_is_used(name, value):
    settings = from_library(SECOND, WHERE)
    to_library({**settings, name: not value}, WHERE)
    with pytest.raises(InputError, match=rf"^somewhere has {name} {value}, which transformers' Mamba2 does not have"):
        to_library({**settings, name: value}, WHERE)


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match=r"config\.json does not describe a mamba2 model \("):
        to_library({**from_library(SECOND, WHERE), "head_dim": 7}, WHERE)
