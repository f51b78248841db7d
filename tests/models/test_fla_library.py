"""fla's models by what config.json calls them: fla is imported for them and for no others."""

import json
import subprocess
import sys

import pytest
import torch

from lengthen import load, wrap
from lengthen.errors import InputError
from lengthen.models.fla_library import MODEL_TYPES, import_fla_for
from lengthen.models.tiny_models import build_tiny_model
from lengthen.models.tiny_models_fla import FLA_TINY_MODELS
from tests.models.family_properties import IDS
from tests.models.fla_reference import fla  # noqa: F401

TINY = {tiny.name: tiny for tiny in FLA_TINY_MODELS}


@pytest.mark.usefixtures("fla")
@pytest.mark.parametrize("name", TINY)
def test_a_saved_model_loads(name, tmp_path):
    model = build_tiny_model(TINY[name])
    model.save_pretrained(tmp_path)
    assert torch.equal(load(tmp_path)(IDS).logits, wrap(model)(IDS).logits)


@pytest.mark.usefixtures("fla")
def test_a_fresh_process_finds_fla_by_itself(tmp_path):
    build_tiny_model(TINY["GLA"]).save_pretrained(tmp_path)
    code = (
        "import sys; from lengthen import load; assert 'fla' not in sys.modules; "
        f"assert type(load({str(tmp_path)!r})).__name__ == 'GLAForCausalLM'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.fixture
def no_fla(monkeypatch):
    """As in a process that has not imported fla, where it cannot be."""
    monkeypatch.setattr("lengthen.models.fla_library.CONFIG_MAPPING", {"mamba2": None})
    monkeypatch.setitem(sys.modules, "fla", None)


def of_type(folder, kind):
    (folder / "config.json").write_text(json.dumps({} if kind is None else {"model_type": kind}))
    return folder


@pytest.mark.parametrize("kind", sorted(MODEL_TYPES))
def test_without_fla_a_sentence_says_what_to_install(kind, tmp_path, no_fla):
    for read in (import_fla_for, load):
        with pytest.raises(
            InputError, match=rf"holds a {kind} model of flash-linear-attention, .*'lengthen\[fla\]'\.$"
        ):
            read(of_type(tmp_path, kind))


@pytest.mark.parametrize("kind", ["mamba2", "bert", "mamba", None])
def test_a_model_that_is_not_fla_s_needs_no_fla(kind, tmp_path, no_fla):
    import_fla_for(of_type(tmp_path, kind))
    assert sys.modules["fla"] is None


@pytest.mark.usefixtures("fla")
def test_every_class_of_fla_s_that_lengthen_runs_is_known_by_its_type():
    import fla.models

    types = {getattr(fla.models, tiny.config).model_type for tiny in FLA_TINY_MODELS}
    assert types - {"mamba", "mamba2"} == MODEL_TYPES  # those two are in transformers
