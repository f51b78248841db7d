"""The named studies: cells with names of their own, and a control for every arm."""

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
