"""Tiny models: small, of the library's own classes, the same for the same seed, and with memories that show."""

import importlib
import math

import pytest
import torch

from lengthen.errors import InputError
from lengthen.models.families import FAMILY_OF
from lengthen.models.tiny_models import TINY_MODELS, VOCABULARY, TinyModel, build_tiny_model
from lengthen.models.tiny_models_fla import FLA_TINY_MODELS

INSTALLED = [tiny for tiny in TINY_MODELS if tiny.installed]


def tiny(title):
    return next(model for model in TINY_MODELS if model.title == title)


def test_each_model_has_a_title_of_its_own_and_its_library_has_its_class():
    for models in (TINY_MODELS, FLA_TINY_MODELS):
        assert len({model.title for model in models}) == len(models)
    assert len(INSTALLED) > 20
    for model in INSTALLED:
        library = importlib.import_module(model.library)
        assert hasattr(library, model.config) and hasattr(library, f"{model.name}ForCausalLM")


@pytest.mark.parametrize("model", INSTALLED, ids=lambda model: model.title)
def test_a_model_is_small_evaluates_in_single_precision_and_reads_tokens(model):
    built = build_tiny_model(model)
    assert not built.training and type(built).__name__ == f"{model.name}ForCausalLM"
    assert {p.dtype for p in built.parameters()} == {torch.float32}
    assert sum(p.numel() for p in built.parameters()) < 500_000
    assert built.get_input_embeddings().num_embeddings == VOCABULARY


def test_the_same_seed_gives_the_same_weights_and_leaves_the_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    first, again, other = (build_tiny_model(tiny("Mamba2"), seed).state_dict() for seed in (0, 0, 1))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_decays_are_redrawn_to_keep_a_state_for_tens_of_tokens():
    for layer in build_tiny_model(tiny("Mamba2")).requires_grad_(False).backbone.layers:
        rates = torch.nn.functional.softplus(layer.mixer.dt_bias) * layer.mixer.A_log.exp()
        assert 1 / float(rates.max()) > 10 and 1 / float(rates.min()) < 200
        assert layer.mixer.in_proj.weight.std() * math.sqrt(layer.mixer.in_proj.weight.shape[1]) == pytest.approx(
            1, rel=0.1
        )


def test_a_class_that_the_library_does_not_have_is_named():
    for unknown in (
        TinyModel("Nothing", "none", "NothingConfig"),
        TinyModel("Mamba", "mamba1", "X", library="nowhere"),
    ):
        assert not unknown.installed
        with pytest.raises(InputError, match=rf"^{unknown.library} has no {unknown.name}ForCausalLM here; install"):
            build_tiny_model(unknown)


def test_families_are_those_that_lengthen_has():
    families = {family for _, family in FAMILY_OF.items()}
    assert {model.family for model in FLA_TINY_MODELS} <= {getattr(f, "name", f) for f in families}
