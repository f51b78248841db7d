"""What to do about a diagnosis: rules, each a function from its facts to a finding with an advice, the first that holds.

T training context.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

from lengthen.diagnosis.verdict import ENOUGH
from lengthen.results import Diagnosis, HeadDrift, Recommendation, Remembrance

STEPS = 500
"""Post-training steps to try first: what the paper used for Mamba-2 and gated linear attention."""
DEPTH = 3
"""A state has settled after so many forgetting times: what came before them counts 5 %."""
FORGOTTEN = 0.01
"""An effective remembrance below which what was dropped is said to be forgotten."""
SHORT = 1 / 4
"""A model is said to forget where its memory ends within this share of the tokens it was asked about."""
UNLEARNT = 0.99
"""A model whose perplexity is above this share of the best prediction without context has learnt nothing from context."""

Rule = Callable[[Diagnosis], Recommendation | None]


def recommend(diagnosis: Diagnosis) -> Recommendation:
    """The first rule that holds."""
    return next(found for rule in RULES if (found := rule(diagnosis)) is not None)


def learnt_nothing(d: Diagnosis) -> Recommendation | None:
    """A model that knows no more than how frequent each token is."""
    if d.unigram is None or d.in_context is None or not d.in_context > UNLEARNT * d.unigram:
        return None
    return Recommendation(
        "learnt_nothing",
        f"In context the perplexity is {d.in_context:.3g}, and {d.unigram:.3g} for the best prediction without any context.",
        "The model has learnt nothing from its context on this text, so that there is nothing to judge: check the "
        "weights and the tokenizer, or train it first.",
    )


def undecided(d: Diagnosis) -> Recommendation | None:
    """Too little to go by."""
    if d.fails is not None:
        return None
    if d.n < ENOUGH:
        advice = f"Give at least {ENOUGH} sequences (--n)."
    elif d.max_length <= d.train_context:
        advice = "Go past the training context (--max-length), best to 64 times it."
    else:
        advice = "Check the weights: the loss is not finite even within the training context."
    return Recommendation("undecided", "Whether the model fails was not decided.", advice)


def overflows(d: Diagnosis) -> Recommendation | None:
    """A failing model whose loss is no longer a number."""
    if not d.fails or math.isfinite(d.buckets[-1].loss):
        return None
    return Recommendation(
        "overflows",
        f"From position {d.break_point:,} on the loss is not finite.",
        "Find what overflows first (a higher precision by --dtype, the weights, a token): post-training cannot start "
        "from states that are not finite.",
    )


def fails_with_familiar_states(d: Diagnosis) -> Recommendation | None:
    """A failing model whose states stay within what training shows."""
    past = _past_break(d)
    if not d.fails or not past or any(head.outside for head in past):
        return None
    return Recommendation(
        "fails_with_familiar_states",
        "The model fails, but no head's state leaves what training shows.",
        "Post-training from other initial states is unlikely to help: look at what else depends on the position, such "
        "as attention past the positions it was trained on.",
    )


def context_too_short(d: Diagnosis) -> Recommendation | None:
    """A failing model whose states would not settle within any post-training of a usual length."""
    typical = _typical_forgetting(d)
    if not d.fails or typical is None or DEPTH * typical <= STEPS * d.train_context:
        return None
    needed = "everything" if math.isinf(typical) else f"{typical:,.0f} tokens or more"
    longer = "much longer" if math.isinf(typical) else f"at least {math.ceil(DEPTH * typical / STEPS):,} tokens long"
    return Recommendation(
        "context_too_short",
        f"The model fails, and half of its heads remember {needed}, past {STEPS // DEPTH} training contexts of "
        f"{d.train_context:,}.",
        f"The training context is too short for these states, which would not settle while they are passed on for "
        f"{STEPS} steps: post-train with state passing at a training context that is {longer}.",
        "state-passing",
        STEPS,
    )


def fails(d: Diagnosis) -> Recommendation | None:
    """A failing model: post-train it from states that cover what is attainable."""
    if not d.fails:
        return None
    everything = {(head.layer, head.tensor, head.head) for head in _past_break(d)}
    outside = {(head.layer, head.tensor, head.head) for head in _past_break(d) if head.outside}
    drift = f", where {len(outside)} of {len(everything)} heads have left what training shows" if everything else ""
    cause = ""
    if d.patching is not None and d.patching.excess > 2 * d.patching.excess_stderr:
        worst = d.patching.patches[0]
        cause = f"; {100 * worst.share:.0f} % of the excess loss comes from {worst.layer}"
    return Recommendation(
        "fails",
        f"The model fails from position {d.break_point:,} on{drift}{cause}.",
        f"Post-train it for {STEPS} steps with state passing at a tenth of pre-training's learning rate (nearly all of it "
        "for a small model, or where that falls short; TBPTT does as well where there are many long documents), beside a "
        "control arm from the zero state.",
        "state-passing",
        STEPS,
    )


def forgets(d: Diagnosis) -> Recommendation | None:
    """A model that does not fail because it remembers nothing that could make it fail."""
    if d.remembrance is None or (within := forgotten_beyond(d.remembrance)) is None:
        return None
    end = d.remembrance.points[-1].end
    if within > SHORT * end:
        return None
    return Recommendation(
        "forgets",
        f"The model does not fail, and forgets everything beyond {within:,} tokens: dropping all before them changes "
        f"its prediction at {end:,} by no more than {FORGOTTEN:.0%}.",
        "There is nothing to fix, but nothing is remembered either: for tasks that look further back, train with longer "
        "contexts or slower decays.",
    )


def no_failure(d: Diagnosis) -> Recommendation:
    """Nothing to do."""
    return Recommendation(
        "no_failure",
        f"The model does not fail up to {d.max_length:,} positions.",
        "There is nothing to fix: try it on tasks that need what lies far back.",
    )


RULES: tuple[Rule, ...] = (
    undecided,
    learnt_nothing,
    overflows,
    fails_with_familiar_states,
    context_too_short,
    fails,
    forgets,
    no_failure,
)


def forgotten_beyond(remembrance: Remembrance) -> int | None:
    """The fewest last tokens that alone decide the prediction at the last end; None where not even the most measured do."""
    found = None
    last = [point for point in remembrance.points if point.end == remembrance.points[-1].end and point.start > 0]
    for point in sorted(last, key=lambda point: point.start):
        if point.mean > FORGOTTEN:
            break
        found = point.end - point.start
    return found


def _past_break(d: Diagnosis) -> list[HeadDrift]:
    """Drift at positions from the break point on."""
    if d.drift is None or d.break_point is None:
        return []
    return [head for head in d.drift.heads if head.position >= d.break_point]


def _typical_forgetting(d: Diagnosis) -> float | None:
    """The median over heads of their forgetting times, infinite for those that never do."""
    if d.drift is None or not d.drift.forgetting:
        return None
    return statistics.median(math.inf if f.tokens is None else f.tokens for f in d.drift.forgetting)
