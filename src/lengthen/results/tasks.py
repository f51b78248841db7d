"""What a model answers in long-context tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lengthen.results.base import Result


@dataclass(frozen=True)
class Cell(Result):
    """One task at one length and depth (None: facts at random depths). n: haystacks; accuracy: the mean over them of the
    share of questions answered right by the named scoring; interval: Wilson's, 95 %. tokens: of a prompt, on average.
    token_accuracy: where scoring is exact, the share of the answers' tokens that are right when those before are given."""

    task: str
    length: int
    depth: float | None
    n: int
    accuracy: float
    interval: list[float]
    scoring: str
    tokens: float
    token_accuracy: float | None = None


@dataclass(frozen=True)
class Evaluation(Result):
    """Long-context tasks, cell by cell. effective_lengths: task -> the largest length up to which its accuracy over all
    depths is at least 0.85 at every tested length (None: not even the shortest). tokens: of all prompts;
    tokens_processed: how many of them were run, what prompts share once. over_depths: of tasks at several depths the mean
    over them, as a cell of depth None for each length."""

    model: str
    family: str
    seed: int
    cells: list[Cell]
    effective_lengths: dict[str, int | None]
    tokens: int
    tokens_processed: int
    over_depths: list[Cell] = field(default_factory=list)
    configuration: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
