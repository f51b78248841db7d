"""load(): what lies in a directory is what runs, and a damaged one is refused in a sentence."""

import json
import pickle

import pytest
import torch

from lengthen import load, wrap
from lengthen.errors import InputError
from lengthen.models import is_wrapped, tokenizer_for
from lengthen.models.agreement import relative_error
from lengthen.models.loading import configuration_of, dtype_named, load_library_model
from lengthen.models.tiny_models import TINY_MODELS, build_tiny_model
from tests.conftest import tiny_mamba2
from tests.models.mamba_ssm_checkpoints import FIRST, config, random_weights, write


@pytest.mark.parametrize(
    "spoil, match",
    [
        ("missing", "does not exist"),
        ("config", "config.json"),
        ("weights", r"^The weights in .* are damaged \(.*\); fetch or save them again\.$"),
        ("tensor", "lack"),
        ("vocabulary", r"weight in .*model has shape \(256, 32\), but config.json says \(300, 32\)"),
    ],
)
def test_a_damaged_model_directory_is_a_sentence(tmp_path, spoil, match):
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "model"
    tiny_mamba2().save_pretrained(folder)
    if spoil == "missing":
        folder = tmp_path / "nothing"
    elif spoil == "config":
        (folder / "config.json").unlink()
    elif spoil == "vocabulary":
        settings = (folder / "config.json").read_text().replace('"vocab_size": 256', '"vocab_size": 300')
        (folder / "config.json").write_text(settings)
    elif spoil == "weights":
        (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:2000])
    else:
        tensors = load_file(folder / "model.safetensors")
        tensors.pop("backbone.layers.1.mixer.A_log")
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=match):
        load(folder)


def test_a_mixture_of_experts_loads_and_runs_in_float64(tmp_path):
    model = build_tiny_model(next(tiny for tiny in TINY_MODELS if tiny.name == "Jamba"))
    model.save_pretrained(tmp_path)
    ids = torch.randint(64, (3, 20), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert relative_error(load(tmp_path, dtype="float64")(ids).logits, wrap(model)(ids).logits) < 1e-5


class Payload:
    """What a pickle may hold instead of weights."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("library", ["transformers", "mamba_ssm"])
def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(tmp_path, library):
    model, ran = tmp_path / "model", tmp_path / "ran"
    tiny_mamba2().save_pretrained(model)
    (model / "model.safetensors").unlink()
    if library == "transformers":
        torch.save({"weight": Payload(ran)}, model / "pytorch_model.bin")
    else:
        (model / "config.json").write_text('{"d_model": 32, "n_layer": 2, "ssm_cfg": {"layer": "Mamba2"}}')
        (model / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Payload(ran)}, protocol=4))
    with pytest.raises(InputError, match="nothing else is read from a pickle, which may run code") as caught:
        load(model)
    assert not ran.exists() and "weights_only" not in str(caught.value)


CODE = """
from pathlib import Path
Path(__file__).parent.joinpath("ran").touch()
Path({ran!r}).touch()
from transformers import Mamba2Config, Mamba2ForCausalLM
class OwnConfig(Mamba2Config):
    model_type = "own"
class OwnModel(Mamba2ForCausalLM):
    config_class = OwnConfig
"""


@pytest.mark.parametrize("read", [load, configuration_of, tokenizer_for])
def test_a_checkpoint_s_own_code_runs_only_where_it_is_trusted(tmp_path, monkeypatch, read):
    """Where trust is not spoken of, transformers asks on standard input."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    model, ran = tmp_path / "model", tmp_path / "ran"
    tiny_mamba2().save_pretrained(model)
    settings = json.loads((model / "config.json").read_text()) | {"model_type": "own"}
    settings["auto_map"] = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    (model / "config.json").write_text(json.dumps(settings))
    (model / "own.py").write_text(CODE.format(ran=str(ran)))
    with pytest.raises(InputError):
        read(model)
    assert not ran.exists()
    if read is load:
        assert type(load(model, trust_remote_code=True)).__name__ == "OwnModel" and ran.exists()


def test_the_vocabulary_of_a_mamba_ssm_checkpoint_may_be_bytes(tmp_path):
    assert tokenizer_for(write(tmp_path / "bytes", config(FIRST), random_weights(FIRST))) == "bytes"
    large = config(FIRST, vocab_size=1000)
    with pytest.raises(InputError, match="holds no tokenizer"):
        tokenizer_for(write(tmp_path / "large", large, random_weights(large)))


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (255, "holds no tokenizer, and its vocabulary of 255 ids is too small for bytes"),
        (321, "save one beside the model"),
    ],
)
def test_only_a_vocabulary_near_256_ids_is_taken_for_bytes(tmp_path, size, message):
    tiny_mamba2(vocab_size=size).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=message):
        tokenizer_for(tmp_path)
    tiny_mamba2(vocab_size=size + (1 if size < 256 else -1)).save_pretrained(tmp_path)
    assert tokenizer_for(tmp_path) == "bytes"


@pytest.mark.parametrize(
    "file", ["tokenizer.json", "tokenizer_config.json", "tokenizer.model", "vocab.json", "spiece.model"]
)
def test_a_tokenizer_beside_the_model_is_taken_by_the_directory_s_name(tmp_path, file):
    tiny_mamba2().save_pretrained(tmp_path)
    (tmp_path / file).write_text("{}")
    assert tokenizer_for(tmp_path) == str(tmp_path)
    assert tokenizer_for("owner/name") == "owner/name"


def test_a_dtype_goes_by_its_name(tmp_path):
    assert dtype_named("bf16") == dtype_named("bfloat16") == dtype_named(torch.bfloat16) == torch.bfloat16
    assert dtype_named("fp16") == dtype_named("float16") == torch.float16 and dtype_named("float64") == torch.float64
    assert dtype_named("fp32") == dtype_named("float32") == torch.float32
    assert dtype_named(None) == dtype_named("auto") == "auto"
    with pytest.raises(InputError, match=r"^dtype 'float8' is unknown; choose float32,"):
        dtype_named("float8")
    tiny_mamba2().to(torch.bfloat16).save_pretrained(tmp_path)
    assert load(tmp_path).dtype == torch.bfloat16 and load(tmp_path, dtype="float32").dtype == torch.float32


@pytest.mark.parametrize("library", ["transformers", "mamba_ssm"])
def test_a_device_and_a_dtype_are_kept_to(tmp_path, library):
    if library == "transformers":
        tiny_mamba2().save_pretrained(tmp_path / "model")
    else:
        write(tmp_path / "model", config(FIRST), random_weights(FIRST))
    model = load(tmp_path / "model", device="meta", dtype="bfloat16")
    assert {(p.device.type, p.dtype) for p in model.parameters()} == {("meta", torch.bfloat16)}


def test_loading_leaves_the_library_s_progress_bars_as_they_were(tmp_path):
    from transformers.utils import logging

    tiny_mamba2().save_pretrained(tmp_path)
    for switch, on in ((logging.disable_progress_bar, False), (logging.enable_progress_bar, True)):
        switch()
        load(tmp_path)
        assert logging.is_progress_bar_enabled() == on


@pytest.mark.parametrize("with_fla", [False, True])
def test_a_loaded_model_is_wrapped_and_evaluates_and_the_library_s_is_left_alone(tmp_path, with_fla):
    """Also where fla was imported, which takes over the automatic classes of its process."""
    if with_fla:
        pytest.importorskip("fla.models")
    tiny_mamba2().save_pretrained(tmp_path)
    model, plain = load(tmp_path), load_library_model(tmp_path)
    assert is_wrapped(model) and not model.training and not is_wrapped(plain) and not plain.training
    found, expected = configuration_of(tmp_path).to_dict(), plain.config.to_dict()
    assert found | {"_name_or_path": str(tmp_path)} == expected
