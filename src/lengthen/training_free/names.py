"""Training-free methods by name, as the command line has them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lengthen.errors import InputError
from lengthen.training_free.calibrated_scaling import MambaExtend, MambaModulation
from lengthen.training_free.chunked_answers import OPRM
from lengthen.training_free.decay_matching import DecayMatching
from lengthen.training_free.fitting import Method
from lengthen.training_free.resets import HardReset, SoftReset
from lengthen.training_free.retention import ReducedRetention
from lengthen.training_free.sliding_windows import SegmentRing, SlidingWindow
from lengthen.training_free.spectrum import SpectrumWinsorising
from lengthen.training_free.staggered_lanes import OverlappedReset, StaggeredLanes
from lengthen.training_free.state_normalisation import SegmentNormalisation, StateNormalisation
from lengthen.training_free.step_scaling import ConstantDelta
from lengthen.training_free.step_thresholds import LongMamba
from lengthen.training_free.token_selection import DeciMamba

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (
        ConstantDelta,
        DecayMatching,
        MambaExtend,
        MambaModulation,
        SpectrumWinsorising,
        LongMamba,
        DeciMamba,
        ReducedRetention,
        StateNormalisation,
        SegmentNormalisation,
        SlidingWindow,
        SegmentRing,
        HardReset,
        SoftReset,
        StaggeredLanes,
        OverlappedReset,
        OPRM,
    )
}
"""Every method by its name on the command line."""


def method_of(text: str) -> Method:
    """A method by its name on the command line, NAME or NAME:setting=value,setting=value.

    Raises InputError for an unknown name or setting.
    """
    name, _, rest = text.partition(":")
    settings: dict[str, Any] = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals:
            raise InputError(f"The setting {item!r} of {name} has no value; write {key}=VALUE.")
        settings[key.strip()] = _value(value.strip())
    return method_with(name.strip(), settings)


def method_with(name: str, settings: Mapping[str, Any]) -> Method:
    """A method by its name, with these settings. Raises InputError for an unknown name or setting."""
    if name not in METHODS:
        raise InputError(f"There is no training-free method {name!r}; {_advice(name, list(METHODS))}.")
    known = {f.name: str(f.type) for f in fields(METHODS[name])}
    for key, value in settings.items():
        if key not in known:
            raise InputError(f"{name} has no setting {key!r}; {_advice(key, list(known))}.")
        if isinstance(value, str) and "str" not in known[key]:
            raise InputError(f"The setting {key} of {name} is {value!r}; give a number.")
    return METHODS[name](**settings)


def _advice(given: str, known: list[str]) -> str:
    if not known:
        return "leave it out"
    near = difflib.get_close_matches(given, known, n=1)
    return f"perhaps {near[0]!r} was meant" if near else f"choose one of {', '.join(known)}"


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
