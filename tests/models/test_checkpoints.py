"""Directories of models: which library wrote one, what it holds in transformers' words, and what is refused."""

import json
import pickle

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Mamba2ForCausalLM, MambaForCausalLM

from lengthen import convert, load
from lengthen.errors import InputError
from lengthen.models.checkpoints import (
    FORMATS,
    Checkpoint,
    checkpoint_format,
    library_class,
    read_checkpoint,
    read_config,
    write_checkpoint,
)
from tests.conftest import tiny_mamba2
from tests.models.mamba_ssm_checkpoints import FIRST, SECOND, config, random_weights, stored, write

IDS = torch.randint(250, (2, 20), generator=torch.Generator().manual_seed(0))
SHAPE = {"n_groups": 2, "time_step_limit": (0.01, float("inf")), "layer_norm_epsilon": 1e-5, "num_hidden_layers": 1}


def saved(folder, **options):
    """A tiny Mamba-2 and its directory."""
    model = tiny_mamba2(**SHAPE | options)
    model.save_pretrained(folder)
    return model, folder


def rewritten(folder, to):
    """The model of a directory in another format, in a directory beside it."""
    out = folder.parent / to
    out.mkdir()
    write_checkpoint(read_checkpoint(folder), out, to, folder)
    return out


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("to", FORMATS)
def test_what_is_written_in_a_format_is_read_from_it(to, tied, tmp_path):
    model, source = saved(tmp_path / "source", tie_word_embeddings=tied)
    out = rewritten(source, to)
    assert checkpoint_format(source) == "transformers" and checkpoint_format(out) == to
    found = read_checkpoint(out)
    expected = {name: t for name, t in model.state_dict().items() if not (tied and name == "lm_head.weight")}
    assert found.format == to and found.tensors.keys() == expected.keys()
    assert all(torch.equal(t, expected[name]) for name, t in found.tensors.items())
    assert found.config.tie_word_embeddings == tied and list(found.config.time_step_limit) == [0.01, float("inf")]
    assert read_config(out).to_dict() == found.config.to_dict()
    with torch.no_grad():
        assert torch.equal(found.model()(IDS).logits, model(IDS).logits)


def test_a_tied_head_is_in_mamba_ssm_s_file_alone(tmp_path):
    _, source = saved(tmp_path / "source", tie_word_embeddings=True)
    embedding, head = "backbone.embedding.weight", "lm_head.weight"
    theirs = stored(rewritten(source, "mamba_ssm"))
    assert torch.equal(theirs[head], theirs[embedding]) and head not in stored(rewritten(source, "fla"))


def test_every_tensor_keeps_its_type_and_the_model_has_the_narrowest_that_holds_all(tmp_path):
    weights = random_weights(SECOND, torch.bfloat16)
    exact = {name: t.float() for name, t in weights.items() if name.endswith("A_log")}
    model = read_checkpoint(write(tmp_path / "source", SECOND, weights | exact)).model()
    assert model.config.dtype == torch.float32 and not model.training
    assert model.lm_head.weight is model.backbone.embeddings.weight
    assert {p.dtype for n, p in model.named_parameters() if n.endswith("A_log")} == {torch.float32}
    assert {p.dtype for n, p in model.named_parameters() if not n.endswith("A_log")} == {torch.bfloat16}


@pytest.mark.parametrize(
    "dtypes, narrowest",
    [
        ((torch.bfloat16, torch.bfloat16), torch.bfloat16),
        ((torch.bfloat16, torch.float16), torch.float32),
        ((torch.float32, torch.float64, torch.float16), torch.float64),
    ],
)
def test_two_half_precisions_fit_into_float32_alone(dtypes, narrowest):
    tensors = {str(i): torch.ones(1, dtype=dtype) for i, dtype in enumerate(dtypes)}
    assert Checkpoint("transformers", None, tensors).dtype == narrowest


def test_only_transformers_own_mamba_is_loaded_by_its_class(tmp_path):
    path = tmp_path / "config.json"
    for kind, cls in (("mamba", MambaForCausalLM), ("mamba2", Mamba2ForCausalLM), ("bamba", AutoModelForCausalLM)):
        path.write_text(json.dumps({"model_type": kind}))
        assert library_class(tmp_path) is cls
    with pytest.raises(InputError, match=r"holds a model of type 'bamba'; only Mamba and Mamba-2 models can"):
        read_config(tmp_path)
    path.write_text(json.dumps({"model_type": "mamba2", "hidden_size": "wide"}))
    with pytest.raises(InputError, match=r"config\.json does not describe a mamba2 model \("):
        read_config(tmp_path)


class Harmful:
    def __reduce__(self):
        return (print, ("code in a pickle ran",))


def damaged(source, what, weights):
    """Spoils one thing in a checkpoint of mamba_ssm."""
    path = source / "pytorch_model.bin"
    if what == "missing":
        torch.save({n: t for n, t in weights.items() if n != "backbone.layers.1.mixer.D"}, path)
    elif what == "extra":
        torch.save(weights | {"backbone.embeddings.weight": weights["lm_head.weight"]}, path)
    elif what == "shape":
        torch.save(weights | {"backbone.norm_f.weight": torch.ones(25)}, path)
    elif what == "integers":
        torch.save(weights | {"backbone.norm_f.weight": torch.ones(24, dtype=torch.int8)}, path)
    elif what == "head":
        torch.save(weights | {"lm_head.weight": weights["lm_head.weight"] + 1}, path)
    elif what == "code":
        path.write_bytes(pickle.dumps({"backbone.norm_f.weight": Harmful()}, protocol=2))
    elif what == "whole":
        torch.save({"model": weights, "step": 3}, path)
    elif what == "cut":
        path.write_bytes(path.read_bytes()[:500])
    elif what == "nothing":
        path.unlink()
    elif what == "cut safetensors":
        path.unlink()
        save_file({"a": torch.ones(3)}, source / "model.safetensors")
        (source / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes()[:40])
    elif what == "shard":
        path.rename(source / "pytorch_model-1.bin")
        index = {"weight_map": {"a": "pytorch_model-1.bin", "b": "pytorch_model-2.bin"}}
        (source / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    elif what == "shard elsewhere":
        path.rename(source.parent / "elsewhere.bin")
        (source / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "../elsewhere.bin"}}')
    elif what == "index":
        path.rename(source / "pytorch_model.bin.index.json")
    elif what == "config":
        (source / "config.json").unlink()
    elif what == "not JSON":
        (source / "config.json").write_text('{"d_model": ')
    elif what == "list":
        (source / "config.json").write_text("[]")


DAMAGES = {
    "missing": r"lack 1 of \d+ tensors, such as backbone.layers.1.mixer.D",
    "extra": "hold 1 tensors .* such as backbone.embeddings.weight",
    "shape": r"norm_f.weight .* has shape \(25,\), but config.json says \(24,\)",
    "integers": "is torch.int8; only floating-point",
    "head": "ties its head .* differs",
    "code": "cannot be read as plain weights",
    "whole": "does not hold tensors by name alone",
    "cut": "cannot be read as plain weights",
    "nothing": "holds no weights",
    "cut safetensors": "not a readable safetensors file",
    "shard": "names pytorch_model-2.bin, which is not in",
    "shard elsewhere": r"names \.\./elsewhere.bin, which is not in",
    "index": "not a readable index",
    "config": "holds no config.json",
    "not JSON": "not readable JSON",
    "list": "does not hold settings by name",
}


def test_a_run_that_has_not_ended_is_no_model(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(InputError, match=r"is the folder of a run that has not ended; it holds no model yet\.$"):
        load(tmp_path)


@pytest.mark.parametrize("what", list(DAMAGES))
def test_damaged_checkpoints_are_refused(what, tmp_path, capfd):
    weights = random_weights(FIRST)
    source = write(tmp_path / "source", config(FIRST), weights)
    damaged(source, what, weights)
    with pytest.raises(InputError, match=DAMAGES[what]) as caught:
        convert(source, tmp_path / "out")
    assert "\n" not in str(caught.value) and "code in a pickle ran" not in capfd.readouterr().out
    assert not (tmp_path / "out").exists()
