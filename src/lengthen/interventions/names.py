"""Interventions by name, as the command line has them."""

from __future__ import annotations

import inspect

from lengthen.errors import InputError
from lengthen.interventions.base import Intervention, Zero
from lengthen.interventions.mixture import Mixture
from lengthen.interventions.noise import FittedNoise, RandomNoise
from lengthen.interventions.passing import TBPTT, StatePassing
from lengthen.naming import advice, name_and_settings, require_settings, value_of

INTERVENTIONS = ("state-passing", "tbptt", "fitted-noise", "random-noise", "zero")


def intervention_named(text: str, seed: int = 0) -> Intervention:
    """An intervention by its name on the command line: NAME, NAME:setting=value,setting=value, or a mixture of such, each
    with its share of the rows, as in "0.25 zero + 0.75 tbptt".

    random-noise without a std has ten times the standard deviation of ordinary final states. seed: of the draws, where
    the settings name none. Raises InputError for an unknown name or setting.
    """
    parts = text.split(" + ")
    if len(parts) > 1:
        return Mixture([_part(part, seed) for part in parts])
    makers = {c.name: c for c in (StatePassing, TBPTT, FittedNoise, RandomNoise, Zero)}
    name, settings = name_and_settings(text)
    if name not in makers:
        raise InputError(f"There is no intervention {name!r}; {advice(name, list(INTERVENTIONS))}.")
    known = {key: str(p.annotation) for key, p in inspect.signature(makers[name]).parameters.items()}
    require_settings(name, settings, known)
    if "seed" in known:
        settings = {"seed": seed} | settings
    if name == RandomNoise.name and "std" not in settings:
        settings |= {"std": 10.0, "relative": True}
    return makers[name](**settings)


def _part(text: str, seed: int) -> tuple[Intervention, float]:
    share, _, named = text.strip().partition(" ")
    if not isinstance(value_of(share), float | int):
        raise InputError(f"The part {text.strip()!r} of a mixture has no share; write one before it, as in 0.25 zero.")
    return intervention_named(named.strip(), seed), float(share)
