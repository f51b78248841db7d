"""Checkpoints of mamba_ssm and fla: what they say is what is loaded, and a round trip changes no bit."""

import json
import subprocess
import sys

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM

from lengthen import check, convert, load
from lengthen.errors import InputError, ParityError
from lengthen.models.checkpoints import read_checkpoint
from tests.conftest import plain_transformers, tiny_mamba2
from tests.models.mamba_ssm_checkpoints import FIRST, SECOND, config, random_weights, restated_logits, stored, write

CASES = {
    "mamba1 as published, tied, bf16": (config(FIRST), torch.bfloat16, "bin"),
    "mamba1 untied, odd sizes, biases": (
        config(
            FIRST,
            {"dt_rank": 3, "d_state": 5, "d_conv": 3, "bias": True, "conv_bias": False, "expand": 3, "dt_scale": 2.0},
            tie_embeddings=False,
        ),
        torch.float32,
        "safetensors",
    ),
    "mamba2 as published, tied, fp32": (config(SECOND), torch.float32, "bin"),
    "mamba2 untied, groups, limits, bf16, shards": (
        config(SECOND, {"ngroups": 3, "dt_limit": [0.1, 0.9], "d_ssm": 48}, tie_embeddings=False),
        torch.bfloat16,
        "shards",
    ),
    "mamba2 tied, no head in the file, fp16": (config(SECOND, {"ngroups": 2}), torch.float16, "safetensors"),
}


@pytest.fixture(params=list(CASES))
def case(request, tmp_path):
    """(a directory of mamba_ssm's, its config.json, its tensors)"""
    settings, dtype, layout = CASES[request.param]
    weights = random_weights(settings, dtype)
    return write(tmp_path / "source", settings, weights, layout), settings, weights


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert tensor.dtype == second[name].dtype and torch.equal(tensor, second[name]), name


def relative(found, expected):
    return float((found - expected).abs().max() / expected.abs().max())


TOKENS = torch.randint(250, (40,), generator=torch.Generator().manual_seed(1))


def test_a_mamba_ssm_checkpoint_is_loaded_as_it_is_defined(case, tmp_path):
    """The library's norms are in float32 whatever the model's dtype, hence 1e-5."""
    source, settings, weights = case
    plain = write(tmp_path / "plain", settings, weights)
    model = load(source, dtype="float64")
    with torch.no_grad():
        found = model(TOKENS[None]).logits[0]
    assert relative(found.double(), restated_logits(plain, TOKENS)) < 1e-5


@pytest.mark.parametrize("settings", [config(FIRST), config(SECOND)], ids=["mamba1", "mamba2"])
def test_a_bf16_checkpoint_goes_on_from_a_float32_state_over_several_tokens(tmp_path, settings):
    """mamba_ssm's own modules go on for one token alone, from a state rounded to the weights' type."""
    model = load(write(tmp_path / "source", settings, random_weights(settings, torch.bfloat16)))
    result = check(model)
    assert result.passed, [c for c in result.checks if not c.passed]
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    with torch.no_grad():
        state = model(TOKENS[None]).final_state
    kept = [named["recurrent"] for named in state.tensors.values()]
    assert all(t.dtype == torch.float32 and not torch.equal(t, t.bfloat16().float()) for t in kept)


def test_a_round_trip_changes_no_bit(case, tmp_path):
    source, settings, weights = case
    there = convert(source, tmp_path / "transformers")
    back = convert(tmp_path / "transformers", tmp_path / "back", to="mamba_ssm")
    assert there.largest_logit_difference <= 1e-5 and back.largest_logit_difference <= 1e-5
    convert(tmp_path / "back", tmp_path / "fla", to="fla")
    convert(tmp_path / "fla", tmp_path / "again", to="mamba_ssm")
    for name in ("back", "again"):
        assert_same(stored(tmp_path / name), weights)
        mixer = json.loads((tmp_path / name / "config.json").read_text())["ssm_cfg"]
        asked = {"layer": "Mamba1"} | {key: value for key, value in settings["ssm_cfg"].items() if key != "d_ssm"}
        assert mixer | asked == mixer and mixer.keys() - asked.keys() <= {"dt_rank"}


def test_transformers_loads_what_was_written(case, tmp_path):
    source, settings, weights = case
    convert(source, tmp_path / "out")
    plain = plain_transformers(tmp_path / "out")
    found = {n.replace("embeddings.", "embedding."): t for n, t in plain.state_dict().items()}
    assert_same(found, weights)
    assert plain.dtype == weights["lm_head.weight"].dtype
    assert plain.config.vocab_size == 256 and plain.config.tie_word_embeddings == settings.get("tie_embeddings", True)


@pytest.mark.parametrize("kind", ["mamba1", "mamba2"])
def test_what_is_written_for_mamba_ssm_means_the_same_there(kind, tmp_path):
    if kind == "mamba1":
        torch.manual_seed(0)
        sizes = MambaConfig(hidden_size=24, num_hidden_layers=2, vocab_size=250, time_step_rank=5, use_bias=True)
        model = MambaForCausalLM(sizes).eval()
    else:
        model = tiny_mamba2(n_groups=2, time_step_limit=(0.01, 0.05), use_conv_bias=False)
    model.save_pretrained(tmp_path / "source")
    convert(tmp_path / "source", tmp_path / "out", to="mamba_ssm")
    with torch.no_grad():
        expected = model(TOKENS[None]).logits[0].double()
    assert relative(restated_logits(tmp_path / "out", TOKENS), expected) < 1e-5


def test_tensors_of_two_dtypes_keep_theirs_and_lose_nothing_in_transformers(tmp_path):
    settings = config(FIRST)
    weights = random_weights(settings, torch.bfloat16)
    exact = {name: torch.randn_like(tensor, dtype=torch.float32) for name, tensor in weights.items() if "A_log" in name}
    source = write(tmp_path / "source", settings, weights | exact)
    assert convert(source, tmp_path / "out").dtypes == ["bfloat16", "float32"]
    convert(tmp_path / "out", tmp_path / "back", to="mamba_ssm")
    assert_same(stored(tmp_path / "back"), weights | exact)
    plain = plain_transformers(tmp_path / "out")
    assert torch.equal(plain.backbone.layers[1].mixer.A_log, exact["backbone.layers.1.mixer.A_log"])
    mixed = load(source)
    assert mixed.backbone.layers[0].mixer.in_proj.weight.dtype == torch.bfloat16
    assert torch.isfinite(mixed(TOKENS[None]).logits).all()


def test_a_head_that_only_shares_memory_is_written_in_full(tmp_path):
    settings = config(SECOND, tie_embeddings=False)
    weights = random_weights(SECOND)
    assert weights["lm_head.weight"] is weights["backbone.embedding.weight"]
    convert(write(tmp_path / "source", settings, weights), tmp_path / "out")
    written = stored(tmp_path / "out")
    assert torch.equal(written["lm_head.weight"], weights["lm_head.weight"])
    assert not read_checkpoint(tmp_path / "out").config.tie_word_embeddings


def test_a_loaded_checkpoint_trains_and_is_saved_for_transformers(tmp_path):
    model = load(write(tmp_path / "source", config(SECOND), random_weights(SECOND))).train()
    model(TOKENS[None], labels=TOKENS[None]).loss.backward()
    assert all(p.grad is not None for p in model.parameters())
    assert model.lm_head.weight is model.backbone.embeddings.weight
    model.save_pretrained(tmp_path / "saved")
    assert read_checkpoint(tmp_path / "saved").format == "transformers"


def test_fla_and_lengthen_read_each_other(tmp_path):
    """fla's import takes over the automatic classes of its process, so that it runs in one of its own."""
    pytest.importorskip("fla")
    settings = CASES["mamba1 untied, odd sizes, biases"][0]
    write(tmp_path / "one", settings, random_weights(settings))
    limits = {"time_step_limit": (0.01, 0.05), "time_step_min": 0.002, "time_step_floor": 1e-5}
    tiny_mamba2(n_groups=2, **limits).save_pretrained(tmp_path / "two")
    convert(tmp_path / "one", tmp_path / "fla-one", to="fla")
    convert(tmp_path / "two", tmp_path / "fla-two", to="fla")
    script = """
import sys, fla, torch, transformers
from fla.models import MambaForCausalLM, Mamba2ForCausalLM
import lengthen
from lengthen.models.checkpoints import read_checkpoint
folder = sys.argv[1]
for name, kind in (("one", MambaForCausalLM), ("two", Mamba2ForCausalLM)):
    model, info = kind.from_pretrained(f"{folder}/fla-{name}", output_loading_info=True)
    assert not any(info.values()), info
    ours = read_checkpoint(__import__("pathlib").Path(folder, f"fla-{name}"))
    assert all(torch.equal(tensor, model.state_dict()[key]) for key, tensor in ours.tensors.items())
    model.save_pretrained(f"{folder}/saved-{name}")
assert model.config.dt_min == 0.002 and model.config.dt_init_floor == 1e-5
assert model.config.dt_limit == [0.01, 0.05] and model.config.n_groups == 2
assert model.backbone.layers[0].mixer.dt_limit == [0.01, 0.05]
assert type(lengthen.load(f"{folder}/two")).__module__.startswith("transformers.")
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    for name in ("one", "two"):
        written, saved = read_checkpoint(tmp_path / f"fla-{name}"), read_checkpoint(tmp_path / f"saved-{name}")
        assert saved.format == "fla"
        assert_same(saved.tensors, written.tensors)
        ours, theirs = written.config.to_dict(), saved.config.to_dict()
        assert {k for k in ours if ours[k] != theirs[k]} <= {"architectures", "dtype", "transformers_version"}


# What is not converted.


def test_destinations(tmp_path):
    source = write(tmp_path / "source", config(FIRST), random_weights(FIRST))
    (source / "tokenizer.json").write_text("{}")
    (tmp_path / "notes").mkdir()
    convert(source, tmp_path / "out")
    assert (tmp_path / "out/tokenizer.json").read_text() == "{}"
    with pytest.raises(InputError, match=r"exists already.*--overwrite"):
        convert(source, tmp_path / "out")
    convert(source, tmp_path / "out", overwrite=True, to="fla")
    assert "norm_eps" in (tmp_path / "out/config.json").read_text()
    with pytest.raises(InputError, match="not the directory of a model"):
        convert(source, tmp_path / "notes", overwrite=True)
    for around in (source, tmp_path):
        with pytest.raises(InputError, match="holds the model to convert"):
            convert(source, around, overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes", "out", "source"]


def test_logits_that_differ_leave_the_destination_as_it_was(tmp_path, monkeypatch):
    from lengthen.models import converting

    source = write(tmp_path / "source", config(SECOND), random_weights(SECOND))
    convert(source, tmp_path / "out")
    before = (tmp_path / "out/model.safetensors").read_bytes()

    def spoiled(checkpoint, *arguments):
        checkpoint.tensors["backbone.norm_f.weight"] = checkpoint.tensors["backbone.norm_f.weight"] * 1.001
        original(checkpoint, *arguments)
        checkpoint.tensors["backbone.norm_f.weight"] = checkpoint.tensors["backbone.norm_f.weight"] / 1.001

    original = converting.write_checkpoint
    monkeypatch.setattr(converting, "write_checkpoint", spoiled)
    with pytest.raises(ParityError, match="differ from those of"):
        convert(source, tmp_path / "out", to="fla", overwrite=True)
    assert (tmp_path / "out/model.safetensors").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out", "source"]


def test_other_models_and_formats_are_refused(tmp_path):
    tiny_mamba2().save_pretrained(tmp_path / "source")
    with pytest.raises(InputError, match="is a checkpoint of transformers already"):
        convert(tmp_path / "source", tmp_path / "out")
    with pytest.raises(InputError, match="format 'jax' is unknown"):
        convert(tmp_path / "source", tmp_path / "out", to="jax")
    (tmp_path / "source/config.json").write_text('{"model_type": "bamba"}')
    with pytest.raises(InputError, match="type 'bamba'; only Mamba"):
        convert(tmp_path / "source", tmp_path / "out", to="fla")
    with pytest.raises(InputError, match="does not exist"):
        convert("./nothing", tmp_path / "out")
