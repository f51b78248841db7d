"""What is trained and judged in one go: the demonstration and the studies."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lengthen.results.base import Result
from lengthen.results.comparison import Certificate
from lengthen.results.diagnosis import Diagnosis
from lengthen.results.models import CheckResult
from lengthen.results.tasks import Evaluation
from lengthen.results.training import TrainingRecord
from lengthen.results.training_free import Rivals


@dataclass(frozen=True)
class Arm(Result):
    """One arm of an experiment. Perplexities; far_over_reset = far / before_reset; stderr is far's, in perplexity."""

    in_context: float
    far: float
    own_reset: float
    before_reset: float
    control_reset: float
    far_over_reset: float
    stderr: float
    n: int


@dataclass(frozen=True)
class Demonstration(Result):
    """The whole job on the bundled text: a small slow-decay model, five arms, each diagnosed, and a certificate for each
    but the control."""

    train_context: int
    seconds: float
    seed: int
    parity: CheckResult
    arms: dict[str, Arm]
    diagnoses: dict[str, Diagnosis]
    trainings: dict[str, TrainingRecord]
    caveat: str
    certificates: list[Certificate] = field(default_factory=list)
    configuration: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Spread(Result):
    """A figure over seeds: its geometric mean, the least and the greatest; NaN where a run failed."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class StudyRow(Result):
    """One setting of a study. setting: the values of what varies; arms: one per seed; failed: what runs that failed said.

    The last three spreads are of ratios taken seed by seed: far over the reset baselines of the weights before
    post-training and of the control arm (trained as long from the zero state), in context over the control arm's."""

    setting: list[str]
    arms: list[Arm]
    in_context: Spread
    far: Spread
    own_reset: Spread
    far_over_before_reset: Spread
    far_over_control_reset: Spread
    in_context_over_control: Spread
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Study(Result):
    """A sweep over settings and seeds. varies: what the values in StudyRow.setting are of; seconds: of CPU time, all
    cells together; configuration: each setting in full."""

    name: str
    question: str
    varies: list[str]
    seeds: list[int]
    rows: list[StudyRow]
    seconds: float
    configuration: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TaskStudy(Result):
    """What small models that learnt a task at the training context make of it beyond, by arm. arms: label -> an evaluation
    per seed, "before" the model that had learnt it; measured: which of a cell's figures is told, accuracy or
    token_accuracy; seconds: of CPU time, all arms together; configuration: each arm in full."""

    name: str
    question: str
    train_context: int
    measured: str
    seeds: list[int]
    arms: dict[str, list[Evaluation]]
    seconds: float
    configuration: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RivalStudy(Result):
    """Rivals on several small models. bases: label -> a table per seed; configuration: each base in full."""

    name: str
    question: str
    seeds: list[int]
    bases: dict[str, list[Rivals]]
    configuration: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
