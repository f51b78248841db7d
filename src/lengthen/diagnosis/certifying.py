"""certificate(): what post-training did, by paired differences on the same sequences.

n sequences, B buckets. A difference is taken sequence by sequence, so that what makes a sequence hard cancels; its 95 %
interval is Student's over the n differences, each interval for itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lengthen.diagnosis.confidence import mean_and_stderr, t_975
from lengthen.diagnosis.measure import Measure
from lengthen.diagnosis.verdict import ENOUGH
from lengthen.errors import InputError
from lengthen.results import Certificate, Diagnosis, Difference

BEFORE, AFTER, CONTROL = "before", "after", "control"
BEFORE_RESET, OWN_RESET, CONTROL_RESET = "before reset", "own reset", "control reset"
IN_CONTEXT, FAR, BUCKET = "in context", "far", "bucket"

UNLEARNT = "Before, the model had learnt nothing from its context on this text, so that the rest says little."

Interval = tuple[int, int]


def certificate(
    before: Diagnosis, after: Diagnosis, control: Diagnosis | None = None, *, names: Sequence[str] = ()
) -> Certificate:
    """The certificate of a model after post-training against the one before and, where there is one, a control arm.

    names: of before, after and control; their models' unless said. Far is [32 T, 64 T), or the last bucket of a
    diagnosis that does not get there; of one that gets farther the verdict tells the last bucket too. Raises InputError for runs that cannot be paired (see why_unpaired).
    """
    runs = [before, after] if control is None else [before, after, control]
    names = names or [run.model for run in runs]
    for name, run in zip(names, runs):
        if (reason := why_unpaired(before, run, names[0], name)) is not None:
            raise InputError(reason)
    edges = [(b.start, b.end) for b in before.buckets]
    carried = {role: _losses(run, reset=False) for role, run in zip((BEFORE, AFTER, CONTROL), runs)}
    from_zero = {role: _losses(run, reset=True) for role, run in zip((BEFORE, AFTER, CONTROL), runs)}
    resets = dict(zip((BEFORE_RESET, OWN_RESET, CONTROL_RESET), from_zero.values()))
    measure = Measure(before.loss)

    def difference(name: str, of: str, against: str, over: Interval) -> Difference:
        chosen = [i for i, (low, high) in enumerate(edges) if over[0] <= low and high <= over[1]]
        weights = [edges[i][1] - edges[i][0] for i in chosen]
        known = from_zero if name == IN_CONTEXT else carried | resets
        one, other = (np.average(known[role][:, chosen], axis=1, weights=weights) for role in (of, against))
        told = (0, before.train_context) if name == IN_CONTEXT else over
        return paired_difference(one, other, measure, name=name, of=of, against=against, interval=told)

    far = 32 * before.train_context, 64 * before.train_context
    far = far if far[1] <= before.max_length else edges[-1]
    everywhere = (0, before.max_length)
    pairs = [(BEFORE, BEFORE_RESET), (AFTER, OWN_RESET), (AFTER, BEFORE), (AFTER, BEFORE_RESET)]
    pairs += [(CONTROL, CONTROL_RESET), (AFTER, CONTROL), (AFTER, CONTROL_RESET)] if control is not None else []
    differences = [difference(IN_CONTEXT, AFTER, role, everywhere) for role in (BEFORE, CONTROL)[: len(runs) - 1]]
    differences += [difference(FAR, *pair, far) for pair in pairs]
    curves = [difference(BUCKET, *pair, bucket) for pair in pairs for bucket in edges]
    assert before.sequences is not None  # why_unpaired has seen to it
    return Certificate(
        before=names[0],
        after=names[1],
        control=names[2] if control is not None else None,
        train_context=before.train_context,
        max_length=before.max_length,
        n=before.n,
        seed=before.seed,
        tokens=before.sequences.tokens,
        overlap=before.sequences.overlap,
        loss=before.loss,
        repaired=not after.fails if before.fails and after.fails is not None else None,
        verdict=_verdict(before, after, control, [*differences, *curves], measure),
        differences=differences,
        curves=curves,
    )


def why_unpaired(one: Diagnosis, other: Diagnosis, name: str, other_name: str) -> str | None:
    """Why two runs cannot be paired, in a sentence; None where they can."""
    for run, called in ((one, name), (other, other_name)):
        if run.sequences is None:
            return f"{called} holds no losses sequence by sequence; diagnose it again."
    assert one.sequences is not None and other.sequences is not None
    kept = (
        ("judged at a training context of", one.train_context, other.train_context),
        ("judged up to position", one.max_length, other.max_length),
        ("judged by", one.loss, other.loss),
    )
    for what, first, second in kept:
        if first != second:
            return f"{name} is {what} {first} and {other_name} is {what} {second}; diagnose both alike."
    if one.sequences.tokens != other.sequences.tokens:
        return (
            f"{name} and {other_name} were judged on different sequences; diagnose both on the same data with the same "
            "seed, --n and tokenizer."
        )
    return None


def paired_difference(
    one: NDArray[np.float64],
    other: NDArray[np.float64],
    measure: Measure,
    *,
    name: str,
    of: str,
    against: str,
    interval: Interval,
) -> Difference:
    """The difference of mean losses [n] of the same n sequences, with its 95 % interval where n is 16 or more."""
    mean, stderr = mean_and_stderr(one - other)
    level = float(other.mean())
    low = high = change_low = change_high = None
    if len(one) >= ENOUGH:
        reach = t_975(len(one) - 1) * stderr
        low, high = mean - reach, mean + reach
        change_low, change_high = measure.share(low, level), measure.share(high, level)
    change = measure.share(mean, level)
    return Difference(name, of, against, *interval, mean, stderr, low, high, change, change_low, change_high, len(one))


def _losses(run: Diagnosis, *, reset: bool) -> NDArray[np.float64]:
    """[n, B]."""
    assert run.sequences is not None
    return np.array(run.sequences.own_reset if reset else run.sequences.carried, dtype=np.float64)


def _verdict(
    before: Diagnosis, after: Diagnosis, control: Diagnosis | None, differences: list[Difference], measure: Measure
) -> str:
    """What the differences say, a sentence for each thing a reader must know."""
    if before.fails is None or after.fails is None:
        return before.verdict if before.fails is None else after.verdict
    found = {(d.name, d.of, d.against): d for d in differences}  # of buckets the last
    yardstick, rival = (BEFORE_RESET, BEFORE) if control is None else (CONTROL_RESET, CONTROL)
    said = [_outcome(before, after, found[FAR, AFTER, BEFORE], measure)]
    if before.recommendation is not None and before.recommendation.rule == "learnt_nothing":
        said.insert(0, UNLEARNT)
    if control is None:
        said.append("There is no control arm, so that what training alone would have done is not known.")
    elif control.fails and not after.fails:
        said.append("The control arm, trained as long from the zero state, still fails.")
    elif control.fails is False and before.fails:
        said.append("The control arm does not fail either: training alone repairs this model.")
    reset = found[FAR, AFTER, yardstick]
    said.append(f"Far {measure.name} against the {yardstick} baseline: {_told(reset)}, {_against_reset(reset)}.")
    last = found[BUCKET, AFTER, yardstick]
    if last.start >= reset.end:
        said.append(f"Farther still, from position {last.start:,} to {last.end:,}: {_told(last)}.")
    cost = found[IN_CONTEXT, AFTER, rival]
    said.append(f"In-context {measure.name} against {'the control' if control else 'before'}: {_told(cost)}.")
    assert before.sequences is not None
    if before.sequences.overlap is None:
        said.append("Whether the sequences overlap is not known; if they do, the intervals are too narrow.")
    elif before.sequences.overlap:
        said.append(
            f"Sequences share up to {before.sequences.overlap:,} of {before.max_length:,} positions, so that the "
            "intervals are narrower than independent sequences would give."
        )
    return " ".join(said)


def _outcome(before: Diagnosis, after: Diagnosis, far: Difference, measure: Measure) -> str:
    if not before.fails:
        return f"Nothing to repair: there was no failure up to {before.max_length:,} positions before."
    if after.fails:
        return (
            f"Not repaired: from position {after.break_point:,} on the {measure.name} still exceeds the reset baseline, "
            f"far {measure.name} {_told(far)}; train longer, or at a learning rate nearer pre-training's."
        )
    return f"Repaired: no failure is left up to {after.max_length:,} positions, far {measure.name} {_told(far)}."


def _against_reset(reset: Difference) -> str:
    if reset.low is None or reset.high is None or reset.low <= 0 <= reset.high:
        return "no sure difference from resetting the state"
    return "better than resetting the state" if reset.high < 0 else "worse than resetting the state"


def _told(difference: Difference) -> str:
    if difference.change_low is None or difference.change_high is None:
        return f"{_percent(difference.change)} %"
    return f"{_percent(difference.change)} % [{_percent(difference.change_low)}, {_percent(difference.change_high)}]"


def _percent(share: float) -> str:
    """With its sign, but none of a zero."""
    return f"{100 * share:+z.1f}"
