"""mamba_ssm's config.json and transformers' configuration: the same model in both, and what either lacks."""

from pathlib import Path

import pytest
from transformers import Mamba2Config, MambaConfig

from lengthen import convert, load
from lengthen.errors import InputError
from lengthen.models.mamba_ssm_format import MIXERS, MODEL, from_library, recognises, to_library
from tests.conftest import tiny_mamba2
from tests.models.mamba_ssm_checkpoints import FIRST, SECOND, config, write

WHERE = Path("somewhere")
UNREADABLE = {
    "attention": (config(SECOND, attn_layer_idx=[1]), r"hybrid with attention in layers \[1\]"),
    "MLP": (config(SECOND, d_intermediate=64), "MLP of width 64"),
    "layer": (config(FIRST, {"layer": "Mamba9"}), "layers of type 'Mamba9'"),
    "LayerNorm": (config(FIRST, rms_norm=False), "LayerNorm"),
    "option": (config(FIRST, bidirectional=True), "option bidirectional"),
    "mixer option": (config(FIRST, {"headdim": 8}), "option ssm_cfg.headdim"),
    "skip": (config(SECOND, {"D_has_hdim": True}), "D_has_hdim True"),
    "gate": (config(SECOND, {"rmsnorm": False}), "rmsnorm False"),
    "inner width": (config(SECOND, {"d_ssm": 24}), "24 of 48 channels"),
    "multiple": (config(FIRST, pad_vocab_size_multiple=0), "multiple of 0"),
    "heads": (config(SECOND, {"headdim": 7}), "does not describe a mamba2 model"),
    "type": (config(FIRST, {"d_state": "many"}), "does not describe a mamba model"),
}


@pytest.mark.parametrize("name", list(UNREADABLE))
def test_models_without_a_counterpart_are_refused(name, tmp_path):
    settings, message = UNREADABLE[name]
    source = write(tmp_path / "source", settings, {})
    for read in (load, lambda path: convert(path, tmp_path / "out")):
        with pytest.raises(InputError, match=message):
            read(source)


def test_what_mamba_ssm_cannot_say_is_refused(tmp_path):
    tiny_mamba2(hidden_act="gelu").save_pretrained(tmp_path / "gelu")
    tiny_mamba2(layer_norm_epsilon=1e-6).save_pretrained(tmp_path / "epsilon")
    for name, message in (("gelu", "activation gelu"), ("epsilon", "epsilon 1e-06")):
        with pytest.raises(InputError, match=message):
            convert(tmp_path / name, tmp_path / "out", to="mamba_ssm")
        assert sorted(p.name for p in tmp_path.iterdir()) == ["epsilon", "gelu"]


def test_only_a_file_without_a_model_type_is_mamba_ssm_s():
    assert recognises({"d_model": 8, "n_layer": 2})
    assert not recognises({"d_model": 8, "n_layer": 2, "model_type": "mamba"}) and not recognises({"d_model": 8})


@pytest.mark.parametrize("kind", ["mamba", "mamba2"])
def test_what_is_written_says_only_what_is_not_the_default_and_is_read_as_the_same(kind):
    sizes = {"hidden_size": 24, "num_hidden_layers": 3, "vocab_size": 53, "use_bias": True}
    if kind == "mamba":
        model = MambaConfig(**sizes, time_step_rank=5)
        said = {"layer": "Mamba1", "dt_rank": 5, "bias": True}
    else:
        model = Mamba2Config(**sizes, head_dim=8, num_heads=6, n_groups=3, time_step_limit=(0.01, 0.5))
        said = {"layer": "Mamba2", "headdim": 8, "ngroups": 3, "dt_limit": (0.01, 0.5), "bias": True}
    settings = from_library(model, WHERE)
    assert settings["ssm_cfg"] == said and settings["vocab_size"] == 53
    found = to_library(settings, WHERE)
    for field in (*MODEL, *MIXERS[said["layer"]][1]):
        assert field.of(found) == field.of(model), field.ours
    assert from_library(found, WHERE) == settings


def test_the_vocabulary_is_padded_as_the_weights_are():
    settings = {"d_model": 16, "n_layer": 1, "vocab_size": 50277}
    assert to_library(settings, WHERE).vocab_size == 50280
    assert to_library(settings | {"pad_vocab_size_multiple": 16}, WHERE).vocab_size == 50288
    assert to_library(settings | {"vocab_size": 64}, WHERE).vocab_size == 64
