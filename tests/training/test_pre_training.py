"""Pre-training: what a recipe builds, what it refuses, and the learning rate."""

import pytest
import torch

from lengthen import pretrain
from lengthen.errors import InputError
from lengthen.training import Mamba2Recipe
from tests.training.small_runs import learning_rates, weights

TINY = Mamba2Recipe(width=16, layers=1, head_dim=8, state_size=4)


def test_pretraining_from_a_recipe(plays):
    recipe = Mamba2Recipe(width=32, layers=1, head_dim=16, state_size=8, decay_range=(0.5, 0.5))
    _model, record = pretrain(plays[0], train_context=32, steps=60, rows=8, recipe=recipe, warmup=6)
    assert record.losses[-1] < record.losses[0] - 1
    fresh = recipe.build()
    assert torch.allclose(fresh.backbone.layers[0].mixer.A_log.exp(), torch.tensor(0.5))
    assert torch.equal(weights(recipe.build(1)), weights(recipe.build(1))) and not torch.equal(
        weights(fresh), weights(recipe.build(1))
    )
    with pytest.raises(InputError, match="decay range"):
        Mamba2Recipe(decay_range=(2.0, 1.0)).build()
    with pytest.raises(InputError, match="heads"):
        Mamba2Recipe(width=30).build()


def test_a_recipe_is_drawn_from_its_seed_alone_within_its_range():
    recipe = Mamba2Recipe(width=32, layers=3, head_dim=4, state_size=8, decay_range=(2.0, 3.0))
    torch.manual_seed(7)
    before = torch.get_rng_state()
    built = recipe.build(4)
    assert torch.equal(torch.get_rng_state(), before)
    rates = torch.cat([block.mixer.A_log.detach().exp() for block in built.backbone.layers])
    assert len(rates) == 3 * 16 and ((rates >= 2.0) & (rates <= 3.0)).all() and len(rates.unique()) == len(rates)
    torch.manual_seed(8)
    assert torch.equal(weights(recipe.build(4)), weights(built))


@pytest.mark.parametrize(
    "recipe, match",
    [
        (Mamba2Recipe(decay_range=(0.0, 1.0)), "decay range 0.0 to 1.0 is not one; give two numbers above 0"),
        (Mamba2Recipe(state_size=0), "recipe's state_size is 0; give at least 1"),
        (Mamba2Recipe(groups=0), "recipe's groups is 0"),
        (Mamba2Recipe(head_dim=48), "128 channels cannot be cut into heads of 48"),
        (Mamba2Recipe(groups=3), "4 heads cannot be shared by 3 groups"),
    ],
)
def test_a_recipe_that_makes_no_model_is_refused(recipe, match):
    with pytest.raises(InputError, match=match):
        recipe.build()


def test_the_rate_ends_at_a_tenth_and_a_short_run_warms_up_over_a_tenth_of_its_steps(tmp_path, plays):
    options = {"train_context": 8, "rows": 4, "recipe": TINY, "learning_rate": 1.0, "config": {"logging_steps": 1}}
    _, record = pretrain(plays[0], steps=12, warmup=100, out=tmp_path, **options)
    rates = list(learning_rates(tmp_path).values())
    assert rates[:3] == pytest.approx([0.0, 0.5, 1.0]) and record.intervention == "zero"
    assert rates[2:] == sorted(rates[2:], reverse=True) and 0.1 < rates[-1] < 0.15
