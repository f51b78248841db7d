"""Models and methods in one table: every method fitted, chosen and judged on texts apart, what it took counted.

T0 training context, L positions, n sequences.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from lengthen.data import HeldOutSequences
from lengthen.diagnosis.certifying import paired_difference
from lengthen.diagnosis.confidence import mean_and_stderr, t_975
from lengthen.diagnosis.measure import Measure
from lengthen.diagnosis.verdict import ENOUGH
from lengthen.errors import InputError, RunError
from lengthen.models import family_name, weights_fingerprint
from lengthen.results import Difference, Estimate, Rival, Rivals, versions
from lengthen.streaming import Progress, loss_name
from lengthen.training_free.fitting import Calibration, FittedMethod, Method
from lengthen.training_free.judging import cost_of, far_loss, far_of, judged
from lengthen.training_free.names import METHODS, method_of
from lengthen.training_free.splits import Splits, calibration_from

GIVEN, CONTROL, PASSED = "as given", "control", "state passing"
"""The models of a contest."""
UNTOUCHED, RESET = "untouched", "hard-reset"
ALWAYS = (RESET, "staggered-lanes", "constant-delta")
"""The methods, as they are unless said otherwise, that stand in every table."""


@dataclass(frozen=True)
class Contestant:
    """A model, and what its post-training took: tokens read, steps, seconds of CPU time."""

    label: str
    model: nn.Module
    tokens: int = 0
    forwards: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Course:
    """What all are judged by: the texts, T0, L, n sequences, and the seed of all that is drawn."""

    splits: Splits
    train_context: int
    length: int
    n: int = 16
    seed: int = 0
    join: bool = False

    def __post_init__(self) -> None:
        if self.train_context < 1 or self.length < 2 * self.train_context:
            raise InputError(
                f"The maximum length is {self.length} and the training context {self.train_context}; give a length of at "
                "least two training contexts."
            )

    def calibration(self, method: Method) -> Calibration:
        """What this method may be fitted on."""
        T0, L = self.train_context, self.length
        return calibration_from(self.splits.calibrate, method, train_context=T0, length=L, seed=self.seed)

    def report(self) -> HeldOutSequences:
        """The sequences that are reported on."""
        return HeldOutSequences(self.splits.report, length=self.length, count=self.n, seed=self.seed, join=self.join)

    def describe(self) -> dict[str, Any]:
        """Plain values that tell one course from another."""
        texts = {f.name: getattr(self.splits, f.name).fingerprint for f in fields(Splits)}
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "splits"} | texts


def entries(methods: Sequence[str]) -> list[list[str]]:
    """The methods of a table, as on the command line, those always there first; several of one name are candidates.

    Every method that there is, where none is named. Raises InputError for an unknown name or setting.
    """
    always = [[name] for name in ALWAYS if name in METHODS]
    named: dict[str, list[str]] = {}
    for text in methods or METHODS:
        named.setdefault(method_of(text).name, []).append(text)
    return always + [texts for texts in named.values() if texts not in always]


def contest(
    contestants: Sequence[Contestant],
    methods: Sequence[str],
    course: Course,
    *,
    name: str = "",
    cells: Path | None = None,
    progress: Progress | None = None,
) -> Rivals:
    """The table of these models: the first and the last under every method, those between under resets alone.

    methods: as on the command line; of several with one name, the one of the least far loss on the text to select by
    stands in the table. cells: a folder that keeps what is done, a file a row. The yardstick is the control arm with its
    state reset, or the first model's where there is no control arm.
    """
    report, left_out = course.report(), {}
    wanted = entries(methods)
    jobs = [(c, texts) for c in contestants for texts in [[], *(wanted if c.label != CONTROL else [[RESET]])]]
    found: list[Rival] = []
    for done, (contestant, texts) in enumerate(jobs):
        row: Rival | None = None
        try:
            row = _kept(contestant, texts, course, report, cells)
        except (InputError, RunError) as error:
            left_out[method_of(texts[0]).name if texts else UNTOUCHED] = str(error)
            if not texts:
                raise
        if row is not None:
            found.append(row)
        if progress is not None:
            progress(done + 1, len(jobs))
    model = contestants[0].model
    measure = Measure(loss_name(model, report))
    start, end = far_of(course.train_context, course.length)
    return Rivals(
        model=name,
        family=family_name(model),
        train_context=course.train_context,
        max_length=course.length,
        far_start=start,
        n=course.n,
        seed=course.seed,
        loss=measure.loss,
        rivals=_compared(found, measure, (start, end), course.train_context),
        left_out=left_out,
        splits={f.name: getattr(course.splits, f.name).fingerprint for f in fields(Splits)},
        configuration={"methods": [" or ".join(texts) for texts in wanted], "overlap": report.overlap},
        versions=versions(),
    )


def _kept(
    contestant: Contestant, texts: list[str], course: Course, report: HeldOutSequences, cells: Path | None
) -> Rival:
    """A row, read where its file is there, else found and written: that of the weights, to which the arm's own is added.

    Beside it lies a folder with what the method was fitted to (see load_fitted).
    """
    row = _of_weights(contestant.model, texts, course, report, cells)
    return replace(
        row,
        model=contestant.label,
        tokens=row.tokens + contestant.tokens,
        forwards=row.forwards + contestant.forwards,
        seconds=row.seconds + contestant.seconds,
    )


def _of_weights(
    model: nn.Module, texts: list[str], course: Course, report: HeldOutSequences, cells: Path | None
) -> Rival:
    if cells is None:
        return _row(model, texts, course, report, None)
    described = {"weights": weights_fingerprint(model), "methods": texts, **course.describe()}
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:12]
    place = cells / f"{method_of(texts[0]).name if texts else UNTOUCHED}-{digest}"
    file = place.with_suffix(".json")
    if not file.exists():
        _row(model, texts, course, report, place).save(file)
    return Rival.load(file)


def _row(model: nn.Module, texts: list[str], course: Course, report: HeldOutSequences, place: Path | None) -> Rival:
    T, fitted, taken = course.train_context, None, np.zeros(3)
    if texts:
        fitted, taken = _fitted(model, [method_of(text) for text in texts], course)
    seen = judged(model, fitted, report, T)
    if fitted is not None and place is not None:
        fitted.save(place)
    measure = Measure(loss_name(model, report))
    return Rival(
        model="",
        method=UNTOUCHED if fitted is None else fitted.method.name,
        settings={} if fitted is None else asdict(fitted.method),
        in_context=_estimate(seen.in_context, measure),
        far=_estimate(seen.far, measure),
        tokens=int(taken[0]),
        forwards=int(taken[1]),
        seconds=float(taken[2]),
        cost=cost_of(model, fitted, report, T),
        heads=seen.heads,
        losses_in_context=seen.in_context.tolist(),
        losses_far=seen.far.tolist(),
        chosen=len(texts) > 1,
    )


def _fitted(model: nn.Module, methods: list[Method], course: Course) -> tuple[FittedMethod, np.ndarray[Any, Any]]:
    """The method fitted, of several the best by the text to select by; tokens, forwards and seconds of it all."""
    taken, found = np.zeros(3), []
    for method in methods:
        fitted = method.fit(model, course.calibration(method))
        taken += (fitted.tokens_read, fitted.forwards, fitted.seconds)
        found.append(fitted)
    if len(found) == 1:
        return found[0], taken
    tokens = course.splits.to_select_by(course.length, course.seed)
    losses = [far_loss(model, fitted, tokens, course.train_context) for fitted in found]
    taken += (len(found) * len(tokens) * course.length, len(found) * len(tokens), 0.0)
    return found[int(np.nanargmin(losses))], taken


def _compared(found: Sequence[Rival], measure: Measure, far: tuple[int, int], train_context: int) -> list[Rival]:
    """The rows with their paired differences."""
    by = {(row.model, row.method): row for row in found}
    yardstick = by.get((CONTROL, RESET), by.get((found[0].model, RESET)))

    def difference(row: Rival, of: str, against: Rival, interval: tuple[int, int]) -> Difference:
        one, other = (np.array(getattr(each, f"losses_{of.replace(' ', '_')}")) for each in (row, against))
        return paired_difference(one, other, measure, name=of, of=title(row), against=title(against), interval=interval)

    return [
        replace(
            row,
            over_untouched=difference(row, "in context", by[row.model, UNTOUCHED], (0, train_context)),
            over_reset=None if yardstick is None else difference(row, "far", yardstick, far),
        )
        for row in found
    ]


def title(row: Rival) -> str:
    """A row in words: its model, and its method where there is one."""
    return row.model if row.method == UNTOUCHED else f"{row.model}, {row.method}{', chosen' * row.chosen}"


def _estimate(losses: np.ndarray[Any, Any], measure: Measure) -> Estimate:
    mean, stderr = mean_and_stderr(losses)
    if len(losses) < ENOUGH or not np.isfinite(stderr):
        return Estimate(measure.value(mean), None, None)
    reach = t_975(len(losses) - 1) * stderr
    return Estimate(*(measure.value(loss) for loss in (mean, mean - reach, mean + reach)))
