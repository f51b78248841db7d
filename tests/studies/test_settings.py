"""Settings as plain values: a cell's name says what its figures depend on, and nothing else."""

import json
from dataclasses import replace

import pytest

from lengthen.studies.recipes import Mamba1Recipe
from lengthen.studies.settings import Base, Setting, StudyPlan, digest


def test_every_field_of_a_base_and_of_a_setting_changes_its_key():
    base = Base()
    others = [
        replace(base, recipe=Mamba1Recipe()),
        replace(base, recipe=replace(base.recipe, width=32)),
        replace(base, train_context=32),
        replace(base, steps=1),
        replace(base, rows=1),
        replace(base, learning_rate=1e-3),
    ]
    assert len({b.key(0) for b in (base, *others)} | {base.key(1)}) == len(others) + 2
    setting = Setting(base)
    settings = [Setting(b) for b in others] + [
        replace(setting, intervention="tbptt"),
        replace(setting, steps=100),
        replace(setting, learning_rate=1e-2),
    ]
    assert len({s.key(0) for s in (setting, *settings)}) == len(settings) + 1
    assert setting.key(0) == Setting(Base()).key(0)


def test_recipes_of_the_same_fields_are_told_apart_by_their_kind():
    class Other(Mamba1Recipe):
        pass

    assert Base(Mamba1Recipe()).key(0) != Base(Other()).key(0)


def test_what_is_described_goes_through_json():
    described = Setting(intervention="0.5 zero + 0.5 fitted-noise").describe()
    assert json.loads(json.dumps(described))["base"]["recipe"]["kind"] == "Mamba2Recipe"


def test_a_key_is_the_name_of_a_file_whatever_the_intervention():
    key = Setting(intervention="0.25 zero + 0.75 state-passing:p_zero=0").key(3)
    assert key.startswith("0-25-zero-0-75-state-passing-p-zero-0-500-") and key.endswith("-seed3")
    assert Setting().before.key(0).startswith("before-0-")


def test_the_base_is_one_cell_for_every_arm_and_has_no_control_of_its_own():
    passing, noise = Setting(), Setting(intervention="fitted-noise", steps=100, learning_rate=1e-2)
    assert passing.before == noise.before and passing.before.control == passing.before
    assert noise.control == Setting(intervention="zero", steps=100, learning_rate=1e-2)
    plan = StudyPlan("p", "?", ("a", "b"), {("1", "x"): passing, ("2", "x"): noise, ("1", "y"): passing.control})
    assert plan.all_settings() == [passing.before, passing.control, passing, noise.control, noise]


@pytest.mark.parametrize("first, second", [({"a": 1, "b": 2}, {"b": 2, "a": 1})])
def test_a_digest_does_not_depend_on_order(first, second):
    assert digest(first) == digest(second) != digest({"a": 1})


def test_what_has_no_steps_is_held_against_itself():
    untouched = Setting(intervention="state-passing", steps=0)
    assert untouched.control == untouched.before and untouched.key(0).startswith("before-0-")
