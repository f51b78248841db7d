"""Small models of other families: slow decays from the start, and the same for the same seed."""

import pytest
import torch

from lengthen import zero_state
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
