"""Interventions by name: settings as they are written, mixtures, and what is wrong in a sentence."""

import pytest

from lengthen.errors import InputError
from lengthen.interventions import intervention_named


@pytest.mark.parametrize(
    "text, match",
    [
        ("noise", "no intervention 'noise'; choose one of state-passing, tbptt"),
        ("state-pass", "perhaps 'state-passing' was meant"),
        ("state-passing:std=1", "state-passing has no setting 'std'; choose one of zero_fraction"),
        ("state-passing:zero_fraction=half", "zero_fraction of state-passing is 'half'; give a number"),
        ("state-passing:window_state=maybe", "window_state of state-passing is 'maybe'; give true or false"),
        ("zero:seed=1", "zero has no setting 'seed'; leave it out"),
        ("state-passing:zero_fraction", "no value"),
        ("random-noise:std=0", "above 0"),
        ("fitted-noise:momentum=1.0", "momentum"),
        ("state-passing:zero_fraction=2", "zero_fraction"),
        ("0.5 zero + 0.5 none", "no intervention 'none'"),
        ("0.5 zero + tbptt", "'tbptt' of a mixture has no share"),
        ("0.5 zero + 0.4 tbptt", "add up to 1"),
        ("nan zero + 0.5 tbptt", "add up to 1"),
    ],
)
def test_bad_settings_are_a_sentence(text, match):
    with pytest.raises(InputError, match=match):
        intervention_named(text)


def test_settings_from_text():
    assert intervention_named("state-passing:zero_fraction=0.5,window_state=true").describe() == {
        "name": "state-passing",
        "zero_fraction": 0.5,
        "p_zero": 0.02,
        "window_state": True,
        "seed": 0,
    }
    assert intervention_named("random-noise").describe() == {
        "name": "random-noise",
        "std": 10.0,
        "relative": True,
        "seed": 0,
    }


def test_a_mixture_by_name_has_each_part_on_its_share():
    made = intervention_named("0.25 zero + 0.75 state-passing:zero_fraction=0", seed=3)
    assert [(part.name, share) for part, share in made.parts] == [("zero", 0.25), ("state-passing", 0.75)]
    assert (made.parts[1][0].zero_fraction, made.parts[1][0].seed) == (0, 3)


def test_random_noise_by_name_keeps_its_size_where_only_the_seed_is_set():
    made = intervention_named("random-noise:seed=3")
    assert (made.std, made.relative, made.seed) == (10.0, True, 3)
