"""The tasks by name, and how a group of prompts over one haystack is made."""

from __future__ import annotations

import difflib
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from lengthen.errors import InputError
from lengthen.tasks import needles, stories, symbols
from lengthen.tasks.files import FileTask
from lengthen.tasks.haystack import haystack_named
from lengthen.tasks.prompts import Group, Prompt, Puzzle, Wanted, drawn, hide
from lengthen.tasks.scoring import Scoring


class Task(Protocol):
    """One generator and one scoring.

    by_depth: whether its one fact lies at depths that are asked for. count: how many haystacks there are, each as long as
    it is; None where any number of any length can be made.
    """

    @property
    def name(self) -> str: ...

    @property
    def scoring(self) -> Scoring: ...

    @property
    def by_depth(self) -> bool: ...

    @property
    def count(self) -> int | None: ...

    def group(self, wanted: Wanted) -> Group:
        """The prompts over one haystack, a pure function of what is wanted; InputError where they do not fit its length."""
        ...


@dataclass(frozen=True)
class HiddenFacts:
    """A task of facts in a haystack. own_haystack: unless another is asked for."""

    name: str
    draw: Callable[[random.Random], Puzzle]
    scoring: Scoring
    own_haystack: str = "noise"
    by_depth: bool = False
    count: int | None = None

    def group(self, wanted: Wanted) -> Group:
        draws = wanted.draws(self.name)
        puzzle = drawn(draws, wanted.split, self.draw, lambda p: p.facts)
        filler = haystack_named(wanted.haystack or self.own_haystack, wanted.codec, wanted.split)
        start = draws.random()  # of the filler, the same for all depths
        if self.by_depth:
            places = {depth: [depth] * len(puzzle.facts) for depth in wanted.depths}
            return {depth: hide(puzzle, p, wanted, filler, random.Random(start)) for depth, p in places.items()}
        anywhere = sorted(draws.random() for _ in puzzle.facts)
        return {None: hide(puzzle, anywhere, wanted, filler, random.Random(start))}


@dataclass(frozen=True)
class Symbols:
    """A task of single tokens, without a haystack of text."""

    name: str
    make: Callable[[random.Random, Wanted], list[Prompt]]
    scoring: Scoring = "exact"
    by_depth: bool = False
    count: int | None = None

    def group(self, wanted: Wanted) -> Group:
        return {None: self.make(wanted.draws(self.name), wanted)}


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        HiddenFacts("passkey", needles.passkey, "exact", by_depth=True),
        HiddenFacts("niah-single", needles.needle, "substring", by_depth=True),
        HiddenFacts("niah-multikey", needles.many_keys, "substring"),
        HiddenFacts("niah-multivalue", needles.many_values, "substring"),
        HiddenFacts("niah-multiquery", needles.many_queries, "substring"),
        HiddenFacts("variable-tracking", needles.variable_tracking, "substring"),
        HiddenFacts("babilong-qa1", stories.one_fact, "strict", "plays"),
        HiddenFacts("babilong-qa2", stories.two_facts, "strict", "plays"),
        HiddenFacts("babilong-qa3", stories.three_facts, "strict", "plays"),
        HiddenFacts("babilong-qa4", stories.two_relations, "strict", "plays"),
        HiddenFacts("babilong-qa5", stories.three_relations, "strict", "plays"),
        Symbols("copying", symbols.copying),
        Symbols("associative-recall", symbols.associative_recall),
        Symbols("selective-copying", symbols.selective_copying),
    )
}
"""Every task that prompts are generated for, by its name."""


def task_named(name: str) -> Task:
    """A task by its name. Raises InputError for an unknown one, with the names that are nearest."""
    if name in TASKS:
        return TASKS[name]
    if name.startswith("file:"):
        return FileTask(name)
    near = difflib.get_close_matches(name, TASKS, n=3, cutoff=0.4)
    hint = (
        f"did you mean {' or '.join(near)}?"
        if near
        else f"choose one of {', '.join(TASKS)}, file:PATH or lm-eval:TASK."
    )
    raise InputError(f"There is no task {name!r}; {hint}")
