"""The named studies: cells with names of their own, and a control for every arm."""

import pytest

from lengthen.interventions import Mixture
from lengthen.studies import STUDIES
from lengthen.studies.study_interventions import intervention_of
from lengthen.training.running import wants_lanes


def test_each_cell_has_a_name_of_its_own_and_each_intervention_can_be_made():
    settings = {s for plan in STUDIES.values() for s in plan.all_settings()}
    assert len({s.key(seed) for s in settings for seed in (0, 1)}) == 2 * len(settings)
    assert len({s.base.key(0) for s in settings}) == len({s.base for s in settings})
    for plan in STUDIES.values():
        controls = [s for s in plan.settings.values() if s.intervention == "zero"]
        assert controls and {s.control for s in plan.settings.values()} <= set(controls), plan.name
    for text in {s.intervention for s in settings}:
        made = intervention_of(text, 0)
        assert wants_lanes(made) == ("tbptt" in text)


@pytest.mark.parametrize("name", STUDIES)
def test_a_plan_asks_a_question_and_every_mixture_gives_whole_rows(name):
    plan = STUDIES[name]
    assert plan.name == name and plan.question.endswith("?") and len(set(plan.varies)) == 2
    for setting in plan.settings.values():
        made = intervention_of(setting.intervention, 0)
        if isinstance(made, Mixture):
            assert all((setting.base.rows * share).is_integer() for _, share in made.parts)


def value_of(setting, name):
    base = setting.base
    if name in ("chain-depth", "fitted-noise-window"):
        chosen = intervention_of(setting.intervention, 0)
        return chosen.depth - 1 if name == "chain-depth" else 1 / (1 - chosen.momentum)
    return {
        "train-context": base.train_context,
        "training-tokens": base.steps * base.rows * base.train_context,
        "state-size": getattr(base.recipe, "state_size", None),
        "learning-rate": setting.learning_rate,
    }[name]


@pytest.mark.parametrize(
    "name", ["train-context", "training-tokens", "state-size", "learning-rate", "chain-depth", "fitted-noise-window"]
)
def test_a_row_s_label_says_its_setting(name):
    labels = set()
    for (label, _), setting in STUDIES[name].settings.items():
        if label not in ("control", "no limit") and setting != setting.before:
            assert value_of(setting, name) == pytest.approx(float(label.replace(",", "")))
            labels.add(label)
    assert len(labels) >= 3


def test_every_training_context_sees_as_many_tokens():
    bases = {setting.base for setting in STUDIES["train-context"].settings.values()}
    assert len(bases) == 5 and len({base.steps * base.rows * base.train_context for base in bases}) == 1
