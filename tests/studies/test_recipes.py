"""Small models of other families: slow decays from the start, and the same for the same seed."""

import sys

import pytest
import torch

from lengthen import zero_state
from lengthen.errors import InputError
from lengthen.studies.recipes import GatedDeltaNetRecipe, GLARecipe, Mamba1Recipe, RWKV6Recipe


def decays(model):
    """Each head's or channel's factor a token at no input, from the parameters that set it."""
    found = []
    for name, p in model.named_parameters():
        if name.endswith("A_log"):
            found.append(p.exp())
        elif name.endswith("gk_proj.1.bias"):
            found.append(-torch.nn.functional.logsigmoid(p) / 16)
        elif name.endswith("w_proj.linear.lora.2.bias"):
            found.append(p.exp())
    return torch.cat([f.detach().flatten() for f in found])


RECIPES = [Mamba1Recipe(), GLARecipe(), RWKV6Recipe(), GatedDeltaNetRecipe()]


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_small_models_of_other_families_start_slow_and_run(recipe):
    if not isinstance(recipe, Mamba1Recipe):
        pytest.importorskip("fla")
    model = recipe.build(seed=1)
    assert 0 < decays(model).max() <= 0.032 + 1e-6  # Mamba-1's fastest state: 16 x 0.002
    torch.manual_seed(0)
    tokens = torch.randint(0, 256, (2, 9))
    output = model(input_ids=tokens, labels=tokens)
    output.loss.backward()
    assert output.loss.isfinite() and zero_state(model, 2).bytes > 0
    again = recipe.build(seed=1)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters()))


def parameters_named(model, end):
    return [p.detach() for name, p in model.named_parameters() if name.endswith(end)]


def test_the_states_of_mamba_1_decay_at_multiples_of_its_slowness():
    found = parameters_named(Mamba1Recipe(width=8, layers=3, state_size=5, slowness=0.01).build(), "A_log")
    assert len(found) == 3
    for a_log in found:
        expected = torch.tensor([0.01, 0.02, 0.03, 0.04, 0.05]).expand(16, 5)
        torch.testing.assert_close(a_log.exp(), expected)


def test_decays_of_fla_s_families_lie_where_they_are_asked_to():
    pytest.importorskip("fla")
    (bias,) = parameters_named(GLARecipe(width=16, gate_bias=2.5).build(), "gk_proj.1.bias")
    assert (bias == 2.5).all()
    (bias,) = parameters_named(RWKV6Recipe(width=16, decay_bias=(-3.0, -2.0)).build(), "w_proj.linear.lora.2.bias")
    assert -3 <= bias.min() < bias.max() <= -2
    (a_log,) = parameters_named(GatedDeltaNetRecipe(width=16, decay_range=(0.5, 2.0)).build(), "A_log")
    assert a_log.exp().min() >= 0.5 and a_log.exp().max() <= 2


def test_building_a_model_takes_nothing_from_the_caller_s_generator():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    Mamba1Recipe(width=8, layers=1).build(seed=5)
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize("recipe", RECIPES[1:], ids=str)
def test_without_fla_it_is_named(recipe, monkeypatch):
    monkeypatch.setitem(sys.modules, "fla.models", None)
    with pytest.raises(InputError, match=r"is built from flash-linear-attention, .*; pip install 'lengthen\[fla\]'\.$"):
        recipe.build()
