"""Lessons: tasks that small models really learn within T, and what each intervention then makes of them beyond it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from lengthen.studies.settings import SLOW
from lengthen.training import Mamba2Recipe

BEFORE = "before"
"""The model as it was when it had learnt the task, before any arm."""


@dataclass(frozen=True)
class Lesson:
    """A task learnt from zero states, then practised for as many steps in every arm; all windows are of train_context.

    arms: label -> intervention by name, the control among them. long_stories: labels of the arms whose samples are one to
    four windows long. measured: what is told of a cell, the answers that are right or the tokens of them. lengths, depths,
    n: as evaluate takes them. Tokens are the task's own (see own_tokenizer).
    """

    name: str
    question: str
    task: str
    train_context: int
    lengths: tuple[int, ...]
    arms: Mapping[str, str]
    long_stories: tuple[str, ...] = ()
    recipe: Mamba2Recipe = SLOW
    haystack: str | None = None
    steps: int = 1000
    rows: int = 32
    learning_rate: float = 4e-3
    practice: int = 400
    practice_rate: float = 2e-3
    samples: int = 20_000
    depths: tuple[float, ...] = (0.5,)
    n: int = 100
    measured: Literal["accuracy", "token_accuracy"] = "accuracy"

    def learnt(self) -> dict[str, Any]:
        """Plain values that tell one learnt model from another."""
        names = ("task", "train_context", "haystack", "steps", "rows", "learning_rate", "samples")
        return {name: getattr(self, name) for name in names} | {"recipe": asdict(self.recipe)}

    def describe(self, arm: str) -> dict[str, Any]:
        """Plain values that tell one arm's cell from another."""
        judged = {name: getattr(self, name) for name in ("lengths", "depths", "n")}
        if arm == BEFORE:
            return {**self.learnt(), **judged}
        practised = {name: getattr(self, name) for name in ("practice", "practice_rate")}
        practised |= {"intervention": self.arms[arm], "long_stories": arm in self.long_stories}
        return {**self.learnt(), **judged, **practised}


CONTROL, FITTED, PASSING = {"control": "zero"}, {"fitted noise": "fitted-noise"}, {"state passing": "state-passing"}
LESSONS = {
    lesson.name: lesson
    for lesson in (
        Lesson(
            "learn-copying",
            "Is a string longer than any in training copied better after state passing?",
            "copying",
            train_context=33,
            lengths=(18, 34, 50, 66, 130, 258),
            arms=CONTROL | FITTED | PASSING,
            steps=1200,
            practice=600,
            measured="token_accuracy",
        ),
        Lesson(
            "learn-passkey",
            "Is a key found beyond the training context after fine-tuning from fitted noise?",
            "passkey",
            train_context=96,
            lengths=(96, 192, 384, 768, 3072),
            arms=CONTROL | FITTED | PASSING,
            steps=500,
            rows=16,
            samples=8000,
            depths=(0.1, 0.5, 0.9),
            n=50,
        ),
        Lesson(
            "learn-recall",
            "Are the values of keys recalled beyond the training context?",
            "associative-recall",
            train_context=32,
            lengths=(32, 128, 1024, 4096, 16384),
            arms=CONTROL | FITTED | PASSING,
            steps=800,
            rows=64,
            practice=300,
            n=50,
        ),
        Lesson(
            "learn-babilong",
            "Are questions about facts in a long text answered beyond the training context, and at what cost at 0k?",
            "babilong-qa1",
            train_context=108,
            lengths=(0, 108, 216, 432, 864, 3456),
            arms=CONTROL | PASSING | {"TBPTT": "tbptt"},
            long_stories=("TBPTT",),
            recipe=replace(SLOW, head_dim=16, decay_range=(0.2, 8.0)),
            haystack="noise",
            steps=2000,
            practice=300,
            samples=12_000,
            n=40,
        ),
    )
}
"""Name -> lesson."""
