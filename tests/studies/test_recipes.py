"""What only studies use: models of other families that start slow, and variants of state passing."""

import pytest
import torch

from lengthen import Rows, wrap, zero_state
from lengthen.studies.recipes import GatedDeltaNetRecipe, GLARecipe, Mamba1Recipe, RWKV6Recipe
from lengthen.studies.study_interventions import intervention_of
from tests.conftest import tiny_mamba2


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


@pytest.mark.parametrize("recipe", [Mamba1Recipe(), GLARecipe(), RWKV6Recipe(), GatedDeltaNetRecipe()], ids=str)
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


def test_a_short_chain_goes_through_fewer_windows_than_its_depth():
    zero = zero_state(wrap(tiny_mamba2(num_hidden_layers=1)), 4)
    chain = intervention_of("short-chains:depth=3", 0)
    ages = []
    for step in range(9):  # a state counts the windows that it has gone through
        rows = Rows(torch.arange(4), torch.zeros(4, dtype=torch.bool), step, 4, True, tokens=1)
        final = chain.initial_state(rows, zero).map(lambda t, spec: t + 1)
        ages.append(final.tensors["backbone.layers.0.mixer"]["recurrent"].flatten(1).amax(1).tolist())
        chain.observe(rows, final)
    later = torch.tensor(ages[3:])
    assert later.min() == 1 and later.max() == 3
    assert all(sorted(column) == [1, 1, 2, 2, 3, 3] for column in later.T.tolist())
    assert len(set(map(tuple, later.T.tolist()))) == 3  # the lanes in turn
