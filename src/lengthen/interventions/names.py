"""Interventions by name, as the command line has them."""

from __future__ import annotations

from typing import Any

from lengthen.errors import InputError
from lengthen.interventions.base import Intervention, Zero
from lengthen.interventions.mixture import Mixture
from lengthen.interventions.noise import FittedNoise, RandomNoise
from lengthen.interventions.passing import TBPTT, StatePassing

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
    name, _, rest = text.partition(":")
    if name not in makers:
        raise InputError(f"There is no intervention {name!r}; choose one of {', '.join(INTERVENTIONS)}.")
    settings: dict[str, Any] = {"seed": seed} if makers[name] in (StatePassing, FittedNoise, RandomNoise) else {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals:
            raise InputError(f"The setting {item!r} of {name} has no value; write {key}=VALUE.")
        settings[key.strip()] = _value(value.strip())
    if name == RandomNoise.name and "std" not in settings:
        settings |= {"std": 10.0, "relative": True}
    try:
        return makers[name](**settings)
    except TypeError as error:
        raise InputError(f"The intervention {name} does not take these settings: {error}.") from None


def _part(text: str, seed: int) -> tuple[Intervention, float]:
    share, _, named = text.strip().partition(" ")
    if not isinstance(_value(share), float | int):
        raise InputError(f"The part {text.strip()!r} of a mixture has no share; write one before it, as in 0.25 zero.")
    return intervention_named(named.strip(), seed), float(share)


def _value(text: str) -> bool | int | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
