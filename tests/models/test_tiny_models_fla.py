"""Tiny models of fla's classes: each that lengthen runs, built on a CPU, and of the family that it says."""

import pytest

from lengthen import wrap
from lengthen.models import family_name
from lengthen.models.tiny_models import build_tiny_model
from lengthen.models.tiny_models_fla import FLA_TINY_MODELS

pytest.importorskip("fla", reason="fla is an extra")


@pytest.mark.parametrize("tiny", FLA_TINY_MODELS, ids=lambda tiny: tiny.name)
def test_each_class_is_built_small_and_wrapped_as_its_family(tiny):
    model = build_tiny_model(tiny)
    assert type(model).__name__ == f"{tiny.name}ForCausalLM" and type(model).__module__.startswith("fla.")
    assert sum(p.numel() for p in model.parameters()) < 500_000 and model.config.num_hidden_layers == 2
    assert family_name(wrap(model)) == tiny.family.replace("_", "-") or family_name(model) == tiny.family


def test_every_class_is_listed_once():
    assert len({tiny.name for tiny in FLA_TINY_MODELS}) == len(FLA_TINY_MODELS)
    assert all(tiny.library == "fla.models" and not tiny.variant for tiny in FLA_TINY_MODELS)
