"""What is found of models as such: parity checks, supported classes, conversions."""

from __future__ import annotations

from dataclasses import dataclass, field

from lengthen.results.base import Result


@dataclass(frozen=True)
class Check(Result):
    """One property of a model's state: what was measured, against what, and what a failure does to the user."""

    name: str
    passed: bool
    value: float | None
    tolerance: float | None
    meaning: str


@dataclass(frozen=True)
class CheckResult(Result):
    """All checks of one model."""

    model: str
    family: str
    passed: bool
    checks: list[Check]


@dataclass(frozen=True)
class SupportedClass(Result):
    """A library's model class: its recurrent layers, the kernels they run on, and which properties were verified."""

    library: str
    model: str
    layers: list[str]
    family: str
    kernels: list[str]
    verified: dict[str, bool]


@dataclass(frozen=True)
class SupportTable(Result):
    """All classes that are supported; refused: class -> why."""

    classes: list[SupportedClass]
    refused: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Conversion(Result):
    """A checkpoint written in another library's format, and how far the logits of the two models are apart."""

    source: str
    destination: str
    source_format: str
    destination_format: str
    family: str
    tensors: int
    parameters: int
    dtypes: list[str]
    tokens: int
    largest_logit_difference: float
