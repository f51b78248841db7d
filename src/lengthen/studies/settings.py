"""What a study is made of: settings, each a model's pre-training and one arm of post-training, told as plain values.

A cell is a setting under one seed. Its name says what its figures depend on, so that a cell found on disk is the one meant.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from lengthen.training import Mamba2Recipe
from lengthen.training.pre_training import Recipe

SLOW = Mamba2Recipe(decay_range=(0.002, 0.05))
"""The demonstration's model, which fails past any short training context."""


@dataclass(frozen=True)
class Base:
    """A model's pre-training on the bundled plays, rows windows of train_context bytes a step."""

    recipe: Recipe = SLOW
    train_context: int = 64
    steps: int = 1000
    rows: int = 16
    learning_rate: float = 4e-3

    def describe(self) -> dict[str, Any]:
        """Plain values that tell one base from another."""
        return {**asdict(self), "recipe": {"kind": type(self.recipe).__name__, **vars(self.recipe)}}

    def key(self, seed: int) -> str:
        """The name of its weights' file."""
        return f"base-{digest(self.describe())}-seed{seed}"


@dataclass(frozen=True)
class Setting:
    """An arm: a base, what its post-training starts windows from (see intervention_of), its steps and peak rate.

    The peak is reached at once and falls by a cosine to zero over the run's own steps. No steps: the base itself.
    """

    base: Base = field(default_factory=Base)
    intervention: str = "state-passing"
    steps: int = 500
    learning_rate: float = 3e-3

    @property
    def before(self) -> Setting:
        """The base itself."""
        return Setting(self.base, "zero", 0, 0.0)

    @property
    def control(self) -> Setting:
        """The same post-training from the zero state."""
        return replace(self, intervention="zero") if self.steps else self.before

    def describe(self) -> dict[str, Any]:
        """Plain values that tell one setting from another."""
        return {**asdict(self), "base": self.base.describe()}

    def key(self, seed: int) -> str:
        """The name of its cell's file."""
        arm = re.sub(r"[^a-z0-9]+", "-", self.intervention.lower()).strip("-") if self.steps else "before"
        return f"{arm}-{self.steps}-{digest(self.describe())}-seed{seed}"


@dataclass(frozen=True)
class StudyPlan:
    """A named sweep. varies: the two things that set its rows apart; settings: their values -> the setting."""

    name: str
    question: str
    varies: tuple[str, str]
    settings: Mapping[tuple[str, str], Setting]

    def all_settings(self) -> list[Setting]:
        """Each setting once, with those it is held against: the base and the control arm."""
        return list(dict.fromkeys(s for arm in self.settings.values() for s in (arm.before, arm.control, arm)))


def digest(described: dict[str, Any]) -> str:
    """A short name for plain values."""
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:12]
