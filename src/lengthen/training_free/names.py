"""Training-free methods by name, as the command line has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from lengthen.errors import InputError
from lengthen.naming import advice, name_and_settings, require_settings
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

    Raises InputError for an unknown name or setting, or a value that is none of its kind.
    """
    return method_with(*name_and_settings(text))


def method_with(name: str, settings: Mapping[str, Any]) -> Method:
    """A method by its name, with these settings. Raises InputError as method_of does."""
    if name not in METHODS:
        raise InputError(f"There is no training-free method {name!r}; {advice(name, list(METHODS))}.")
    require_settings(name, settings, {f.name: str(f.type) for f in fields(METHODS[name])})
    return METHODS[name](**settings)
