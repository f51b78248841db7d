"""The rivals' models: trained once and found again in the folder, with what their training took."""

import pytest
import torch

from lengthen.errors import RunError
from lengthen.studies.cells import train_base
from lengthen.studies.rival_models import BASES, TrainedArm, arm_model, base_model, took_of, train_arm, weights_of
from lengthen.studies.settings import Base, Setting
from lengthen.training import Mamba2Recipe

BASE = Base(Mamba2Recipe(width=16, layers=1, head_dim=16, state_size=8), train_context=16, rows=4, steps=2)


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_an_arm_starts_from_its_base_and_both_are_found_again(tmp_path):
    train_base(BASE, 0, tmp_path)
    arm = Setting(BASE, steps=3)
    base = base_model(BASE, 0, tmp_path)
    train_arm(arm, 0, tmp_path)
    assert same(base, base_model(BASE, 0, tmp_path)) and not same(base, BASE.recipe.build(0))
    assert not same(base, arm_model(arm, 0, tmp_path)) and same(
        arm_model(arm, 0, tmp_path), arm_model(arm, 0, tmp_path)
    )
    took = TrainedArm.load(took_of(arm, 0, tmp_path))
    assert (took.tokens, took.steps) == (3 * 4 * 16, 3) and took.seconds > 0


def test_a_training_that_fails_leaves_no_arm(tmp_path):
    train_base(BASE, 0, tmp_path)
    arm = Setting(BASE, "zero", 9, 1e6)
    with pytest.raises(RunError, match="nan"):
        train_arm(arm, 0, tmp_path)
    assert not weights_of(arm, 0, tmp_path).exists() and not took_of(arm, 0, tmp_path).exists()


def test_bases_differ_in_their_decays_alone():
    assert len({base.key(0) for base in BASES.values()}) == len(BASES) == 3
    assert len({(base.train_context, base.steps, base.rows) for base in BASES.values()}) == 1
    ranges = [BASES[label].recipe.decay_range for label in ("slow", "mild")]
    assert ranges[0][1] < ranges[1][1] and ranges[0][0] < ranges[1][0]
