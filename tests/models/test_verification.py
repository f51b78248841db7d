"""The table of supported classes: packaged, complete, and what a verification finds."""

import dataclasses
from importlib.resources import files
from pathlib import Path

import pytest

from lengthen.models import families
from lengthen.models.tiny_models import TINY_MODELS
from lengthen.models.verification import PROPERTIES, verify_support
from lengthen.results import SupportTable

PACKAGED = Path(str(files("lengthen") / "assets" / "families.json"))


def test_the_packaged_table_names_every_layer_class_of_the_families():
    table = SupportTable.load(PACKAGED)
    refused = {"transformers.models.qwen4_exp.modeling_qwen4_exp.Qwen4ExpTextGatedDeltaNet"}  # for its attention
    assert "Qwen4ExpForCausalLM" in table.refused
    listed = {layer for row in table.classes for layer in row.layers}
    layers = {layer for kind in families.KINDS.values() for layer in kind.layers}
    assert {layer for layer in layers if layer.split(".")[0] in ("transformers", "fla", "torch")} <= listed | refused


def test_every_packaged_property_was_verified():
    for row in SupportTable.load(PACKAGED).classes:
        asked = set(PROPERTIES) - ({"checkpointing"} if row.library == "torch" else set())
        assert set(row.verified) == asked and all(row.verified.values()), row.model


def test_torch_s_own_layers_are_verified():
    rows = verify_support([]).classes
    assert [row.layers for row in rows] == [[f"torch.nn.modules.rnn.{name}"] for name in ("LSTM", "GRU", "RNN")]
    assert all(row.family == "classic" and row.verified and all(row.verified.values()) for row in rows)


def test_a_class_that_loses_its_state_is_told(monkeypatch):
    kind = families.KINDS["mamba2"]

    def forgetful(layer, x, state, marks):
        return kind.forward(layer, x, None, marks)

    monkeypatch.setitem(families.KINDS, "mamba2", dataclasses.replace(kind, forward=forgetful))
    tiny = [tiny for tiny in TINY_MODELS if tiny.name == "Mamba2"]
    (row,) = verify_support(tiny, layers=()).classes
    assert not row.verified["initial state"] and not row.verified["gradients"]
    assert row.model == "Mamba2ForCausalLM" and row.kernels == ["ssd"] and row.family == "mamba2"


@pytest.mark.acceptance
def test_a_verification_finds_what_is_packaged():
    found, packaged = verify_support(), SupportTable.load(PACKAGED)
    assert found.classes == packaged.classes and found.refused == packaged.refused
